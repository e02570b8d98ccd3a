"""Splitting a graph into regions: which node belongs to which region, and the split itself by torch.fx.

A region is a run of neighbouring nodes that one compiler takes; nodes change places, where nobody can see it, so that
the regions are few. What each node's compiler is, support.py has decided.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from thunder_fx import _torch
from thunder_fx.graph import dependencies, randomness, structure
from thunder_fx.subgraph import CompilerType

_PREFIX = {CompilerType.THUNDER: "thunder", CompilerType.TORCH_INDUCTOR: "inductor", CompilerType.EAGER: "eager"}


@dataclass(frozen=True)
class Part:
    """One region before it is compiled."""

    name: str
    compiler: CompilerType
    nodes: tuple[str, ...]


def split(
    graph_module: GraphModule, unsupported: Collection[Node], groups: Sequence[Collection[Node]] = ()
) -> tuple[GraphModule, list[Part]]:
    """The graph as a GraphModule of regions, each a GraphModule of its own, and its regions in order of execution.

    `groups` are nodes that must stay in one region, all of them unsupported. The graph's nodes may change places.
    """
    number_of = _assign(graph_module, unsupported)
    count = max(number_of.values(), default=0) + 1
    if count > 1:
        is_whole = all(len({number_of[node] for node in group}) == 1 for group in groups)
        number_of = _gather(graph_module, unsupported, groups, count if is_whole else None) or number_of
    runs: dict[int, list[Node]] = {}
    for node, number in number_of.items():
        runs.setdefault(number, []).append(node)
    unsupported_ones = set(unsupported)
    parts = []
    for number, nodes in runs.items():
        is_thunder = unsupported_ones.isdisjoint(nodes)
        compiler = CompilerType.THUNDER if is_thunder else CompilerType.TORCH_INDUCTOR
        parts.append(Part(f"{_PREFIX[compiler]}_{number}", compiler, tuple(node.name for node in nodes)))
    with _torch.eager_graph_modules():
        split_graph = split_module(
            graph_module,
            None,  # type: ignore[arg-type]  # only for call_module nodes' parents; thunder.dynamo passes None too
            number_of.__getitem__,
            keep_original_order=True,
            keep_original_node_name=True,
        )
    for module in split_graph.modules():
        if isinstance(module, GraphModule):
            structure.drop_links_to_inputs(module)
    for number, part in enumerate(parts):
        rename_region(split_graph, f"submod_{number}", part.name)
    _torch.generate_code(split_graph)
    return split_graph, parts


def _assign(graph_module: GraphModule, unsupported: Collection[Node]) -> dict[Node, int]:
    """The number of each node's region; neighbours of one kind share it."""
    numbers: dict[Node, int] = {}
    number, previous = 0, None
    for node in structure.calls(graph_module):
        if node.target in _torch.MODE_SETTERS and node not in unsupported:
            numbers[node] = number
            continue
        kind = node in unsupported
        if previous is not None and kind is not previous:
            number += 1
        previous = kind
        numbers[node] = number
    return numbers


def _gather(
    graph_module: GraphModule, unsupported: Collection[Node], groups: Sequence[Collection[Node]], at_most: int | None
) -> dict[Node, int] | None:
    """The fewest regions, by running each node with the first region that may hold it, and each group whole.

    Moves the nodes accordingly, and gives the number of each one's region; None, and nothing moved, where that would
    not make them fewer than `at_most`.
    """
    nodes = structure.calls(graph_module)
    units = dependencies.units(dependencies.order(graph_module), groups)
    members: dict[int, list[Node]] = dict(units.nodes(data="members"))
    along = _may_go_along(nodes, unsupported)
    kinds = {unit: _kind(several, unsupported, along) for unit, several in members.items()}
    plans = [_schedule(units, kinds, first) for first in (_Kind.THUNDER, _Kind.OTHER)]
    plan = min(plans, key=len)
    if at_most is not None and len(plan) >= at_most:
        return None
    number_of = {node: number for number, phase in enumerate(plan) for unit in phase for node in members[unit]}
    # In their old order within a region, and so in an order that all dependencies allow.
    ordered = sorted(nodes, key=number_of.__getitem__)
    _move(graph_module, ordered)
    return {node: number_of[node] for node in ordered}


