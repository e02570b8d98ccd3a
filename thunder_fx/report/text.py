"""An Explanation on a terminal: a summary of at most 15 lines, then a tree. Laid out by rich, 80 columns at most."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from thunder_fx.report.explanation import Explanation
from thunder_fx.report.model import GraphReport, RegionReport, described_input

WIDTH, LINES = 80, 15
# Of what may be many, so many are shown.
_SHOWN = 5
_COLOURS = {"thunder": "green", "inductor": "blue", "eager": "yellow"}


class _Text(io.StringIO):
    """What is rendered, with no character that standard output cannot show."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def rendered(renderable: RenderableType, *, colours: bool = True) -> str:
    """As text; with colours where standard output is a terminal, and NO_COLOR is not set."""
    is_terminal = colours and sys.stdout is not None and sys.stdout.isatty()
    out = _Text()
    console = Console(
        file=out,
        force_terminal=is_terminal,
        width=min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns),
        no_color=bool(os.environ.get("NO_COLOR")) or not is_terminal,
        color_system="standard" if is_terminal else None,
        highlight=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(renderable, soft_wrap=False)
    text = "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))
    if out.encoding.lower().startswith("utf"):
        return text
    return text.replace("…", "~").encode(out.encoding, "replace").decode(out.encoding)


def everything(explanation: Explanation) -> RenderableType:
    if not explanation.graphs:
        return summary(explanation)
    return Group(summary(explanation), Text(""), *(_graph(graph) for graph in explanation.graphs))


def summary(explanation: Explanation) -> RenderableType:
    """The lines of the summary, each no longer than the terminal is wide."""
    lines = list(_summary(explanation))
    if explanation.graphs and len(lines) > LINES:
        lines = [*lines[: LINES - 1], Text(f"... {len(lines) - LINES + 1} more lines of this in the tree")]
    for line in lines:
        line.no_wrap, line.overflow = explanation.diagnosis is None, "ellipsis"
    return Group(*lines)


def _summary(explanation: Explanation) -> Iterator[Text]:
    if explanation.diagnosis is not None:
        yield Text(f"nothing was captured: {explanation.diagnosis}", style="bold red")
        yield from _options(explanation)
        return
    graphs = explanation.graphs
    regions = [region for graph in graphs for region in graph.regions]
    yield Text.assemble(
        (explanation.callable, "bold"), f": {many(len(graphs), 'graph')}, {many(len(regions), 'region')}"
    )
    share = explanation.share_of_thunder
    if share is not None:
        yield _field("operators", f"{explanation.operators}, of which thunder runs {share:.0%}")
    yield from _options(explanation)
    if explanation.note:
        yield _field("note", explanation.note, "yellow")
    if explanation.seconds["total"]:
        yield _field("compiled", seconds_in_words(explanation.seconds))
    yield from _limit(explanation)
    for graph in graphs[:3]:
        yield _field("graph", f"{_place(graph)}: {many(graph.operators, 'operator')}{_how(graph)}")
    if len(graphs) > 3:
        yield _field("", f"and {len(graphs) - 3} more")
    for error in [graph.error for graph in graphs if graph.error] + [r.error for r in regions if r.error]:
        yield _field("FAILED", error.partition("\n")[0], "bold red")
    for region in regions:
        if region.warning:
            yield _field("look at", f"{region.name}: {region.warning}", "yellow")
    costs = [cost for cost in explanation.costs if cost.regions] or list(explanation.costs)
    for number, cost in enumerate(costs[:3]):
        name = "not thunder" if not cost.regions else "then" if number else "fix first"
        yield _field(name, str(cost), "yellow")
    if explanation.peak_memory is not None:
        yield _field("memory", f"{explanation.peak_memory / 2**20:.0f} MiB at most on CUDA")


def _options(explanation: Explanation) -> Iterator[Text]:
    for option in explanation.options[:2]:
        yield _field("option", f"{option.name}={option.value} -> {option.receiver}")
    if len(explanation.options) > 2:
        yield _field("", f"and {len(explanation.options) - 2} more options")


def _limit(explanation: Explanation) -> Iterator[Text]:
    limit, recompiles = explanation.limit, explanation.recompiles
    if limit is None:
        return
    text = f"{many(recompiles, 'time')}; Dynamo has {limit.used} of {limit.limit} compilations"
    if limit.is_reached:
        yield _field("recompiled", f"{text}: LIMIT REACHED, it runs eager from here on", "bold red")
    elif limit.is_near:
        yield _field("recompiled", f"{text}: near the limit, where it runs eager", "yellow")
    else:
        yield _field("recompiled", text)


