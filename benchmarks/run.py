"""All benchmarks: a table, and a file of results with versions and machine.

    python benchmarks/run.py                     all
    python benchmarks/run.py --quick             under 5 minutes on 2 cores
    python benchmarks/run.py --only first_call   some
    python benchmarks/run.py --json FILE         default: benchmarks/results.json, or results-quick.json

Ratios are what counts: seconds are this machine's, at this moment. Contestants take turns, each measurement in a
process of its own where a cache could help one of them. Exit status 0 whether targets are met or not: the table says.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


@dataclass
class Row:
    """One line of the table. `limit` is what a value may be at most; None where it is only reported."""

    what: str
    value: float | None
    limit: float | None
    unit: str = "ratio"
    spread: str = ""
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value is not None and self.value <= self.limit


def measured(what: str, *arguments: object) -> dict[str, Any]:
    """One measurement in a process of its own; {"failed": why} where it ends without a result."""
    command = [sys.executable, str(HERE / "measure.py"), what, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}


def in_turns(repeats: int, what: str, names: Sequence[str], *arguments: object) -> dict[str, list[dict[str, Any]]]:
    """So many measurements of each contestant, one after the other."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            found[name].append(measured(what, name, *arguments))
    return found


def ratio(found: dict[str, list[dict[str, Any]]], ours: str, other: str, key: str) -> tuple[float | None, str, str]:
    """The median of ratios of measurements that were taken one after the other, their spread, and what failed."""
    pairs = list(zip(found[ours], found[other], strict=True))
    failures = {each["failed"] for each in itertools.chain(*pairs) if "failed" in each}
    ratios = [a[key] / b[key] for a, b in pairs if key in a and key in b]
    if not ratios:
        return None, "", "; ".join(failures)
    return statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}", "; ".join(failures)


# The benchmarks: each says what it measures, and why that is fair


def first_call(quick: bool) -> Iterator[Row]:
    """The first forward and backward of a Llama, from the call to the last gradient, in a fresh process for each.

    Fair: each has run eager, and has compiled one tiny function, so that what it imports is there; no cache on disk is
    used by either, since neither compiles by Inductor.
    """
    layers = (2, 12) if quick else (2, 6, 12, 24)
    seconds: dict[tuple[str, int], float] = {}
    for count in layers:
        names = ["thunder_fx", "thunder.dynamo", "dynamo alone"]
        found = in_turns(1 if quick else 3, "first_call", names, count)
        value, spread, note = ratio(found, "thunder_fx", "thunder.dynamo", "seconds")
        limit = 0.25 if count == 12 else None
        yield Row(f"first call, Llama of {count} layers, to thunder.dynamo", value, limit, spread=spread, note=note)
        value, spread, note = ratio(found, "thunder_fx", "dynamo alone", "seconds")
        phases = statistics_of_phases(found["thunder_fx"])
        yield Row(
            f"first call, Llama of {count} layers, to Dynamo alone", value, None, spread=spread, note=note or phases
        )
        for name in names:
            known = [each["seconds"] for each in found[name] if "seconds" in each]
            if known:
                seconds[name, count] = statistics.median(known)
    least, most = layers[0], layers[-1]
    growth = {
        name: (seconds[name, most] - seconds[name, least]) / (most - least)
        for name in ("thunder_fx", "thunder.dynamo", "dynamo alone")
        if (name, most) in seconds and (name, least) in seconds
    }
    if "thunder_fx" in growth and "dynamo alone" in growth:
        seconds_each = ", ".join(f"{name} {value:.3f} s" for name, value in growth.items())
        note = f"{seconds_each}; what is not Dynamo's is thunder's passes, symbol by symbol (README.md)"
        value = growth["thunder_fx"] / growth["dynamo alone"]
        yield Row("first call, growth with each layer, to Dynamo alone", value, 1.0, note=note)


def statistics_of_phases(found: Sequence[dict[str, Any]]) -> str:
    """The share of each phase in thunder_fx's seconds."""
    known = [each["phases"] for each in found if "phases" in each]
    if not known:
        return ""
    total = statistics.median(each["total"] for each in known)
    shares = {name: statistics.median(each.get(name, 0.0) for each in known) / total for name in known[0]}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != "total" and share >= 0.01)


def steady_state(quick: bool) -> Iterator[Row]:
    """A call once it is compiled. In one process, on one thread, in turns, the best of several rounds.

    Fair: each function has a code object of its own, so that none pays for the guards of another.
    """
    for kind, limit in (("tiny function", 0.45), ("MLP", 1.0), ("2-layer transformer", 1.0)):
        for grad in ("no grad", "grad"):
            found = measured("steady_state", kind, grad)
            if "failed" in found:
                yield Row(f"steady call, {kind}, {grad}", None, limit, note=found["failed"])
                continue
            note = ", ".join(f"{name} {value:.1f} us" for name, value in found.items())
            value = found["thunder_fx"] / found["thunder.dynamo"]
            yield Row(f"steady call, {kind}, {grad}, to thunder.dynamo", value, limit, note=note)