class _Kind(enum.Enum):
    THUNDER = enum.auto()
    OTHER = enum.auto()
    EITHER = enum.auto()


def _kind(nodes: Collection[Node], unsupported: Collection[Node], along: Collection[Node]) -> _Kind:
    if any(node in unsupported for node in nodes):
        return _Kind.OTHER
    return _Kind.EITHER if all(node in along or node.target in _torch.MODE_SETTERS for node in nodes) else _Kind.THUNDER


def _may_go_along(nodes: list[Node], unsupported: Collection[Node]) -> set[Node]:
    """What thunder could run, but only unsupported nodes need: arithmetic on indices and masks, not a model's work."""
    along: set[Node] = set()
    for node in reversed(nodes):
        if node in unsupported or node.target in _torch.MODE_SETTERS or not node.users or randomness.draws(node):
            continue
        tensors = [tensor for each in (node, *node.all_input_nodes) for tensor in structure.tensors_of(each)]
        if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
            continue
        if all(user in unsupported or user in along for user in node.users):
            along.add(node)
    # But a graph is not taken from thunder altogether.
    others = [node for node in nodes if node not in unsupported and node.target not in _torch.MODE_SETTERS]
    return along if any(node not in along for node in others) else set()


def _schedule(units: nx.DiGraph, kinds: Mapping[int, _Kind], first: _Kind) -> list[list[int]]:
    """The units by region, the regions taking turns: each takes all of its kind that may run by then."""
    waiting = {unit: units.in_degree(unit) for unit in units}
    ready = {unit for unit, count in waiting.items() if count == 0}
    plan: list[list[int]] = []
    undecided: list[int] = []
    kind = first
    while ready:
        phase = undecided
        frontier = [unit for unit in ready if kinds[unit] in (kind, _Kind.EITHER)]
        while frontier:
            unit = frontier.pop()
            ready.discard(unit)
            phase.append(unit)
            for follower in units.successors(unit):
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    ready.add(follower)
                    if kinds[follower] in (kind, _Kind.EITHER):
                        frontier.append(follower)
        # What may run in either makes no region of its own.
        if any(kinds[unit] is kind for unit in phase):
            plan.append(phase)
            undecided = []
        else:
            undecided = phase
        kind = _Kind.OTHER if kind is _Kind.THUNDER else _Kind.THUNDER
    if undecided:
        plan[-1:] = [[*plan[-1], *undecided]] if plan else [undecided]
    return plan


def _move(graph_module: GraphModule, ordered: list[Node]) -> None:
    """Put the calls of a graph in this order, behind its inputs and attributes."""
    graph = graph_module.graph
    sources = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    (output,) = graph.find_nodes(op="output")
    for node in (*sources, *ordered):
        output.prepend(node)
    graph.lint()
    _torch.generate_code(graph_module)


def without_stitching(split_graph: GraphModule) -> Callable[..., Any] | None:
    """What runs a compiled graph of a single region, without the code around it; None where that does more."""
    nodes = list(split_graph.graph.nodes)
    regions = [node for node in nodes if node.op == "call_module"]
    placeholders = [node for node in nodes if node.op == "placeholder"]
    if len(regions) != 1 or list(regions[0].args) != placeholders:
        return None
    run: Callable[..., Any] = split_graph.get_submodule(str(regions[0].target)).forward
    results = nodes[-1].args[0]
    if results == (regions[0],):
        return lambda *args: (run(*args),)
    elements = [node for node in nodes if node.target is operator.getitem]
    in_order = [(element.args, number) for number, element in enumerate(elements)]
    if len(nodes) != len(placeholders) + 1 + len(elements) + 1 or not isinstance(results, (tuple, list)):
        return None
    if list(results) != elements or any(args != (regions[0], number) for args, number in in_order):
        return None
    return run if elements else None


def region_graph(split_graph: GraphModule, name: str) -> GraphModule:
    module = split_graph.get_submodule(name)
    assert isinstance(module, GraphModule)
    return module


def rename_region(split_graph: GraphModule, old: str, new: str) -> None:
    """Give a region another name in the split graph, as the submodule and as the node that calls it."""
    module = split_graph.get_submodule(old)
    split_graph.delete_submodule(old)
    split_graph.add_submodule(new, module)
    for node in split_graph.graph.find_nodes(op="call_module", target=old):
        node.target = new
        node.name = new
