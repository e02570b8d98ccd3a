"""What values an input of a graph may take, as far as the graph tells: what is read as an index must not be too large.

A made-up input must not make the graph fail where the user's did not. The answers are conservative: they follow an
input through views and copies to the operators that restrict it, and no further.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import higher_order, structure


@dataclass(frozen=True)
class Domain:
    """Values by the kinds that runner.filled() makes; an "index" is at least 0 and less than `below`."""

    kind: str
    below: int = 2


def of_inputs(graph_module: GraphModule) -> dict[Node, Domain]:
    """The domain of each placeholder whose value is a tensor."""
    found: dict[Node, list[Domain]] = {}
    _restrict(graph_module, found)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    return {
        node: _narrowest(node, found.get(node, []))
        for node in placeholders
        if isinstance(structure.value_of(node), torch.Tensor)
    }


def _narrowest(node: Node, domains: list[Domain]) -> Domain:
    tensor = structure.value_of(node)
    if not tensor.is_floating_point() and not tensor.is_complex():
        indices = [domain for domain in domains if domain.kind == "index"]
        if indices:
            return min(indices, key=lambda domain: domain.below)
        return next((domain for domain in domains if domain.kind == "divisor"), Domain("index"))
    for kind in ("probability", "positive"):
        if any(domain.kind == kind for domain in domains):
            return Domain(kind)
    # Many products of numbers of deviation 1 would overflow: a model's weights are small.
    return Domain("weight" if tensor.requires_grad and tensor.ndim >= 2 and tensor.is_leaf else "normal")


def _restrict(graph_module: GraphModule, found: dict[Node, list[Domain]]) -> None:
    """Walk from the end to the beginning, handing each restriction on to what the value was made of."""
    for node in reversed(structure.calls(graph_module)):
        for operand, domain in _restrictions(node):
            if isinstance(operand, Node):
                found.setdefault(operand, []).append(domain)
        for operand, change in _passed_on(node):
            found.setdefault(operand, []).extend(map(change, found.get(node, [])))
        _restrict_through_bodies(node, found)


def _restrict_through_bodies(node: Node, found: dict[Node, list[Domain]]) -> None:
    if not isinstance(node.target, _torch.HigherOrderOperator):
        return
    bodies = [_torch.attribute(n) if n.op == "get_attr" else None for n in node.all_input_nodes]
    graphs = [body for body in bodies if isinstance(body, GraphModule)]
    operands = [n for n in structure.flat_arguments(node) if not _is_graph(n)]
    for body in graphs[:1] if node.target is higher_order.AUTOGRAD_FUNCTION else graphs:
        inner: dict[Node, list[Domain]] = {}
        _restrict(body, inner)
        inputs = list(body.graph.find_nodes(op="placeholder"))
        # Older forms begin with a context that is no operand.
        for placeholder, operand in zip(reversed(inputs), reversed(operands), strict=False):
            found.setdefault(operand, []).extend(inner.get(placeholder, []))


def _is_graph(node: Node) -> bool:
    return node.op == "get_attr" and isinstance(_torch.attribute(node), GraphModule)


def _restrictions(node: Node) -> Iterator[tuple[Any, Domain]]:
    """The operands that a call restricts."""
    function, name = structure.function_of(node), structure.name_of(node).rstrip("_")
    if (
        name == "setitem"
        or (name == "getitem" and function is operator.getitem)
        or (name in ("index_put", "_unsafe_index", "index") and len(node.args) > 1)
    ):
        yield from _subscripts(node.args[0], node.args[1])
    elif name in ("embedding", "embedding_bag"):
        # torch.embedding and torch.nn.functional.embedding take the two in different orders.
        tensors = [operand for operand in node.all_input_nodes if _rank(operand)]
        tables = [t for t in tensors if structure.value_of(t).is_floating_point()]
        yield from ((t, Domain("index", _size(tables[0], 0))) for t in tensors if tables and t not in tables)
    elif name in _ALONG_A_DIMENSION:
        dim = structure.argument(node, 1, "dim")
        yield structure.argument(node, 2, "index"), Domain("index", _size(node.args[0], dim))
    elif name == "take_along_dim":
        dim = structure.argument(node, 2, "dim", None)
        below = _size(node.args[0], dim) if isinstance(dim, int) else _elements(node.args[0])
        yield structure.argument(node, 1, "indices"), Domain("index", below)
    elif name in ("take", "put"):
        yield structure.argument(node, 1, "index"), Domain("index", _elements(node.args[0]))
    elif name in ("cross_entropy", "nll_loss", "cross_entropy_loss", "multi_margin_loss"):
        scores = structure.argument(node, 0, "input")
        yield structure.argument(node, 1, "target"), Domain("index", _size(scores, 0 if _rank(scores) == 1 else 1))
    elif name == "one_hot":
        classes = structure.argument(node, 1, "num_classes", -1)
        below = classes if isinstance(classes, int) and classes > 0 else 2
        yield structure.argument(node, 0, "tensor"), Domain("index", below)
    elif name in ("floordiv", "floor_divide", "mod", "remainder", "fmod", "div", "ifloordiv", "imod"):
        yield structure.argument(node, 1, "other"), Domain("divisor")
    elif name in ("bernoulli", "multinomial", "binary_cross_entropy", "logit", "acos", "asin", "atanh"):
        yield structure.argument(node, 0, "input"), Domain("probability")
        if name == "binary_cross_entropy":
            yield structure.argument(node, 1, "target"), Domain("probability")
    elif name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma", "poisson"):
        yield structure.argument(node, 0, "input"), Domain("positive")
    elif name == "batch_norm":
        yield structure.argument(node, 2, "running_var"), Domain("positive")


_ALONG_A_DIMENSION = frozenset(
    {"gather", "index_add", "index_copy", "index_fill", "index_reduce", "index_select"}
    | {"scatter", "scatter_add", "scatter_reduce"}
)


def _subscripts(base: Any, index: Any) -> Iterator[tuple[Any, Domain]]:
    """The integer tensors in a subscript, each with the size of the dimension that it picks from."""
    if not isinstance(structure.value_of(base) if isinstance(base, Node) else None, torch.Tensor):
        return
    parts = list(index) if isinstance(index, (tuple, list)) else [index]
    taken = sum(_dimensions_taken(part) for part in parts if part is not Ellipsis)
    dimension = 0
    for part in parts:
        if part is Ellipsis:
            dimension += _rank(base) - taken
            continue
        value = structure.value_of(part) if isinstance(part, Node) else None
        if isinstance(value, torch.Tensor) and value.dtype is not torch.bool:
            yield part, Domain("index", _size(base, dimension))
        dimension += _dimensions_taken(part)


def _dimensions_taken(part: Any) -> int:
    value = structure.value_of(part) if isinstance(part, Node) else part
    if isinstance(value, torch.Tensor) and value.dtype is torch.bool:
        return value.ndim
    # In torch.ops.aten.index a None stands for a dimension that is left alone; in Python's subscripts for a new one.
    return 0 if value is None or isinstance(value, bool) else 1


# What hands its first operand's values on, all or some of them.
_PASSING = frozenset(
    {
        "chunk", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "flip", "getitem", "int", "long",
        "masked_fill", "movedim", "narrow", "permute", "ravel", "repeat", "repeat_interleave", "reshape", "roll",
        "select", "split", "squeeze", "swapaxes", "t", "tile", "to", "transpose", "unbind", "unflatten", "unsqueeze",
        "view", "view_as", "clamp", "clamp_min", "clamp_max", "pad", "type_as", "float", "double", "_to_copy", "alias",
    }
)  # fmt: skip
_JOINING = frozenset({"cat", "concat", "stack", "hstack", "vstack", "where", "copy", "masked_scatter"})


def _passed_on(node: Node) -> Iterator[tuple[Node, Callable[[Domain], Domain]]]:
    """The operands that have the values of a call's result, and what their domain is, given the result's."""
    name = structure.name_of(node).rstrip("_")
    if name in _PASSING and node.args and isinstance(node.args[0], Node):
        yield node.args[0], _unchanged
    elif name in _JOINING:
        yield from ((operand, _unchanged) for operand in node.all_input_nodes)
    elif name in ("add", "iadd", "mul", "imul", "sub", "isub"):
        number = next((argument for argument in node.args if isinstance(argument, int)), None)
        for operand in node.all_input_nodes:
            yield operand, functools.partial(_before_arithmetic, name.removeprefix("i"), number)


def _unchanged(domain: Domain) -> Domain:
    return domain


def _before_arithmetic(name: str, number: int | None, after: Domain) -> Domain:
    """What an index may be before a number, or another index, is added or multiplied to it."""
    if after.kind != "index":
        return after
    if number is None:
        below = math.isqrt(after.below) if name == "mul" else after.below // 2
    else:
        below = after.below // max(abs(number), 1) if name == "mul" else after.below - abs(number)
    return Domain("index", max(below, 1))


def _size(node: Any, dim: Any) -> int:
    value = structure.value_of(node) if isinstance(node, Node) else node
    if not isinstance(value, torch.Tensor) or not isinstance(dim, int) or value.ndim == 0:
        return 1
    return int(_torch.hint(value.shape[dim])) if -value.ndim <= dim < value.ndim else 1


def _rank(node: Any) -> int:
    value = structure.value_of(node) if isinstance(node, Node) else node
    return value.ndim if isinstance(value, torch.Tensor) else 0


def _elements(node: Any) -> int:
    value = structure.value_of(node) if isinstance(node, Node) else node
    if not isinstance(value, torch.Tensor):
        return 1
    count = 1
    for size in value.shape:
        count *= int(_torch.hint(size))
    return count
