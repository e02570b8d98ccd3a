"""Small changes of the captured graph before it is split, each of which leaves every value as it is."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.graph import dependencies, equivalents, functorch, gradients, inplace, modes, structure, support, writes
from thunder_fx.graph.modes import Modes


def rewrite(graph_module: GraphModule, options: Mapping[str, Any], initial: Modes) -> None:
    """All rewrites, in place, in nested graphs too.

    `options` are thunder.jit's, `initial` the modes under which the graph begins.
    """
    _rewrite(graph_module, options, initial)
    gradients.mark_constants(graph_module)


def _rewrite(graph_module: GraphModule, options: Mapping[str, Any], initial: Modes) -> None:
    for node, body in structure.nested_graphs(graph_module):
        _rewrite(body, options, modes.around(graph_module, initial)[node])
    _thunder.remove_empty_autocast(graph_module)
    _remove_idle(graph_module)
    inplace.make_out_of_place(graph_module, initial)
    _replace_refused(graph_module, options, initial)
    _remove_identities(graph_module)
    _remove_dead(graph_module)
    _spread_tuples(graph_module)
    graph_module.graph.lint()
    _torch.generate_code(graph_module)


def _replace_refused(graph_module: GraphModule, options: Mapping[str, Any], initial: Modes) -> None:
    """Put its equivalent in the place of a call that thunder refuses, where thunder takes that."""
    judge = support.Judge(options, graph_module)
    modes_at = modes.around(graph_module, initial)
    nodes = structure.calls(graph_module)
    transformed = functorch.inside(nodes)
    for node in nodes:
        equivalent = None if node in transformed else equivalents.find(node)
        if equivalent is not None and judge.reason_against(node, modes_at[node]) is not None:
            _replace(node, equivalent, judge, modes_at[node])


def _replace(node: Node, equivalent: equivalents.Equivalent, judge: support.Judge, around: Modes) -> None:
    made: list[Node] = []

    def build(function: Any, *args: Any, **kwargs: Any) -> Node:
        torch.fx.node.map_aggregate((args, kwargs), _refuse_symbol)
        with node.graph.inserting_before(node):
            new = node.graph.call_function(function, args, kwargs)
        made.append(new)
        new.meta = _place_of(node)
        modes.compute_value(new, around)
        return new

    try:
        result = equivalent(build, *node.args, **node.kwargs)
    except _NOT_APPLICABLE:
        result = None
    if result is None or not _stands_for(result, node) or any(judge.reason_against(n, around) for n in made):
        for new in reversed(made):
            node.graph.erase_node(new)
        return
    result.meta["example_value"] = node.meta["example_value"]
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _refuse_symbol(leaf: Any) -> Any:
    """A symbolic size is a value of the graph; as a plain argument it would be read when the graph is written out."""
    if isinstance(leaf, torch.SymInt):
        raise ValueError("a symbolic size must be a value of the graph")
    return leaf


# The call has arguments that the equivalent has no name for, or values for which it makes no sense.
_NOT_APPLICABLE = (TypeError, ValueError, AttributeError, IndexError, RuntimeError)


def _stands_for(new: Node, old: Node) -> bool:
    a, b = new.meta["example_value"], old.meta.get("example_value")
    if not isinstance(b, torch.Tensor) or a.dtype is not b.dtype or a.device != b.device:
        return False
    # Where sizes are static a region gives its results eager's strides, whatever they are inside.
    is_static = not any(isinstance(size, torch.SymInt) for size in (*b.shape, *b.stride()))
    return a.shape == b.shape if is_static else structure.same_layout(a, b)


def _remove_identities(graph_module: GraphModule) -> None:
    """Calls that return an operand itself, as `x.float()` of a float: no region may return a tensor twice."""
    nodes = structure.calls(graph_module)
    transformed = functorch.inside(nodes)
    for node in nodes:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or node in transformed or any(True for _ in writes.written(node)):
            continue
        same = next((n for n in node.all_input_nodes if n.meta.get("example_value") is value), None)
        if same is not None and not isinstance(node.target, _torch.HigherOrderOperator):
            node.replace_all_uses_with(same)
            graph_module.graph.erase_node(node)


def _remove_dead(graph_module: GraphModule) -> None:
    """Calls that compute what nothing reads: Dynamo leaves some, and the rewrites more.

    A write into a value of the graph is dead if nothing alive reads that storage. In a region of its own, or beside
    others, dead code would cost time, and turn a missing gradient into one of zeros.
    """
    nodes = structure.calls(graph_module)
    transformed = functorch.inside(nodes)
    seen_outside = writes.storages_from_outside(graph_module) | {None}
    written = {node: writes.all_written_storages(node) for node in nodes}
    roots = [
        node
        for node in nodes
        if structure.is_result(node)
        or node in transformed
        or not written[node].isdisjoint(seen_outside)
        or dependencies.has_effect_beyond_writes(node)
    ]
    alive = dependencies.needed_by(nodes, roots)
    for node in reversed(nodes):
        if node not in alive:
            graph_module.graph.erase_node(node)


# Calls that no compiler has a name for, and that nothing misses: autograd.Function's contexts, and a count of who uses
# which part of torch.
_IDLE = (torch.autograd.function.FunctionCtx, _torch.log_api_usage_once)


def _remove_idle(graph_module: GraphModule) -> None:
    for target in _IDLE:
        for node in graph_module.graph.find_nodes(op="call_function", target=target):
            if not node.users:
                graph_module.graph.erase_node(node)


def _spread_tuples(graph_module: GraphModule) -> None:
    """Read a tuple's elements where it is made, and give them to whoever took the tuple: no region hands one over."""
    nodes = structure.calls(graph_module)
    transformed = functorch.inside(nodes)
    for node in nodes:
        value = node.meta.get("example_value")
        if node not in transformed and isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            _spread(node, value)


def _spread(node: Node, value: Sequence[Any]) -> None:
    readers = [user for user in node.users if _reads_element(user, node)]
    takers = [user for user in node.users if user not in readers and user.op != "output"]
    after = node
    for reader in readers:
        after.append(reader)
        after = reader
    if not takers:
        return
    elements = []
    for index, element in enumerate(value):
        with node.graph.inserting_after(after):
            after = node.graph.call_function(operator.getitem, (node, index))
        after.meta = {**_place_of(node), "example_value": element}
        elements.append(after)
    for taker in takers:
        taker.args = torch.fx.map_arg(taker.args, lambda n: tuple(elements) if n is node else n)
        taker.kwargs = torch.fx.map_arg(dict(taker.kwargs), lambda n: tuple(elements) if n is node else n)


def _place_of(node: Node) -> dict[str, Any]:
    """The metadata of where a node comes from."""
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack", "source_fn_stack") if key in node.meta}


def _reads_element(user: Node, value: Node) -> bool:
    return user.target is operator.getitem and user.args[0] is value and isinstance(user.args[1], int)
