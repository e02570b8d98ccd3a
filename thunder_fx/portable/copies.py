"""Copies of what a call is given."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch


def copied(values: Iterable[Any], *, detached: bool = False) -> list[Any]:
    """Copies of values, which share memory where plain tensors do, and need gradients where they do unless `detached`.

    copy.deepcopy does the same but for views that are lazily conjugated or negated: it writes them out, into memory of
    their own (torch 2.9 to 2.15).
    """
    memory: dict[int, Any] = {}
    memo: dict[int, Any] = {}
    found = []
    for value in values:
        if isinstance(value, torch.Tensor) and is_plain(value):
            storage = value.untyped_storage()
            if storage._cdata not in memory:
                memory[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
            twin = view_of(memory[storage._cdata], value)
            found.append(twin if detached else twin.requires_grad_(value.requires_grad))
        else:
            found.append(copy.deepcopy(value.detach() if isinstance(value, torch.Tensor) else value, memo))
            if isinstance(value, torch.Tensor) and value.requires_grad and not detached:
                found[-1].requires_grad_()
    return found


def is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is a layout of a piece of memory, and no more."""
    is_own = type(value) in (torch.Tensor, torch.nn.Parameter)
    return is_own and value.layout is torch.strided and not value.is_quantized


def view_of(storage: Any, like: torch.Tensor) -> torch.Tensor:
    """A tensor in a piece of memory, laid out as another."""
    shape, stride, offset = like.shape, like.stride(), int(like.storage_offset())
    view = torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, offset, tuple(shape), tuple(stride))
    view = view.conj() if like.is_conj() else view
    return torch._neg_view(view) if like.is_neg() else view