def _field(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:<11}", style or "dim"), " ".join(_without_controls(text).split()))


def _without_controls(text: str) -> str:
    """Text of the user's, which may have colours of its own, or what rings a terminal's bell."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)


def many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def seconds_in_words(seconds: dict[str, float]) -> str:
    """The total, and the phases that took the most of it."""
    phases = sorted(((value, name) for name, value in seconds.items() if name != "total"), reverse=True)
    told = [f"{name} {value:.2f}" for value, name in phases[:3] if value >= 0.005]
    return f"in {seconds['total']:.2f} s" + (f": {', '.join(told)}" if told else "")


def _place(graph: GraphReport) -> str:
    function = graph.function or "a graph"
    file = f" ({os.path.basename(graph.file)}:{graph.line})" if graph.file else ""
    return f"{graph.compile_id or graph.graph_id} {function}{file}"


def _how(graph: GraphReport) -> str:
    if graph.error:
        return ", not compiled"
    counts: dict[str, int] = {}
    for region in graph.regions:
        counts[region.compiler] = counts.get(region.compiler, 0) + 1
    return " in " + ", ".join(f"{count} {compiler}" for compiler, count in counts.items()) if counts else ""


# The tree


def _graph(graph: GraphReport) -> Tree:
    label = Text.assemble((f"graph {_without_controls(_place(graph))}", "bold"), f": {many(graph.nodes, 'node')}")
    tree = Tree(label, guide_style="dim")
    for heading, text in (
        ("begins after a graph break: ", graph.previous_break),
        ("compiled again, since: ", graph.recompile),
        ("ends in a graph break: ", graph.graph_break),
        ("FAILED: ", graph.error),
    ):
        if text:
            tree.add(_folded(heading + text, "red" if heading == "FAILED: " else ""))
    if graph.file:
        tree.add(_folded(f"{graph.file}:{graph.line}"))
    if graph.seconds:
        tree.add(_folded("seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in graph.seconds.items())))
    if graph.overlapping_calls:
        tree.add(_folded(f"{many(graph.overlapping_calls, 'call')} ran eager, since inputs overlapped", "yellow"))
    _some(tree, "inputs", [described_input(each) for each in graph.inputs])
    for region in graph.regions:
        _add_region(tree, region)
    for split in graph.splits:
        of = tree.add(_folded(f"{split.node or split.operator} is not run by thunder ({split.type})", "yellow"))
        if split.source:
            of.add(_folded(split.source))
        of.add(_folded(split.reason))
        if split.exception:
            of.add(_folded(split.exception))
    return tree


def _add_region(tree: Tree, region: RegionReport) -> None:
    by = f" ({', '.join(f'{name} {count}' for name, count in region.executors.items())})" if region.executors else ""
    text = Text(region.name, style=f"bold {_COLOURS[region.compiler]}")
    text.append(f": {many(len(region.operators), 'operator')}, run by {region.compiler}{by}", "not bold default")
    branch = tree.add(text)
    if region.error:
        branch.add(_folded(f"FAILED: {region.error}", "red"))
    if region.warning:
        branch.add(_folded(region.warning, "yellow"))
    told = [f"{name} {value:.2f}" for name, value in region.seconds.items()]
    if told:
        times = f"; compiled {many(region.compilations, 'time')}" if region.compilations else ""
        branch.add(_folded(f"seconds: {', '.join(told)}{times}"))
    if region.profile:
        measured = ", ".join(f"{name} {value * 1e6:.0f} us" for name, value in region.profile.items())
        branch.add(_folded(f"a call: {measured}", "cyan"))
    for name, stages in (("forward", region.forward), ("backward", region.backward)):
        if stages:
            branch.add(_folded(f"{name} traces: {' > '.join(dict.fromkeys(stage.name for stage in stages))}"))
    _some(branch, "operators", [operator.target for operator in region.operators])


def _some(tree: Tree, name: str, texts: list[str]) -> None:
    """The first of many."""
    if texts:
        more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        tree.add(_folded(f"{name}: {', '.join(texts[:_SHOWN])}{more}"))


def _folded(text: str, style: str = "") -> Text:
    return Text("\n".join(_cleaned(_without_controls(text).strip().split("\n"))), style=style, overflow="fold")


def _cleaned(lines: Iterable[str]) -> list[str]:
    """Without lines of blanks, and no more of them than a person reads."""
    kept = [line.rstrip() for line in lines if line.strip()]
    return kept if len(kept) <= 8 else [*kept[:8], f"... {len(kept) - 8} more lines"]