def steps(quick: bool) -> Iterator[Row]:
    """A training step of small transformers, and how many graphs and regions each is made of."""
    import models

    for name in models.ZOO[: 2 if quick else None]:
        found = in_turns(1 if quick else 3, "step", ["thunder_fx", "thunder.dynamo"], name)
        value, spread, note = ratio(found, "thunder_fx", "thunder.dynamo", "ms")
        yield Row(f"step, {name}, to thunder.dynamo", value, 1.0, spread=spread, note=note)
        ours, theirs = found["thunder_fx"][-1], found["thunder.dynamo"][-1]
        for key in ("graphs", "regions"):
            if key in ours and key in theirs:
                note = f"{ours[key]} and {theirs[key]}"
                yield Row(f"{key}, {name}, to thunder.dynamo", ours[key] / theirs[key], 1.0, note=note)


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
        value, spread, note = ratio(found, "thunder_fx", "dynamo alone", "MiB")
        yield Row(f"{what}, to Dynamo alone", value, 1.05, spread=spread, note=note)
        value, spread, note = ratio(found, "thunder.dynamo", "dynamo alone", "MiB")
        yield Row(f"{what}, thunder.dynamo's", value, None, spread=spread, note=note)


def kept(quick: bool) -> Iterator[Row]:
    """What a compiled callable holds of Python's memory: records, graphs, traces and code, without its weights.

    Reported, and bounded: docs/lookups.md says by what. Fair: of each what goes when it is dropped and Dynamo is reset.
    """
    for layers in (2,) if quick else (2, 12):
        names = ["thunder_fx", "thunder.dynamo", "dynamo alone"]
        found = {name: measured("kept", name, layers) for name in names}
        ours = found["thunder_fx"]
        notes = [found[name].get("failed") or f"{name} {found[name]['KiB']:.0f} KiB" for name in names[1:]]
        if "KiB" in ours:
            notes.insert(
                0, f"of it the records {ours['records']:.0f} KiB; {ours['dropped']:.0f} KiB go without a reset"
            )
        yield Row(f"kept, Llama of {layers} layers", ours.get("KiB"), None, "KiB", note="; ".join(notes))


def lookups(quick: bool) -> Iterator[Row]:
    """last_backend(fn) beside a WeakKeyDictionary alone, with few and with many live entries."""
    alone = []
    for count in (1, 1_000, 100_000):
        found = measured("lookup", count)
        note = found.get("failed", "") or f"{found['last_backend']:.2f} us"
        value = found["last_backend"] / found["bare"] if "bare" in found else None
        yield Row(f"last_backend, {count:,} entries, to a bare look-up", value, 3.0, note=note)
        alone.append(found.get("last_backend"))
    if None not in alone:
        yield Row("last_backend, 100,000 entries to 1,000", alone[2] / alone[1], 1.5, note="constant, but for caches")


def views(quick: bool) -> Iterator[Row]:
    """save_reproducer() beside thunder.dynamo's, and explain() beside the first call, of a model of 12 layers."""
    found = measured("views", 12)
    if "failed" in found:
        yield Row("save_reproducer and explain, 12 layers", None, 1.0, note=found["failed"])
        return
    value = found["thunder_fx save"] / found["thunder.dynamo save"]
    yield Row("save_reproducer, 12 layers, to thunder.dynamo", value, 1.0, note=f"{found['thunder_fx save']:.2f} s")
    value = found["explain"] / found["thunder_fx first call"]
    yield Row("explain, 12 layers, to the first call", value, 0.03, note=f"{found['explain'] * 1e3:.0f} ms")


def imports(quick: bool) -> Iterator[Row]:
    """`import thunder_fx` beside `import torch`, each in processes of their own."""
    found = in_turns(3 if quick else 5, "imports", ["thunder_fx", "torch"])
    value, spread, note = ratio(found, "thunder_fx", "torch", "seconds")
    yield Row("import thunder_fx, to import torch", value, 0.02, spread=spread, note=note)


BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    each.__name__: each for each in (imports, lookups, steady_state, first_call, steps, memory, kept, views)
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, default=None)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args(arguments)
    start, rows = datetime.datetime.now(), []
    console = Console(stderr=True)
    for name in options.only or BENCHMARKS:
        with console.status(f"{name} ...", spinner="line"):
            for row in BENCHMARKS[name](options.quick):
                rows.append(row)
                console.print(f"{row.what}: {shown(row)}", highlight=False)
    print_table(rows)
    target = options.json or HERE / ("results-quick.json" if options.quick else "results.json")
    target.write_text(json.dumps(results(rows, start, options), indent=1) + "\n")
    unmet = [row for row in rows if row.is_met is False]
    print(f"{len(unmet)} of {sum(row.limit is not None for row in rows)} targets are not met; results in {target.name}")
    return 0


def shown(row: Row) -> str:
    return "-" if row.value is None else f"{row.value:.3g}" if row.unit == "ratio" else f"{row.value:.3g} {row.unit}"


def print_table(rows: Sequence[Row]) -> None:
    table = Table(title="thunder_fx beside others", title_justify="left")
    table.add_column("what", overflow="fold")
    for heading in ("value", "target", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        limit = "" if row.limit is None else f"<= {row.limit:g}" + ("" if row.is_met else " NOT MET")
        table.add_row(row.what, shown(row), limit, row.spread)
    Console(width=100 if not sys.stdout.isatty() else None).print(table)
    for row in rows:
        if row.note:
            print(f"  {row.what}: {row.note}")


def results(rows: Sequence[Row], start: datetime.datetime, options: argparse.Namespace) -> dict[str, Any]:
    from thunder_fx.repro.bundle import hardware, versions

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    return {
        "at": start.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now() - start).total_seconds()),
        "quick": options.quick,
        "commit": commit or None,
        "versions": versions(),
        "machine": hardware(),
        "rows": [{**asdict(row), "is_met": row.is_met} for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
