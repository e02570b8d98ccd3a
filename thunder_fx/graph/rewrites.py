"""Small changes of the captured graph before it is split, each of which leaves every value as it is."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch


def rewrite(graph_module: GraphModule) -> None:
    """All rewrites, in place."""
    _thunder.remove_empty_autocast(graph_module)
    _remove_unused_contexts(graph_module)
    _gather_elements(graph_module)
    graph_module.graph.lint()
    _torch.generate_code(graph_module)


def _remove_unused_contexts(graph_module: GraphModule) -> None:
    """autograd.Function's contexts, which Dynamo makes and nothing reads: no compiler has a name for them."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.autograd.function.FunctionCtx):
        if not node.users:
            graph_module.graph.erase_node(node)


def _gather_elements(graph_module: GraphModule) -> None:
    """Moves each `value[i]` of a tuple to where the tuple is made: no region then has to hand a tuple to the next."""
    for node in list(graph_module.graph.nodes):
        if not isinstance(node.meta.get("example_value"), (list, tuple)):
            continue
        after = node
        for user in list(node.users):
            if user.target is operator.getitem and _only_reads(user, node):
                after.append(user)
                after = user


def _only_reads(getitem: Node, value: Node) -> bool:
    return getitem.args[0] is value and getitem.all_input_nodes == [value]
