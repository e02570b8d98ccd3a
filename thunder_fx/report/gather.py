"""explain(): joining what is known of a callable. It reads records, Dynamo's counters and thunder's traces.

Nothing here compiles, and no trace is printed before someone asks for its text.
"""

from __future__ import annotations

import functools
import itertools
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from operator import getitem
from typing import Any

from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.compiler import ThunderCompiler
from thunder_fx.graph import partition, structure
from thunder_fx.inspection import why_no_graph
from thunder_fx.options import describe_callable, shown
from thunder_fx.registry import candidates, has_compiler_as_backend, resolve
from thunder_fx.report.explanation import Explanation
from thunder_fx.report.model import Cost, Edge, GraphReport, Limit, Operator, Option, RegionReport, Split, Stage
from thunder_fx.subgraph import CompilerType, Region, SplitReason, SubgraphInfo

_NAMES = {CompilerType.THUNDER: "thunder", CompilerType.TORCH_INDUCTOR: "inductor", CompilerType.EAGER: "eager"}
# From how many compilations of a region on it is worth a word.
MANY_COMPILATIONS = 3


def explain(fn: Callable[..., Any]) -> Explanation:
    """What was compiled of a callable, on one page: graphs, regions, splits and what they cost, traces, seconds.

        tfoo = thunderfx(foo)
        tfoo(x)
        print(thunder_fx.explain(tfoo))                 # .summary() is the first part alone
        thunder_fx.explain(tfoo).to_html("foo.html")

    It reads what is there, and compiles nothing. Call it again for what was compiled since.

    Args:
        fn: what get_subgraph_info() takes.

    Returns:
        An Explanation: print it; .summary(), .to_dict(), .to_html(path), .profile(*args). Where nothing was captured
        yet, its first line says why.

    Raises:
        NotCompiledError: (a TypeError) no ThunderCompiler is known for `fn`.
    """
    compiler = resolve(fn)
    infos = list(compiler.subgraph_infos)
    return Explanation(
        callable=describe_callable(fn),
        options=_options(fn, compiler),
        graphs=tuple(_graphs(infos)),
        costs=costs(infos),
        limit=_limit(fn, compiler),
        diagnosis=why_no_graph(fn, compiler) if not infos else None,
        note=_note(fn, infos),
        _fn=_weakly(fn),
    )


def _weakly(fn: Any) -> Callable[[], Any]:
    """What gives a callable as long as it lives. A bound method, or a partial, is an object of the moment."""
    if isinstance(fn, types.MethodType):
        return weakref.WeakMethod(fn)
    if isinstance(fn, functools.partial):
        inner = _weakly(fn.func)
        return lambda: None if inner() is None else functools.partial(inner(), *fn.args, **fn.keywords)
    try:
        return weakref.ref(fn)
    except TypeError:
        return lambda: fn


def _note(fn: Any, infos: Sequence[SubgraphInfo]) -> str | None:
    """Where several callables share a ThunderCompiler: whose the graphs are."""
    places = {info.source for info in infos if info.source is not None and not _is_rest(info)}
    code = _code_of(fn)
    if code is None or not infos or not has_compiler_as_backend(fn):
        return None
    if not _torch.was_seen(code):
        return f"{describe_callable(fn)} has not been called yet: these are graphs of others of its ThunderCompiler"
    if len({place[:2] for place in places}) > 1:
        return "the graphs are those of all callables of its ThunderCompiler"
    return None


def _code_of(fn: Any) -> types.CodeType | None:
    key = next((key for key in candidates(fn) if _torch.context_of(key) is not None), None)
    return _torch.guarded_code_of(key) if key is not None else None


def _options(fn: Any, compiler: ThunderCompiler) -> tuple[Option, ...]:
    told = [Option(name, shown(value), "thunder.jit") for name, value in compiler.thunder_options.items()]
    is_by_hand = has_compiler_as_backend(fn)
    for name, value in compiler.torch_compile_options.items():
        if name in ("mode", "options", "dynamic"):
            receiver = "Inductor's regions" if is_by_hand else "torch.compile, and Inductor's regions"
        else:
            receiver = "nobody: torch.compile was called without thunder_fx" if is_by_hand else "torch.compile"
        told.append(Option(name, shown(value), receiver))
    return tuple(told)


