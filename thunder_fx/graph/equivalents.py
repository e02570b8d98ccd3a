"""Operators that thunder lacks, or computes wrongly, in terms of operators that it has: a table, by function.

Each entry gets `build`, which makes a node, and the call's own arguments; it gives the node that takes the call's
place, or None where it does not hold. An argument that its signature does not name (out=, layout=) is a case it does
not hold for. What it gives is used only where thunder refuses the call itself and takes every node of the equivalent,
and where shape, dtype and strides are the same. All of this is true of lightning-thunder 0.2.6.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from thunder_fx import _torch
from thunder_fx.graph import structure

Build = Callable[..., Node]
Equivalent = Callable[..., "Node | None"]

TABLE: dict[Any, Equivalent] = {}


def of(*functions: Any) -> Callable[[Equivalent], Equivalent]:
    """Enter an equivalent of these functions; a method as torch.Tensor's function."""

    def enter(equivalent: Equivalent) -> Equivalent:
        TABLE.update(dict.fromkeys(functions, equivalent))
        return equivalent

    return enter


def find(node: Node) -> Equivalent | None:
    """The equivalent of what a node calls, if there is one."""
    function = structure.function_of(node)
    return TABLE.get(function) if isinstance(function, Hashable) else None


def _value(node: Any) -> Any:
    return structure.value_of(node) if isinstance(node, Node) else node


def _is_tensor(node: Any) -> bool:
    return isinstance(_value(node), Tensor)


# Matrix products. In half precision two steps would round twice where one rounds once.


def _is_precise(*nodes: Any) -> bool:
    return all(_value(node).dtype in (torch.float32, torch.float64) for node in nodes)


def _scaled(build: Build, node: Node, factor: Any) -> Node:
    return node if type(factor) in (int, float) and factor == 1 else build(torch.mul, node, factor)


def _sum_of_scaled(build: Build, input: Node, beta: Any, product: Node, alpha: Any) -> Node | None:
    # With beta 0 eager does not read the input, and gives it a gradient of zeros.
    if not _is_precise(input, product) or (beta == 0 and _value(input).requires_grad):
        return None
    product = _scaled(build, product, alpha)
    return product if beta == 0 else build(torch.add, _scaled(build, input, beta), product)


@of(torch.mm, Tensor.mm)
def mm(build: Build, a: Node, b: Node) -> Node | None:
    return build(torch.matmul, a, b)


