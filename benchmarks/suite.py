"""What is measured, of whom, what it may be at most, and why that is fair: one function a benchmark.

Nothing is timed here: measure.py does that, in processes of its own. run.py shows the rows that come of it.
"""

from __future__ import annotations

import json
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HERE = pathlib.Path(__file__).parent
TIME_LIMIT = 1800.0

Measured = Mapping[str, Any]


@dataclass
class Row:
    """One line of the table. `limit` is what a value may be at most; None where it is only reported.

    `failed` says which measurements came to nothing, and why: their target is not met, whatever the others say.
    """

    what: str
    value: float | None
    limit: float | None = None
    unit: str = "ratio"
    spread: str = ""
    note: str = ""
    failed: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.limit is None:
            return None
        return not self.failed and self.value is not None and self.value <= self.limit


def measured(what: str, *arguments: object) -> dict[str, Any]:
    """One measurement in a process of its own; {"failed": why} where it ends without a result."""
    command = [sys.executable, str(HERE / "measure.py"), what, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {"failed": f"{what} {' '.join(map(str, arguments))}: no result after {TIME_LIMIT:g} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    # A message of several lines starts with the error's type, in the first column.
    errors = re.findall(r"^[A-Za-z_][\w.]*: .*", done.stderr, re.MULTILINE)
    why = errors[-1] if errors and done.returncode == 1 else f"exit status {done.returncode}"
    return {"failed": f"{what} {' '.join(map(str, arguments))}: {why}"}


def in_turns(repeats: int, what: str, names: Sequence[str], *arguments: object) -> dict[str, list[dict[str, Any]]]:
    """So many measurements of each contestant, one after the other, and each time the other way round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(measured(what, name, *arguments))
    return found


def figures(found: Sequence[Measured], key: str) -> list[float]:
    """What those that did not fail have found."""
    return [each[key] for each in found if "failed" not in each]


def compared(
    what: str,
    ours: Sequence[Measured],
    others: Sequence[Measured],
    key: str,
    limit: float | None = None,
    note: str = "",
    other_key: str = "",
) -> Row:
    """The median of ratios of measurements that were taken one after the other, their spread, and what failed."""
    pairs = zip(ours, others, strict=True)
    ratios = [a[key] / b[other_key or key] for a, b in pairs if "failed" not in a and "failed" not in b]
    value = statistics.median(ratios) if ratios else None
    return Row(what, value, limit, spread=spread(ratios), note=note, failed=failures([*ours, *others]))


def failures(found: Sequence[Measured]) -> str:
    """What failed, each once."""
    return "; ".join(dict.fromkeys(each["failed"] for each in found if "failed" in each))


def spread(values: Sequence[float]) -> str:
    """The least and the most; that there was only one is said."""
    return f"{min(values):.3g} to {max(values):.3g}" if len(values) > 1 else "one run" if values else ""


def by_round(found: Measured, name: str) -> list[Measured]:
    """The rounds of one contestant, as if each were a measurement."""
    return [found] if "failed" in found else [{"us": us} for us in found[name]]


# The benchmarks: each says what it measures, and why that is fair


def imports(quick: bool) -> Iterator[Row]:
    """`import thunder_fx` beside `import torch`, each in processes of their own that import nothing else."""
    found = in_turns(5, "imports", ["thunder_fx", "torch"])
    yield compared("import thunder_fx, to import torch", found["thunder_fx"], found["torch"], "seconds", 0.02)


COUNTS = (1, 1_000, 100_000)


def lookups(quick: bool) -> Iterator[Row]:
    """last_backend(fn) beside a WeakKeyDictionary alone, with few and with many live entries, 30 rounds in turns.

    Each number of entries has a process of its own, since there is one table in a process. That the time is constant is
    therefore judged beside the look-up alone, which had the same processor, at the same moment, and the same caches.
    """
    found, rows = {}, {}
    for kind, count in (
        *(("function", count) for count in COUNTS),
        ("OptimizedModule", 1_000),
        ("Module compiled in place", 1_000),
    ):
        here = found[kind, count] = measured("lookup", kind, count)
        ours, bare = by_round(here, "thunder_fx"), by_round(here, "bare")
        note = "" if "failed" in here else f"{statistics.median(here['thunder_fx']):.2f} us"
        what = f"last_backend, {kind}, {count:,} entries, to a bare look-up"
        rows[kind, count] = compared(what, ours, bare, "us", 3.0, note)
        yield rows[kind, count]
    ratios = [rows["function", count].value for count in COUNTS]
    known = [ratio for ratio in ratios if ratio is not None]
    value = max(known) / min(known) if known else None
    failed = failures([found["function", count] for count in COUNTS])
    yield Row("last_backend, 1 to 100,000 entries, the most of these ratios to the least", value, 1.5, failed=failed)


def steady_state(quick: bool) -> Iterator[Row]:
    """A call once it is compiled. In one process, on one thread, in turns, the median of 15 rounds of 100 or 500 calls.

    Fair: each function and each Module's forward has a code object of its own, so that none pays for the guards of
    another.
    """
    kinds = [(kind, limit, "static") for kind, limit in (("tiny function", 0.45), ("MLP", 1), ("transformer", 1))]
    for kind, limit, sizes in kinds if quick else [*kinds, ("tiny function", None, "dynamic")]:
        for grad in ("no grad", "grad"):
            found = measured("steady_state", kind, grad, sizes)
            times = {name: statistics.median(us) for name, us in found.items() if name != "failed"}
            note = ", ".join(f"{name} {us:.1f} us" for name, us in times.items())
            ours, peer = by_round(found, "thunder_fx"), by_round(found, "thunder.dynamo")
            what = f"steady call, {kind}{', dynamic' * (sizes == 'dynamic')}, {grad}, to thunder.dynamo"
            yield compared(what, ours, peer, "us", limit, note)


def first_call(quick: bool) -> Iterator[Row]:
    """The first forward and backward of a Llama, from the call to the last gradient, in a fresh process for each.

    Fair: each has run eager, and has compiled a tiny function with a gradient, by itself and by Inductor, so that what
    it imports is there. thunder.dynamo alone has Inductor compile some regions of it, and finds these in the cache on
    disk, which a run that does not count has filled. Of the same processes, with 12 layers, save_reproducer() beside
    thunder.dynamo's, each asked for 3 times, and explain() beside the first call, when it is asked for first.
    """
    names = ["thunder_fx", "thunder.dynamo", "dynamo alone"]
    measured("first_call", "thunder.dynamo", 2)
    found = {}
    for layers in (2, 12) if quick else (2, 6, 12, 24):
        # What is quick takes its time for the layers that have a target; the others it has for growth.
        several = layers == 12 or not quick
        repeats = 1 if not several else 2 if quick else 3
        found[layers] = here = in_turns(repeats, "first_call", names if several else names[::2], layers)
        ours, what = here["thunder_fx"], f"first call, Llama of {layers} layers"
        if several:
            limit = 0.25 if layers == 12 else None
            yield compared(f"{what}, to thunder.dynamo", ours, here[names[1]], "seconds", limit)
        yield compared(f"{what}, to Dynamo alone", ours, here[names[2]], "seconds", note=shares_of_phases(ours))
    yield growth(found)
    yield from views(found[12])


def growth(found: Mapping[int, Mapping[str, Sequence[Measured]]]) -> Row:
    """Seconds that each further layer takes, beside Dynamo alone."""
    least, most = min(found), max(found)
    each: dict[str, float] = {}
    for name in found[least]:
        few, many = figures(found[least][name], "seconds"), figures(found[most][name], "seconds")
        if few and many:
            each[name] = (statistics.median(many) - statistics.median(few)) / (most - least)
    ends = [one for end in (least, most) for name in ("thunder_fx", "dynamo alone") for one in found[end][name]]
    row = Row("first call, growth with each layer, to Dynamo alone", None, 1.0, failed=failures(ends))
    row.note = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in each.items())
    if "thunder_fx" in each and "dynamo alone" in each:
        row.value = each["thunder_fx"] / each["dynamo alone"]
        if not row.is_met:
            row.note += "; for the cause see the profile in benchmarks/README.md"
    return row


def views(found: Mapping[str, Sequence[Measured]]) -> Iterator[Row]:
    """What is asked of those that were compiled."""
    ours = found["thunder_fx"]
    saved = figures(ours, "save")
    note = f"{statistics.median(saved):.2f} s" if saved else ""
    yield compared("save_reproducer, 12 layers, to thunder.dynamo", ours, found["thunder.dynamo"], "save", 1.0, note)
    asked = figures(ours, "explain")
    note = f"{statistics.median(asked) * 1e3:.0f} ms" if asked else ""
    yield compared("explain, 12 layers, to the first call", ours, ours, "explain", 0.03, note, other_key="seconds")


def shares_of_phases(found: Sequence[Measured]) -> str:
    """The share of each phase in thunder_fx's seconds."""
    known = [each["phases"] for each in found if "phases" in each]
    if not known:
        return ""
    total = statistics.median(each["total"] for each in known)
    shares = {name: statistics.median(each.get(name, 0.0) for each in known) / total for name in known[0]}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != "total" and share >= 0.01)


def steps(quick: bool) -> Iterator[Row]:
    """A training step of small transformers, and how many graphs and regions each is made of; in processes in turns."""
    import models

    for name in models.ZOO[: 2 if quick else None]:
        found = in_turns(1 if quick else 3, "step", ["thunder_fx", "thunder.dynamo"], name)
        ours, theirs = found["thunder_fx"], found["thunder.dynamo"]
        yield compared(f"step, {name}, to thunder.dynamo", ours, theirs, "ms", 1.0)
        for key in ("graphs", "regions"):
            counts = [figures(ours, key), figures(theirs, key)]
            note = " and ".join(f"{here[0]:g}" if here else "?" for here in counts)
            yield compared(f"{key}, {name}, to thunder.dynamo", ours, theirs, key, 1.0, note)


def memory(quick: bool) -> Iterator[Row]:
    """The peak memory of a process that compiles and runs a model of a gigabyte, beside one by Dynamo alone.

    Before torch 2.13 also where Dynamo leaves torch's own Modules whole, so that weights are attributes of the graph.
    """
    from importlib.metadata import version

    ways = ["inline"] + ["whole Modules"] * (tuple(map(int, version("torch").split(".")[:2])) < (2, 13))
    for way in ways:
        what = "peak memory, 1 GB of weights" + ", whole Modules" * (way == "whole Modules")
        names = ["thunder_fx", "dynamo alone", "thunder.dynamo"]
        found = in_turns(1 if quick else 3, "memory", names, way)
        ours, alone, peer = (found[name] for name in names)
        yield compared(f"{what}, to Dynamo alone", ours, alone, "MiB", 1.05)
        yield compared(f"{what}, thunder.dynamo's to Dynamo alone", peer, alone, "MiB")


def kept(quick: bool) -> Iterator[Row]:
    """What a compiled callable holds of Python's memory: records, graphs, traces and code, without its weights.

    Reported, and bounded: docs/lookups.md says by what. Fair: of each what goes when it is dropped and Dynamo is reset.
    """
    names = ["thunder_fx"] if quick else ["thunder_fx", "thunder.dynamo", "dynamo alone"]
    for layers in (2,) if quick else (2, 12):
        for name in names:
            found = measured("kept", name, layers)
            note = ""
            if "records" in found:
                note = f"the records {found['records']:.0f} KiB; {found['dropped']:.0f} KiB go without a reset"
            what = f"kept, Llama of {layers} layers" + f", {name}" * (name != "thunder_fx")
            yield Row(what, found.get("KiB"), unit="KiB", note=note, failed=found.get("failed", ""))


BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    each.__name__: each for each in (imports, lookups, steady_state, first_call, steps, memory, kept)
}