def _limit(fn: Any, compiler: ThunderCompiler) -> Limit | None:
    """Of all code that was compiled for a callable, what follows a graph break included, the nearest to its limit."""
    key = next((key for key in candidates(fn) if _torch.context_of(key) is not None), None)
    hook = getattr(compiler, "_hook", None)
    if key is None or hook is None:
        return None
    context, own = _torch.context_of(key), compiler.torch_compile_options.get("recompile_limit")
    codes = hook.codes()
    codes += [code] if (code := _code_of(fn)) is not None else []
    limits = [
        Limit(usage.own, usage.own_limit, usage.total, usage.total_limit)
        for usage in (_torch.cache_usage(code, context, own) for code in codes)
    ]
    return max(limits, key=lambda each: max(each.used / each.limit, each.used_by_all / each.limit_of_all), default=None)


def _graphs(infos: Sequence[SubgraphInfo]) -> Iterator[GraphReport]:
    breaks: dict[str, str] = {}
    last: str | None = None
    for info in infos:
        yield graph_report(info, _break_before(info, breaks, last))
        if info.graph_break_reason:
            last = info.graph_break_reason
            if found := re.search(r":(\d+)\)\s*$", last):
                breaks[found[1]] = last


def _is_rest(info: SubgraphInfo) -> bool:
    """Whether a graph is of what Dynamo calls the rest of a function after a graph break."""
    return info.source is not None and info.source.function.startswith("torch_dynamo_resume_in_")


def _break_before(info: SubgraphInfo, breaks: Mapping[str, str], last: str | None) -> str | None:
    """Why the graph before ended: its reason names the line, and so does what comes after it."""
    if not _is_rest(info) or info.source is None:
        return None
    return breaks.get(info.source.function.rpartition("_at_")[2], last)


def graph_report(info: SubgraphInfo, previous_break: str | None = None) -> GraphReport:
    """What is known of one graph."""
    split, captured = info.original_split_graph_module, info.original_graph_module
    source = info.source
    regions = tuple(_region(region, split) for region in info.regions)
    place = (source.file, source.line) if source is not None else None
    seconds = {"dynamo": _torch.dynamo_seconds(info.compile_id, place), **info.phases}
    first_calls = [region.seconds["first call"] for region in info.regions if "first call" in region.seconds]
    if first_calls:
        seconds["first calls"] = sum(first_calls)
    return GraphReport(
        graph_id=info.graph_id,
        compile_id=str(info.compile_id) if info.compile_id is not None else None,
        function=source.function if source is not None else None,
        file=source.file if source is not None else None,
        line=source.line if source is not None else None,
        previous_break=previous_break,
        graph_break=info.graph_break_reason,
        recompile=info.recompile_reason,
        inputs=structure.example_inputs(captured) if captured is not None else (),
        nodes=len(structure.calls(captured)) if captured is not None else 0,
        regions=regions,
        splits=tuple(_splits(info, regions)),
        edges=tuple(_edges(split, info.regions)) if split is not None else (),
        seconds={name: value for name, value in seconds.items() if value is not None},
        overlapping_calls=info.overlapping_calls,
        error=info.error,
    )


def _region(region: Region, split: GraphModule | None) -> RegionReport:
    nodes = structure.calls(partition.region_graph(split, region.name)) if split is not None else []
    final = [traces[-1] for traces in (region.traces, region.backward_traces) if traces]
    by_thunder = _thunder.phases(region._compiled) if region.compiler is CompilerType.THUNDER else {}
    return RegionReport(
        name=region.name,
        compiler=_NAMES[region.compiler],
        operators=tuple(Operator(node.name, target_of(node), structure.source_line(node)) for node in nodes),
        inputs=region.example_inputs,
        executors=_thunder.executor_counts(final),
        seconds={**region.seconds, **by_thunder},
        compilations=region.compilations,
        error=region.error,
        warning=_warning(region),
        forward=_stages(region.traces),
        backward=_stages(region.backward_traces),
        prologue=_stages(region.prologue_traces),
    )


def _stages(traces: Sequence[Any]) -> tuple[Stage, ...]:
    return tuple(Stage(*_thunder.pass_of(trace), trace) for trace in traces)