@of(torch.addmm, Tensor.addmm)
def addmm(build: Build, input: Node, mat1: Node, mat2: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    if beta == alpha == 1 and _value(input).ndim == 1 and _value(input).shape[0] == _value(mat2).shape[1]:
        # Which calls addmm with these very arguments.
        return build(F.linear, mat1, build(torch.transpose, mat2, 0, 1), input)
    return _sum_of_scaled(build, input, beta, build(torch.matmul, mat1, mat2), alpha)


@of(torch.addmv, Tensor.addmv)
def addmv(build: Build, input: Node, mat: Node, vec: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    return _sum_of_scaled(build, input, beta, build(torch.matmul, mat, vec), alpha)


@of(torch.baddbmm, Tensor.baddbmm)
def baddbmm(build: Build, input: Node, batch1: Node, batch2: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    return _sum_of_scaled(build, input, beta, build(torch.matmul, batch1, batch2), alpha)


@of(torch.addbmm, Tensor.addbmm)
def addbmm(build: Build, input: Node, batch1: Node, batch2: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    return _sum_of_scaled(build, input, beta, build(torch.sum, build(torch.matmul, batch1, batch2), 0), alpha)


@of(torch.addr, Tensor.addr)
def addr(build: Build, input: Node, vec1: Node, vec2: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    outer = build(torch.mul, build(torch.unsqueeze, vec1, 1), vec2)
    return _sum_of_scaled(build, input, beta, outer, alpha)


# Making tensors


def _size(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes that were given one by one or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes


def _like(node: Node, dtype: Any, device: Any) -> dict[str, Any]:
    value = _value(node)
    return {"dtype": dtype or value.dtype, "device": device or value.device}


@of(Tensor.new_ones)
def new_ones(build: Build, x: Node, *sizes: Any, dtype: Any = None, device: Any = None) -> Node | None:
    return build(torch.ones, _size(sizes), **_like(x, dtype, device))


@of(Tensor.new_zeros)
def new_zeros(build: Build, x: Node, *sizes: Any, dtype: Any = None, device: Any = None) -> Node | None:
    return build(torch.zeros, _size(sizes), **_like(x, dtype, device))


@of(Tensor.new_full)
def new_full(build: Build, x: Node, size: Any, fill_value: Any, dtype: Any = None, device: Any = None) -> Node | None:
    return build(torch.full, tuple(size), fill_value, **_like(x, dtype, device))


@of(torch.scalar_tensor)
def scalar_tensor(build: Build, value: Any, *, dtype: Any = None, device: Any = None) -> Node | None:
    return build(torch.full, (), value, dtype=dtype or torch.get_default_dtype(), device=device)


@of(torch.eye)
def eye(build: Build, n: Any, m: Any = None, *, dtype: Any = None, device: Any = None) -> Node | None:
    rows = build(torch.unsqueeze, build(torch.arange, n, device=device), 1)
    columns = build(torch.arange, n if m is None else m, device=device)
    return build(Tensor.to, build(torch.eq, rows, columns), dtype or torch.get_default_dtype())


# Conversions


def _conversion(dtype: torch.dtype) -> Equivalent:
    return lambda build, x: build(Tensor.to, x, dtype)


TABLE.update(
    {
        Tensor.double: _conversion(torch.float64),
        Tensor.bfloat16: _conversion(torch.bfloat16),
        Tensor.half: _conversion(torch.float16),
        Tensor.bool: _conversion(torch.bool),
        Tensor.byte: _conversion(torch.uint8),
        Tensor.char: _conversion(torch.int8),
        Tensor.short: _conversion(torch.int16),
    }
)


# Elementwise


@of(torch.min, Tensor.min)
def binary_min(build: Build, a: Node, b: Any) -> Node | None:
    return build(torch.minimum, a, b) if _is_tensor(b) else None


@of(torch.max, Tensor.max)
def binary_max(build: Build, a: Node, b: Any) -> Node | None:
    return build(torch.maximum, a, b) if _is_tensor(b) else None


@of(torch.clamp, Tensor.clamp, torch.clip, Tensor.clip)
def clamp(build: Build, x: Node, min: Any = None, max: Any = None) -> Node | None:
    """With eager's derivative at the bounds, and NaN where x is."""
    if _is_tensor(min) or _is_tensor(max) or not _value(x).is_floating_point():
        return None
    is_inclusive = _torch.CLAMP_HAS_DERIVATIVE_AT_BOUNDS
    if min is not None:
        x = build(torch.where, build(torch.lt if is_inclusive else torch.le, x, min), min, x)
    return x if max is None else build(torch.where, build(torch.gt if is_inclusive else torch.ge, x, max), max, x)


@of(torch.clamp_min, Tensor.clamp_min)
def clamp_min(build: Build, x: Node, min: Any) -> Node | None:
    return clamp(build, x, min) or build(torch.clamp, x, min=min)


@of(torch.clamp_max, Tensor.clamp_max)
def clamp_max(build: Build, x: Node, max: Any) -> Node | None:
    return clamp(build, x, None, max) or build(torch.clamp, x, max=max)


@of(torch.relu, Tensor.relu, F.relu)
def relu(build: Build, x: Node, inplace: bool = False) -> Node | None:
    """NaN where x is: the other way round thunder's comparison takes NaN for negative."""
    return None if inplace else build(torch.where, build(torch.le, x, 0), 0.0, x)


@of(torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.special.expit)
def sigmoid(build: Build, x: Node) -> Node | None:
    """By exponentials of negative numbers alone: no derivative overflows."""
    if not _value(x).is_floating_point():
        return None
    # As eager computes it: in single precision where the result has half.
    wide = build(Tensor.to, x, torch.float32) if _value(x).dtype in _HALF else x
    is_negative = build(torch.lt, wide, 0)
    of_negative = build(torch.exp, build(torch.where, is_negative, wide, 0.0))
    of_positive = build(torch.exp, build(torch.where, is_negative, 0.0, build(torch.neg, wide)))
    result = build(torch.div, of_negative, build(torch.add, of_negative, of_positive))
    return _cast(build, result, _value(x).dtype)


@of(operator.mod)
def mod(build: Build, a: Any, b: Any) -> Node | None:
    return build(torch.remainder, a, b)


_HALF = (torch.float16, torch.bfloat16)


def _with_expanded_scalar(function: Any) -> Equivalent:
    """thunder takes a 0-dimensional CPU tensor for a number, whose gradient it does not sum: so expand it first."""

    def equivalent(build: Build, a: Any, b: Any) -> Node | None:
        if not (_is_tensor(a) and _is_tensor(b)):
            return None
        plain = function(_value(a), _value(b))
        if plain.dtype in _HALF and not _value(a).dtype == _value(b).dtype == plain.dtype:
            return None  # eager computes with a scalar of more bits than the result has
        a, b = (
            build(Tensor.expand, _cast(build, node, plain.dtype), tuple(plain.shape))
            if _value(node).ndim == 0
            else node
            for node in (a, b)
        )
        return build(function, a, b)

    return equivalent


def _cast(build: Build, node: Node, dtype: torch.dtype) -> Node:
    # To the dtype that torch computes in, and not as it promotes tensors: a scalar's dtype counts for less.
    return node if _value(node).dtype is dtype else build(Tensor.to, node, dtype)


TABLE.update(
    {
        name: _with_expanded_scalar(function)
        for function, names in {
            torch.add: (operator.add, torch.add, Tensor.add),
            torch.sub: (operator.sub, torch.sub, Tensor.sub),
            torch.mul: (operator.mul, torch.mul, Tensor.mul),
            torch.div: (operator.truediv, torch.div, Tensor.div),
        }.items()
        for name in names
    }
)


# Shapes


@of(torch.cat, torch.concat, torch.concatenate)
def cat_with_empty(build: Build, tensors: Sequence[Node], dim: int = 0) -> Node | None:
    """torch leaves out empty 1-D tensors among others, though not their dtype: transformers' caches begin with one."""
    values = [_value(tensor) for tensor in tensors]
    left = [
        tensor for tensor, value in zip(tensors, values, strict=True) if not (value.ndim == 1 and value.shape[0] == 0)
    ]
    if not left or len(left) == len(tensors):
        return None
    dtype = functools.reduce(torch.promote_types, (value.dtype for value in values))
    # Of a single tensor too it is a contiguous copy.
    return build(torch.cat, [_cast(build, tensor, dtype) for tensor in left], dim)


@of(torch.diff, Tensor.diff)
def diff(build: Build, input: Node, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Node | None:
    ends = [tensor for tensor in (prepend, input, append) if tensor is not None]
    x = build(torch.cat, ends, dim) if len(ends) > 1 else input
    axis = dim % _value(input).ndim
    for _ in range(n):
        front, back = (
            build(operator.getitem, x, (*[slice(None)] * axis, part)) for part in (slice(1, None), slice(None, -1))
        )
        x = build(torch.ne if _value(x).dtype is torch.bool else torch.sub, front, back)
    return x if n > 0 else None


@of(torch.swapaxes, torch.swapdims, Tensor.swapaxes, Tensor.swapdims)
def swapaxes(build: Build, x: Node, a: int, b: int) -> Node | None:
    return build(torch.transpose, x, a, b)


@of(torch.narrow, Tensor.narrow)
def narrow(build: Build, x: Node, dim: int, start: Any, length: int) -> Node | None:
    if not isinstance(start, int):
        return None
    start = start % _value(x).shape[dim] if start < 0 else start
    return build(operator.getitem, x, (*[slice(None)] * (dim % _value(x).ndim), slice(start, start + length)))


@of(torch.hstack)
def hstack(build: Build, tensors: Sequence[Node]) -> Node | None:
    dimensions = {_value(tensor).ndim for tensor in tensors}
    return build(torch.cat, list(tensors), 0 if dimensions == {1} else 1) if 0 not in dimensions else None


@of(torch.vstack)
def vstack(build: Build, tensors: Sequence[Node]) -> Node | None:
    return build(torch.cat, list(tensors), 0) if all(_value(tensor).ndim > 1 for tensor in tensors) else None


@of(torch.tile, Tensor.tile)
def tile(build: Build, x: Node, *dims: Any) -> Node | None:
    repeats = _size(dims)
    return build(Tensor.repeat, x, *[1] * (_value(x).ndim - len(repeats)), *repeats)


# Networks


@of(F.scaled_dot_product_attention)
def attention(
    build: Build,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Node | None:
    """Each group of queries shares a key and a value: say so by repeating those. And masked rows: in so many words."""
    if _value(query).ndim < 3:
        return None
    if enable_gqa:
        heads = _value(query).shape[-3]
        key, value = _repeated(build, key, heads), _repeated(build, value, heads)
    if attn_mask is not None and not is_causal and dropout_p == 0.0 and _value(query).device.type == "cpu":
        return _masked_attention(build, query, key, value, attn_mask, scale)
    rest = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    return build(F.scaled_dot_product_attention, query, key, value, **rest)


def _repeated(build: Build, node: Node, heads: int) -> Node:
    *batch, groups, length, width = _value(node).shape
    if groups == heads:
        return node
    wide = build(Tensor.expand, build(torch.unsqueeze, node, -3), (*batch, groups, heads // groups, length, width))
    return build(torch.reshape, wide, (*batch, heads, length, width))


def _masked_attention(build: Build, query: Node, key: Node, value: Node, mask: Node, scale: Any) -> Node:
    """What thunder decomposes attention into, but for rows that are masked whole, which are 0 in eager and not NaN."""
    dtype = _value(query).dtype
    if dtype in _HALF:
        query, key, value = (build(Tensor.to, node, torch.float32) for node in (query, key, value))
    factor = _value(query).shape[-1] ** -0.5 if scale is None else scale
    scores = build(torch.matmul, build(torch.mul, query, factor), build(torch.transpose, key, -2, -1))
    if _value(mask).dtype is torch.bool:
        scores = build(torch.where, mask, scores, float("-inf"))
    else:
        scores = build(torch.add, scores, _cast(build, mask, _value(scores).dtype))
    is_masked_whole = build(torch.eq, build(torch.amax, scores, -1, True), float("-inf"))
    weights = build(torch.softmax, build(torch.where, is_masked_whole, 0.0, scores), -1)
    weights = build(torch.where, is_masked_whole, 0.0, weights)
    return _cast(build, build(torch.matmul, weights, value), dtype)


@of(F.rms_norm, torch.rms_norm)
def rms_norm(build: Build, x: Node, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Node | None:
    if not _is_precise(x):
        return None
    dims = tuple(range(-len(normalized_shape), 0))
    mean = build(torch.mean, build(torch.mul, x, x), dims, keepdim=True)
    root = build(torch.rsqrt, build(torch.add, mean, torch.finfo(_value(x).dtype).eps if eps is None else eps))
    normed = build(torch.mul, x, root)
    return normed if weight is None else build(torch.mul, normed, weight)


@of(F.layer_norm, torch.layer_norm)
def layer_norm(build: Build, input: Node, *rest: Any, **others: Any) -> Node | None:
    """Of what is laid out by rows: else thunder's result is laid out as the operand is."""
    return build(F.layer_norm, _by_row(build, input), *rest, **others)


@of(torch.masked_fill, Tensor.masked_fill)
def masked_fill(build: Build, input: Node, mask: Node, value: Any) -> Node | None:
    """Likewise."""
    return build(torch.masked_fill, _by_row(build, input), _by_row(build, mask), value)


def _by_row(build: Build, node: Node) -> Node:
    return node if structure.is_contiguous(_value(node)) else build(Tensor.contiguous, node)


@of(F.interpolate)
def interpolate(build: Build, input: Node, size: Any = None, scale_factor: Any = None, **rest: Any) -> Node | None:
    """thunder takes a scale factor only if it is no integer."""
    if size is not None or type(scale_factor) is not int:
        return None
    return build(F.interpolate, input, scale_factor=float(scale_factor), **rest)
