"""What must come before what in a graph, beyond who reads whose value: writes, random numbers, modes, effects.

Two nodes that this order leaves free may change places without anyone seeing it: partition.py moves nodes by it. And
by it support.py closes a group of nodes that must stay together, and others tell dead code. Nothing here changes a
graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import networkx as nx
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import randomness, structure, writes


def order(graph_module: GraphModule) -> nx.DiGraph:
    """A graph over the calls of a graph, with an edge from each to every one that must come after it."""
    nodes = structure.calls(graph_module)
    found = nx.DiGraph()
    found.add_nodes_from(nodes)
    for node in nodes:
        found.add_edges_from((operand, node) for operand in node.all_input_nodes if operand in found)
    _add_barriers(found, nodes)
    _add_chain(found, [node for node in nodes if randomness.draws(node)])
    _add_writes(found, nodes)
    return found


def _add_barriers(found: nx.DiGraph, nodes: list[Node]) -> None:
    """Nothing moves across a mode, or across a call that has no value and so is there for its effect."""
    barrier: Node | None = None
    since: list[Node] = []
    for node in nodes:
        if barrier is not None:
            found.add_edge(barrier, node)
        if _is_barrier(node):
            found.add_edges_from((earlier, node) for earlier in since)
            barrier, since = node, []
        else:
            since.append(node)


def has_effect_beyond_writes(node: Node) -> bool:
    """Whether a call does more than to compute its value and to write into tensors."""
    if _is_barrier(node) or randomness.draws(node):
        return True
    if isinstance(node.target, _torch.HigherOrderOperator) or structure.name_of(node) in _REGISTERING:
        return True
    # A user's operator may print; torch's do not, and those of aten say what they change.
    return any(overload.namespace not in ("aten", "prims") for overload in structure.overloads_of(node))


_REGISTERING = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})


def _is_barrier(node: Node) -> bool:
    if node.target in _torch.MODE_SETTERS or structure.name_of(node).endswith("_nesting"):
        return True
    value = node.meta.get("example_value")
    # What writes is ordered by what it writes into. A number is a size, or the state of some context.
    has_value = any(True for _ in structure.tensors_of(node)) or structure.is_number(value)
    return not has_value and not any(True for _ in writes.written(node))


def _add_chain(found: nx.DiGraph, nodes: list[Node]) -> None:
    found.add_edges_from(itertools.pairwise(nodes))


def _add_writes(found: nx.DiGraph, nodes: list[Node]) -> None:
    """A reader of a storage keeps its place among the writes into it, under whatever name either knows it."""
    written = {node: writes.written_storages(node) for node in nodes}
    all_written = set[int | None]().union(*written.values())
    if not all_written:
        return
    for storage in all_written:
        # Whose storage cannot be told, may be any.
        touching = [
            node for node in nodes if storage is None or not writes.touched_storages(node).isdisjoint({storage, None})
        ]
        last_write: Node | None = None
        readers: list[Node] = []
        for node in touching:
            if last_write is not None:
                found.add_edge(last_write, node)
            if storage in written[node]:
                found.add_edges_from((reader, node) for reader in readers)
                last_write, readers = node, []
            else:
                readers.append(node)


def needed_by(
    nodes: list[Node], roots: Iterable[Node], leaves_out: Callable[[Node], bool] = lambda node: False
) -> set[Node]:
    """The roots and all calls that they need: what makes their operands, and what writes into what they touch.

    What `leaves_out` says is not needed, nor anything for its sake.
    """
    writers: dict[int | None, list[Node]] = {}
    for node in nodes:
        for storage in writes.all_written_storages(node):
            writers.setdefault(storage, []).append(node)
    calls, needed, pending = set(nodes), set[Node](), list(roots)
    while pending:
        node = pending.pop()
        if node in needed or leaves_out(node):
            continue
        needed.add(node)
        pending += [operand for operand in node.all_input_nodes if operand in calls]
        if writers:
            pending += [n for storage in writes.touched_storages(node) for n in writers.get(storage, ())]
            pending += writers.get(None, ())
    return needed


def units(found: nx.DiGraph, groups: Iterable[Iterable[Node]]) -> nx.DiGraph:
    """The order with each group made one unit, with all that lies between its members; overlapping groups are joined.

    What lies between depends on one member and is needed by another: so it can be run neither before nor after them.
    A unit is a number; its nodes are its "members".
    """
    joined = found.copy()
    for group in groups:
        ring = list(group)
        joined.add_edges_from(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return nx.condensation(joined)


def closed(found: nx.DiGraph, group: Iterable[Node]) -> set[Node]:
    """A group of nodes that belong together, with all that lies between them."""
    members = set(group)
    every: Iterable[set[Node]] = dict(units(found, [members]).nodes(data="members")).values()
    return set[Node]().union(*(unit for unit in every if not unit.isdisjoint(members)))
