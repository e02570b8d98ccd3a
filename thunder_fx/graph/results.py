"""What eager makes of a region's results, and the mending of those that a compiler makes otherwise.

Knows a region by its graph alone; who calls it, and when, is regions.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from thunder_fx import _torch
from thunder_fx.graph import structure


@dataclass(frozen=True)
class InEager:
    """What eager makes of a result: how it is laid out, where that can be told, and whether autograd leaves it alone.

    `strides` are those of a result of static shape. Where they hang on symbolic sizes, `order` has the dimensions from
    the outermost to the innermost of a result without gaps, whose sizes then tell the strides.
    `is_constant_view` is None, or, of a view that was made under no_grad, whether it needs a gradient: it does if what
    it views does, and is a leaf all the same, so that no gradient goes on from it.
    """

    strides: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    is_constant_view: bool | None = None


def in_eager(graph_module: GraphModule) -> tuple[InEager, ...]:
    return tuple(
        InEager(*_layout(structure.value_of(node)), is_constant_view=_is_constant_view(node))
        if isinstance(node, torch.fx.Node)
        else InEager()
        for node in structure.outputs(graph_module)
    )


def _layout(value: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None, None
    strides = value.stride()
    if any(isinstance(size, torch.SymInt) for size in (*value.shape, *strides)):
        return None, _order(value)
    return strides, None


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    by_row = tuple(range(value.ndim))
    # sorted() keeps the order of what is equal: of size 1, or of symbolic ones that no hint tells apart.
    by_hint = tuple(sorted(by_row, key=lambda dim: -_torch.hint(value.stride(dim))))
    return next((order for order in (by_row, by_hint) if _is_dense(value, order)), None)


def _is_dense(value: torch.Tensor, order: tuple[int, ...]) -> bool:
    """Whether it has no gaps in this order of its dimensions, whatever its symbolic sizes are."""
    expected: Any = 1
    for dim in reversed(order):
        size, stride = value.shape[dim], value.stride(dim)
        if not (isinstance(size, int) and size == 1) and _torch.expression(stride) != _torch.expression(expected):
            return False
        expected = expected * size
    return True


def _is_constant_view(node: Any) -> bool | None:
    value = structure.value_of(node) if isinstance(node, torch.fx.Node) and node.op != "placeholder" else None
    if not isinstance(value, torch.Tensor) or not value._is_view() or value.grad_fn is not None:
        return None
    return value.requires_grad


def mending(result: Any, wanted: tuple[InEager, ...]) -> Callable[[Any], Any] | None:
    """What makes eager's of those results of a region that its compiler makes otherwise; None if there are none.

    Few operators lay a result out otherwise: some einsums in thunder, and sums of a transposed tensor and a broadcast
    one of another dtype; a cumsum of equal numbers in Inductor. And Inductor makes views anew after it has run,
    outside of the no_grad that they were made under. Where sizes are symbolic, each call may be the first that differs.
    """
    mends = {
        index: mend
        for index, (value, eager) in enumerate(zip(of(result), wanted, strict=True))
        if isinstance(value, torch.Tensor) and (mend := _mending_one(value, eager)) is not None
    }
    if not mends:
        return None

    def mend_all(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return mends[0](result)
        return tuple([mends[i](value) if i in mends else value for i, value in enumerate(result)])

    return mend_all


def _mending_one(value: torch.Tensor, eager: InEager) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if eager.is_constant_view is not None and value.grad_fn is not None:
        requires_grad = eager.is_constant_view
        return lambda value: value.detach().requires_grad_(requires_grad)
    strides, order = eager.strides, eager.order
    if strides is not None and not _is_laid_out(value, strides):
        return lambda value: _laid_out(value, strides)
    if order is None:
        return None
    if order == tuple(range(len(order))):
        return torch.Tensor.contiguous  # the same tensor if it is contiguous
    return lambda value: _laid_out_in_order(value, order)


def _is_laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether a tensor has these strides, where they mean something: a needless copy of a view would be no view."""
    if value.numel() == 0:
        return True
    each = zip(value.shape, value.stride(), strides, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in each)


def _laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _laid_out_in_order(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    in_memory = value.permute(order)
    if in_memory.is_contiguous():
        return value
    return in_memory.contiguous().permute(sorted(range(len(order)), key=order.__getitem__))


def of(result: Any) -> tuple[Any, ...] | list[Any]:
    """What a region returned, as a sequence."""
    return result if isinstance(result, (tuple, list)) else (result,)
