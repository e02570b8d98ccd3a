"""What eager makes of a region's results, and the mending of those that a compiler makes otherwise.

Knows a region by its graph alone; who calls it, and when, is regions.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from thunder_fx.graph import structure


@dataclass(frozen=True)
class InEager:
    """What eager makes of a result: its strides, where they can be told, and whether autograd leaves it alone.

    `is_constant_view` is None, or, of a view that was made under no_grad, whether it needs a gradient: it does if what
    it views does, and is a leaf all the same, so that no gradient goes on from it.
    """

    strides: tuple[int, ...] | None = None
    is_constant_view: bool | None = None


def in_eager(graph_module: GraphModule) -> tuple[InEager, ...]:
    return tuple(InEager(_static_strides(node), _is_constant_view(node)) for node in structure.outputs(graph_module))


def _static_strides(node: Any) -> tuple[int, ...] | None:
    """The strides that a result has in eager; None where they cannot be told, or hang on a symbolic size."""
    value = structure.value_of(node) if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    strides = value.stride()
    return None if any(isinstance(size, torch.SymInt) for size in (*value.shape, *strides)) else strides


def _is_constant_view(node: Any) -> bool | None:
    value = structure.value_of(node) if isinstance(node, torch.fx.Node) and node.op != "placeholder" else None
    if not isinstance(value, torch.Tensor) or not value._is_view() or value.grad_fn is not None:
        return None
    return value.requires_grad


def mending(result: Any, wanted: tuple[InEager, ...]) -> Callable[[Any], Any] | None:
    """What makes eager's of those results of a region that its compiler makes otherwise; None if there are none.

    Few operators lay a result out otherwise: some einsums in thunder, and sums of a transposed tensor and a broadcast
    one of another dtype; a cumsum of equal numbers in Inductor. And Inductor makes views anew after it has run,
    outside of the no_grad that they were made under.
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
    strides = eager.strides
    if strides is not None and not _is_laid_out(value, strides):
        return lambda value: _laid_out(value, strides)
    return None


def _is_laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether a tensor has these strides, where they mean something: a needless copy of a view would be no view."""
    if value.numel() == 0:
        return True
    each = zip(value.shape, value.stride(), strides, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in each)


def _laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def of(result: Any) -> tuple[Any, ...] | list[Any]:
    """What a region returned, as a sequence."""
    return result if isinstance(result, (tuple, list)) else (result,)
