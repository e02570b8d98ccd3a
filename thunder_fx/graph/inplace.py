"""In-place writes: which nodes write, into which storage, and which part of the graph thunder must therefore not see.

thunder (0.2.6) returns right values and silently wrong gradients after a write to a tensor that takes part in autograd
or that has another name. So it sees no write at all: everything from a storage's first use in the graph to the last
write into it is one stretch, and Inductor, which makes writes functional, takes the stretch whole.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import structure

_WRITING_OPERATORS = frozenset(
    {
        operator.iadd,
        operator.iand,
        operator.ifloordiv,
        operator.ilshift,
        operator.imatmul,
        operator.imod,
        operator.imul,
        operator.ior,
        operator.ipow,
        operator.irshift,
        operator.isub,
        operator.itruediv,
        operator.ixor,
        operator.setitem,
    }
)


# Where running_mean stands among the arguments (running_var follows), and the name of number 5, which turns writing on.
_STATISTICS: dict[Any, tuple[int, str]] = {
    F.batch_norm: (1, "training"),
    F.instance_norm: (1, "use_input_stats"),
    torch.batch_norm: (3, "training"),
    torch.instance_norm: (3, "use_input_stats"),
}


class Stretch(NamedTuple):
    """Calls number `first` to `last` of the graph, both included, belong together because of `writer`."""

    first: int
    last: int
    writer: Node


def stretches(graph_module: GraphModule) -> list[Stretch]:
    """The parts of a graph that hold every use of a written storage up to the last write into it."""
    nodes = structure.calls(graph_module)
    if not any(True for node in nodes for _ in written(node)):
        return []
    position = {node: index for index, node in enumerate(nodes)}
    first_use = _first_uses(graph_module, position)
    last_write: dict[int | None, Node] = {}
    for node in nodes:
        for target in written(node):
            for storage in _storages(target):
                last_write[storage] = node
    if None in last_write:
        # A tensor whose storage cannot be told may share it with any other.
        return [Stretch(0, len(nodes) - 1, last_write[None])]
    return [Stretch(first_use[storage], position[node], node) for storage, node in last_write.items()]


def _first_uses(graph_module: GraphModule, position: dict[Node, int]) -> dict[int | None, int]:
    """For each storage, the position of the first call that makes it, or reads it where it comes from outside."""
    first: dict[int | None, int] = defaultdict(lambda: len(position))
    for node in graph_module.graph.nodes:
        users = [node] if node in position else [user for user in node.users if user in position]
        for storage in _storages(node):
            first[storage] = min([first[storage], *(position[user] for user in users)])
    return first


def _storages(node: Node) -> set[int | None]:
    """The storages behind a node's value; {None} where they cannot be told."""
    value = node.meta.get("example_value")
    if value is None and node.op != "get_attr":
        return {None}
    if value is None:
        attribute = _torch.attribute(node)
        return {_torch.storage_of(attribute)} if isinstance(attribute, torch.Tensor) else set()
    return {_torch.storage_of(tensor) for tensor in structure.tensors_of(node)}


def written(node: Node) -> Iterator[Node]:
    """The nodes whose values a node writes into."""
    arguments = [*node.args, *node.kwargs.values()]
    out = node.kwargs.get("out")
    if out is not None:
        yield from _nodes_in(out)
    if node.op == "call_method":
        if _writes_by_name(str(node.target)):
            yield from _nodes_in(node.args[0])
    elif isinstance(node.target, torch._ops.OpOverload):
        yield from _written_by_schema(node)
    elif isinstance(node.target, torch._ops.HigherOrderOperator):
        yield from _written_by_body(node)
    elif node.op == "call_function":
        if node.target in _WRITING_OPERATORS:
            yield from _nodes_in(node.args[0])
        elif (statistics := _running_statistics(node)) is not None:
            # Written at the region's end by thunder, which is right as long as nothing else in the graph looks at them.
            if any(len(target.users) > 1 or target.op != "placeholder" for target in statistics):
                yield from statistics
        elif _is_in_place(node):
            # Optimisers' fused functions write several of their lists.
            several = getattr(node.target, "__name__", "").startswith(("_foreach_", "_fused_"))
            yield from _nodes_in(arguments if several else (arguments or [None])[0])


def _running_statistics(node: Node) -> list[Node] | None:
    """The running mean and variance that a batch_norm or instance_norm updates; None for any other call."""
    if node.target not in _STATISTICS:
        return None
    position, flag = _STATISTICS[node.target]
    mean, var, from_batch = (
        node.args[at] if at < len(node.args) else node.kwargs.get(name)
        for at, name in ((position, "running_mean"), (position + 1, "running_var"), (5, flag))
    )
    return _nodes_in([mean, var]) if from_batch is not False else []


def _nodes_in(argument: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return found


def _writes_by_name(name: str) -> bool:
    """torch's convention: a trailing underscore writes; so do the in-place dunders."""
    if name.startswith("__") and name.endswith("__"):
        return name == "__setitem__" or (name[2] == "i" and hasattr(operator, f"__{name[3:-2]}__"))
    return name.endswith("_")


def _is_in_place(node: Node) -> bool:
    assert callable(node.target)
    name = getattr(node.target, "__name__", "")
    if _writes_by_name(name) or name.startswith("_fused_"):
        return True
    signature = _signature_with_inplace(node.target)
    if signature is None:
        return False
    try:
        return bool(signature.bind(*node.args, **node.kwargs).arguments.get("inplace", False))
    except TypeError:  # arguments that do not fit are for whoever runs the node to report
        return False


@functools.cache
def _signature_with_inplace(target: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function that has an `inplace` argument; None for any other."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # builtins have none
        return None
    return signature if "inplace" in signature.parameters else None


def _written_by_schema(node: Node) -> Iterator[Node]:
    """What an ATen or custom operator says of itself."""
    schema = node.target._schema  # type: ignore[union-attr]
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes_in(value)


def _written_by_body(node: Node) -> Iterator[Node]:
    """What is handed to a higher-order operator that has a write in one of its bodies: all of it may be written."""
    operands = _nodes_in([node.args, node.kwargs])
    bodies = [_torch.attribute(operand) for operand in operands if operand.op == "get_attr"]
    if any(_has_write(body) for body in bodies if isinstance(body, GraphModule)):
        yield from (operand for operand in operands if any(structure.tensors_of(operand)))


def _has_write(body: GraphModule) -> bool:
    nodes = structure.calls(body)
    return any(_running_statistics(node) or any(True for _ in written(node)) for node in nodes)