def _warning(region: Region) -> str | None:
    if region.compilations >= MANY_COMPILATIONS:
        return (
            f"thunder compiled it {region.compilations} times, once for each set of sizes that it has run with: "
            "each new one costs a compilation"
        )
    if region.interpreted:
        return "thunder had to interpret Python's bytecode to trace it, which is slow"
    return None


def target_of(node: Node) -> str:
    """What a node calls, as people name it: `sin`, `aten.sin.default`."""
    if structure.overloads_of(node):
        return str(node.target)
    return structure.name_of(node) or str(node.target)


def _splits(info: SubgraphInfo, regions: Sequence[RegionReport]) -> Iterator[Split]:
    where = {operator.node: (operator.target, region.name) for region in regions for operator in region.operators}
    if not where and info.original_graph_module is not None:  # it failed before it was split
        where = {node.name: (target_of(node), "") for node in structure.calls(info.original_graph_module)}
    for reason in info.split_reasons:
        node = node_of(reason)
        target, region = where.get(str(node), ("", None))
        yield Split(
            node,
            target or str(node or "a whole region"),
            region or None,
            reason.reason_type.name,
            _ADDRESS.sub("", reason.info),
            reason.exception,
            reason.source,
        )


def node_of(reason: SplitReason) -> str | None:
    """The node that a reason is about; thunder.dynamo's own say it in their text alone."""
    found = re.match(r"node with name: (\w+)", reason.info)
    return reason.node or (found[1] if found else None)


def _edges(split: GraphModule, regions: Sequence[Region]) -> Iterator[Edge]:
    """The values that one region makes and another reads, each once for each that reads it."""
    inputs = {region.name: region.example_inputs for region in regions}
    for node in split.graph.find_nodes(op="call_module"):
        for value, given in zip(node.args, inputs.get(str(node.target), ()), strict=False):
            maker = value.args[0] if isinstance(value, Node) and value.target is getitem else value
            if isinstance(value, Node) and isinstance(maker, Node) and maker.op == "call_module":
                dtype = str(given.dtype).removeprefix("torch.") if given.is_tensor else None
                shape = given.shape if given.is_tensor else None
                yield Edge(value.name, str(maker.target), str(node.target), dtype, shape)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# What a split costs


def costs(infos: Sequence[SubgraphInfo]) -> tuple[Cost, ...]:
    """For each operator that thunder does not run, how many regions exist only because of it, the most costly first.

    Operators in one region cost nothing each, and something together: those are named together.
    """
    blocked = [_blocking(info) for info in infos]
    places: dict[str, int] = {}
    together: set[frozenset[str]] = set()
    for regions in blocked:
        for _, operators in regions:
            together.add(frozenset(operators))
            for operator in operators:
                places[operator] = places.get(operator, 0) + 1
    total = sum(map(len, blocked))

    def saved(operators: Set[str]) -> int:
        return sum(_count(regions, frozenset()) - _count(regions, operators) for regions in blocked)

    alone = {operator: saved({operator}) for operator in places}
    found = [Cost(operator, count, alone[operator], total) for operator, count in places.items()]
    for several in together:
        if 1 < len(several) <= 4 and (gain := saved(several)) > sum(alone[operator] for operator in several):
            count = sum(places[operator] for operator in several)
            found.append(Cost(" and ".join(sorted(several)), count, gain, total))
    return tuple(sorted(found, key=lambda cost: (-cost.regions, -cost.places, cost.operator)))


def _blocking(info: SubgraphInfo) -> list[tuple[CompilerType, list[str]]]:
    """For each region who runs it, and the operators in it that thunder does not run, once for each node."""
    split, reasons = info.original_split_graph_module, {node_of(reason) for reason in info.split_reasons}
    if split is None:
        return []
    return [
        (
            region.compiler,
            [
                target_of(node)
                for node in structure.calls(partition.region_graph(split, region.name))
                if node.name in reasons
            ],
        )
        for region in info.regions
    ]


def _count(regions: Sequence[tuple[CompilerType, list[str]]], supported: Set[str]) -> int:
    """How many regions there would be if thunder ran more operators: their regions join their neighbours."""
    kinds: list[Any] = []
    for number, (compiler, operators) in enumerate(regions):
        is_thunders = compiler is CompilerType.THUNDER or (bool(operators) and supported >= set(operators))
        kinds.append("thunder" if is_thunders else number)
    return len(list(itertools.groupby(kinds)))
