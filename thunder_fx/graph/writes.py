"""In-place writes: which nodes write, and into which storage. What follows of it is inplace.py's."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

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


def written_storages(node: Node) -> set[int | None]:
    """The storages that a node writes into; None among them where one cannot be told."""
    return {storage for target in written(node) for storage in storages(target)}


def all_written_storages(node: Node) -> set[int | None]:
    """The same, with the running statistics that a norm updates at its end."""
    statistics = running_statistics(node) or []
    return written_storages(node) | {storage for target in statistics for storage in storages(target)}


def storages_from_outside(graph_module: GraphModule) -> set[int | None]:
    """The storages of a graph's inputs and attributes, which others can see."""
    sources = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    return {storage for node in sources for storage in storages(node)}


def touched_storages(node: Node) -> set[int | None]:
    """The storages of a node's value and of its operands."""
    return {storage for each in (node, *node.all_input_nodes) for storage in storages(each)}


def storages(node: Node) -> set[int | None]:
    """The storages behind a node's value; {None} where they cannot be told."""
    value = node.meta.get("example_value")
    if value is None and node.op != "get_attr":
        # Dynamo gives a mode's setter no value; nor what cannot be told.
        has_none = "example_value" in node.meta or node.target in _torch.MODE_SETTERS
        return set() if has_none else {None}
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
    elif overloads := structure.overloads_of(node):
        yield from {target: None for overload in overloads for target in _written_by_schema(node, overload._schema)}
    elif isinstance(node.target, _torch.HigherOrderOperator):
        yield from _written_by_body(node)
    elif node.op == "call_function":
        if node.target in _WRITING_OPERATORS:
            yield from _nodes_in(node.args[0])
        elif getattr(node.target, "__module__", "") == "_operator":
            return  # and_, or_ and not_ are named so because Python has and, or and not
        elif (statistics := running_statistics(node)) is not None:
            # Written at the region's end by thunder, which is right as long as nothing else in the graph looks at them.
            if any(len(target.users) > 1 or target.op != "placeholder" for target in statistics):
                yield from statistics
        elif _is_in_place(node):
            # Optimisers' fused functions write several of their lists.
            several = getattr(node.target, "__name__", "").startswith(("_foreach_", "_fused_"))
            yield from _nodes_in(arguments if several else (arguments or [None])[0])


def running_statistics(node: Node) -> list[Node] | None:
    """The running mean and variance that a batch_norm or instance_norm updates; None for any other call."""
    if node.target not in _STATISTICS:
        return None
    position, flag = _STATISTICS[node.target]
    mean, var, from_batch = (
        structure.argument(node, at, name)
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


def position_of_inplace(node: Node) -> int | None:
    """Where the `inplace` argument of a function stands; None for a function that has none."""
    signature = _signature_with_inplace(node.target) if callable(node.target) else None
    return None if signature is None else list(signature.parameters).index("inplace")


def _signature_with_inplace(target: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function that has an `inplace` argument; None for any other."""
    # A user's function is not kept.
    is_torchs = (getattr(target, "__module__", None) or "").partition(".")[0] == "torch"
    return _cached_signature(target) if is_torchs else _read_signature(target)


def _read_signature(target: Callable[..., Any]) -> inspect.Signature | None:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # builtins have none
        return None
    return signature if "inplace" in signature.parameters else None


_cached_signature = functools.cache(_read_signature)


def _written_by_schema(node: Node, schema: Any) -> Iterator[Node]:
    """What an ATen or custom operator says of itself."""
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes_in(value)


def _written_by_body(node: Node) -> Iterator[Node]:
    """What is handed to a higher-order operator that has a write in one of its bodies: all of it may be written."""
    operands = _nodes_in([node.args, node.kwargs])
    bodies = [_torch.attribute(operand) for operand in operands if operand.op == "get_attr"]
    if any(_has_write(body) for body in bodies if isinstance(body, GraphModule)):
        yield from (operand for operand in operands if any(True for _ in structure.tensors_of(operand)))


def _has_write(body: GraphModule) -> bool:
    nodes = structure.calls(body)
    return any(running_statistics(node) or any(True for _ in written(node)) for node in nodes)
