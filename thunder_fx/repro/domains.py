"""What values an input of a graph may take, as far as the graph tells: what is read as an index must not be too large.

A made-up input must not make the graph fail where the user's did not. The answers are conservative: they follow an
input through views and copies to the operators that restrict it, and no further.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import higher_order, structure


@dataclass(frozen=True)
class Domain:
    """Values by the kinds that filled() makes (thunder_fx.portable.inputs).

    An "index" is at least `low` and less than `below`; a "definite" matrix has `below` rows.
    """

    kind: str
    below: int = 2
    low: int = 0


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


def _narrowest(node: Node, found: list[Domain]) -> Domain:
    tensor = structure.value_of(node)
    if tensor.is_floating_point() or tensor.is_complex():
        # Many products of numbers of deviation 1 would overflow: a model's weights are small.
        is_weight = tensor.requires_grad and tensor.ndim >= 2 and tensor.is_leaf
        return common(found or [Domain("weight" if is_weight else "normal")])
    return common([domain for domain in found if domain.kind in ("index", "zero")] or [Domain("index")])


def common(found: Sequence[Domain]) -> Domain:
    """What is in each of several domains; where they exclude one another, in the first."""
    for kind in ("zero", "index", "definite", "above one", "probability", "positive", "normal"):
        alike = [domain for domain in found if domain.kind == kind]
        if alike:
            low, below = max(domain.low for domain in alike), min(domain.below for domain in alike)
            return Domain(kind, max(below, low + 1), low)
    return found[0]


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


def _restrictions(node: Node) -> Iterable[tuple[Any, Domain]]:
    """The operands that a call restricts."""
    if structure.function_of(node) is getattr:
        return ()
    rule = _RULES.get(structure.name_of(node).rstrip("_"))
    return rule(node) if rule is not None else ()


Restrictions = Iterable[tuple[Any, Domain]]


def _subscript(node: Node) -> Restrictions:
    return _subscripts(node.args[0], node.args[1]) if len(node.args) > 1 else ()


def _embedding(node: Node) -> Restrictions:
    # torch.embedding and torch.nn.functional.embedding take the two in different orders.
    tensors = [operand for operand in node.all_input_nodes if _rank(operand)]
    tables = [tensor for tensor in tensors if structure.value_of(tensor).is_floating_point()]
    offsets = structure.argument(node, 2, "offsets") if "bag" in structure.name_of(node) else None
    for tensor in tensors:
        if tables and tensor not in tables:
            # Offsets begin with 0 and do not decrease: bags without anything but the last will do.
            yield tensor, Domain("zero") if tensor is offsets else Domain("index", _size(tables[0], 0))


def _along_a_dimension(node: Node) -> Restrictions:
    dim = structure.argument(node, 1, "dim")
    yield structure.argument(node, 2, "index"), Domain("index", _size(node.args[0], dim))


def _take_along_dim(node: Node) -> Restrictions:
    dim = structure.argument(node, 2, "dim", None)
    below = _size(node.args[0], dim) if isinstance(dim, int) else _elements(node.args[0])
    yield structure.argument(node, 1, "indices"), Domain("index", below)


def _take(node: Node) -> Restrictions:
    yield structure.argument(node, 1, "index"), Domain("index", _elements(node.args[0]))


def _classes(node: Node) -> Restrictions:
    scores = structure.argument(node, 0, "input")
    yield structure.argument(node, 1, "target"), Domain("index", _size(scores, 0 if _rank(scores) == 1 else 1))


def _one_hot(node: Node) -> Restrictions:
    classes = structure.argument(node, 1, "num_classes", -1)
    below = classes if isinstance(classes, int) and classes > 0 else 2
    yield structure.argument(node, 0, "tensor"), Domain("index", below)


def _division(node: Node) -> Restrictions:
    divisor = structure.argument(node, 1, "other")
    value = structure.value_of(divisor) if isinstance(divisor, Node) else None
    if isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex():
        yield divisor, Domain("index", 3, 1)  # an integer division by zero raises


def _probability(node: Node) -> Restrictions:
    yield structure.argument(node, 0, "input"), Domain("probability")


def _probabilities(node: Node) -> Restrictions:
    yield structure.argument(node, 0, "input"), Domain("probability")
    yield structure.argument(node, 1, "target"), Domain("probability")


def _positive(node: Node) -> Restrictions:
    yield structure.argument(node, 0, "input"), Domain("positive")


def _above_one(node: Node) -> Restrictions:
    yield structure.argument(node, 0, "input"), Domain("above one")


def _power(node: Node) -> Restrictions:
    exponent = structure.argument(node, 1, "exponent")
    if isinstance(exponent, Node) or (isinstance(exponent, float) and not exponent.is_integer()):
        yield structure.argument(node, 0, "input"), Domain("positive")


def _definite(node: Node) -> Restrictions:
    matrix = structure.argument(node, 0, "input")
    yield matrix, Domain("definite", _size(matrix, -1))


def _batch_norm(node: Node) -> Restrictions:
    yield structure.argument(node, 2, "running_var"), Domain("positive")


# By the name of what a call calls, a trailing underscore left out.
_RULES: dict[str, Callable[[Node], Restrictions]] = {
    **dict.fromkeys(("getitem", "setitem", "index", "index_put", "_unsafe_index"), _subscript),
    **dict.fromkeys(("embedding", "embedding_bag"), _embedding),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _along_a_dimension),
    **dict.fromkeys(("index_add", "index_copy", "index_fill", "index_reduce", "index_select"), _along_a_dimension),
    "take_along_dim": _take_along_dim,
    **dict.fromkeys(("take", "put"), _take),
    **dict.fromkeys(("cross_entropy", "cross_entropy_loss", "multi_margin_loss", "nll_loss"), _classes),
    "one_hot": _one_hot,
    **dict.fromkeys(("div", "floor_divide", "floordiv", "fmod", "mod", "remainder"), _division),
    **dict.fromkeys(("idiv", "ifloordiv", "imod", "divide"), _division),
    **dict.fromkeys(("acos", "asin", "atanh", "bernoulli", "logit", "multinomial"), _probability),
    "binary_cross_entropy": _probabilities,
    **dict.fromkeys(("digamma", "lgamma", "log", "log10", "log1p", "log2", "poisson", "reciprocal"), _positive),
    **dict.fromkeys(("rsqrt", "sqrt"), _positive),
    "acosh": _above_one,
    **dict.fromkeys(("float_power", "pow", "ipow"), _power),
    **dict.fromkeys(("cholesky", "cholesky_ex", "linalg_cholesky", "linalg_cholesky_ex"), _definite),
    "batch_norm": _batch_norm,
}


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
        "abs", "ceil", "floor", "half", "bfloat16", "relu", "round", "short", "trunc",
        "_add_batch_dim", "_remove_batch_dim",  # what vmap calls
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
    elif name in _ARITHMETIC:
        before = functools.partial(_before_arithmetic, _ARITHMETIC[name], node)
        yield from ((operand, before) for operand in node.all_input_nodes)


_ARITHMETIC = {
    **dict.fromkeys(("add", "iadd"), "add"),
    **dict.fromkeys(("mul", "imul", "multiply"), "mul"),
    **dict.fromkeys(("sub", "isub", "subtract"), "sub"),
    **dict.fromkeys(("div", "divide", "floor_divide", "floordiv", "idiv", "ifloordiv", "truediv", "itruediv"), "div"),
}


def _unchanged(domain: Domain) -> Domain:
    return domain


def _before_arithmetic(name: str, node: Node, after: Domain) -> Domain:
    """What an index may be before a number, or another index, is added to it, taken from it, or multiplied with it.

    Floats that become an index are treated as the index.
    """
    number = next((argument for argument in node.args if isinstance(argument, (int, float))), None)
    if after.kind != "index" or after.below <= 1 or (number is not None and not math.isfinite(number)):
        return after
    if name == "div":
        factor = abs(number) if number is not None and node.args[0] is not number else 1
        return Domain("index", max(int(after.below * factor), 1), math.ceil(after.low * factor))
    if number is None:  # two indices: the sum of two halves
        return Domain("index", max(math.isqrt(after.below) if name == "mul" else after.below // 2, 1))
    if name == "mul":
        factor = max(abs(number), 1)
        return Domain("index", max(math.ceil(after.below / factor), 1), math.ceil(after.low / factor))
    number = int(number)
    if name == "sub" and not isinstance(node.args[0], Node):  # number - index
        return Domain("index", number - after.low + 1, max(number - after.below + 1, 0))
    shift = number if name == "sub" else -number
    return Domain("index", max(after.below + shift, 1), max(after.low + shift, 0))


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
