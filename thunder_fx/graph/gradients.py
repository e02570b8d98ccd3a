"""Which calls of a graph are constant to autograd: eager gives their results no gradient, or nobody can ask for one.

A region has a single autograd node. An input that only such calls read would get a gradient of zeros from it, where
eager leaves the gradient out; and an operator may lack a derivative that nobody needs.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from thunder_fx.graph import dependencies, structure, writes

# In the metadata of each call of a marked graph; it is copied with the graph.
_CONSTANT = "thunder_fx_constant_to_autograd"


def mark_constants(graph_module: GraphModule) -> None:
    """Note of each call of a graph whether a derivative of it is needed.

    It is not where its result has no gradient in eager, and where no result of the graph depends on one, nor an input
    that the graph writes into. Nested graphs may be run by anyone: there the first alone counts.
    """
    nodes = structure.calls(graph_module)
    changed = {storage for node in nodes for storage in writes.written_storages(node)}

    def has_constant_results(node: Node) -> bool:
        # Dynamo's fake tensors show what becomes of a tensor that is written into, and not what it was.
        return _has_constant_results(node) and changed.isdisjoint(writes.storages(node))

    outside = writes.storages_from_outside(graph_module)
    roots = [
        node
        for node in nodes
        if structure.is_result(node) or not outside.isdisjoint(writes.written_storages(node)) or _may_hide_a_use(node)
    ]
    needed = dependencies.needed_by(nodes, roots, has_constant_results)
    for node in nodes:
        # A mode must not be set inside of another: what sets one is no constant.
        node.meta[_CONSTANT] = node not in needed and any(True for _ in structure.tensors_of(node))
    for _, body in structure.nested_graphs(graph_module):
        _mark_nested(body)


def _mark_nested(body: GraphModule) -> None:
    nodes = structure.calls(body)
    changed = {storage for node in nodes for storage in writes.written_storages(node)}
    for node in nodes:
        node.meta[_CONSTANT] = _has_constant_results(node) and changed.isdisjoint(writes.storages(node))
    for _, nested in structure.nested_graphs(body):
        _mark_nested(nested)


def _may_hide_a_use(node: Node) -> bool:
    """Calls that register something with autograd, or differentiate."""
    name = structure.name_of(node)
    return "hook" in name or ("grad" in name and "set_grad" not in name)


def is_constant(node: Node) -> bool:
    """Whether a call needs no derivative, whatever its operands need; by its result alone until its graph is marked."""
    known: bool | None = node.meta.get(_CONSTANT)
    return _has_constant_results(node) if known is None else known


def _has_constant_results(node: Node) -> bool:
    tensors = list(structure.tensors_of(node))
    return bool(tensors) and not any(tensor.requires_grad for tensor in tensors)


def takes_part(graph_module: GraphModule) -> bool:
    """Whether a graph has an input or a constant that needs a gradient."""
    sources = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    return any(isinstance(t, torch.Tensor) and t.requires_grad for node in sources for t in structure.tensors_of(node))
