"""Whether inputs of a call share memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch


def overlap(args: Sequence[Any], written: Collection[int]) -> bool:
    """Whether an argument at a position in `written` shares memory with another argument."""
    if not written:
        return False
    tensors = [(index, arg) for index, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    try:
        spans = sorted(_span(tensor, index) for index, tensor in tensors if tensor.numel() > 0)
    except _NoMemory:
        return True
    # Of all spans that begin before this one, how far the furthest reaches; and the furthest that is written.
    reach = reach_of_written = 0
    for start, end, index in spans:
        if start < (reach if index in written else reach_of_written):
            return True
        reach = max(reach, end)
        if index in written:
            reach_of_written = max(reach_of_written, end)
    return False


class _NoMemory(Exception):
    """A tensor whose memory cannot be told counts as overlapping any other."""


def _span(tensor: torch.Tensor, index: int) -> tuple[int, int, int]:
    """The addresses of a tensor's first byte and of the one after its last, and the number of the argument."""
    if tensor.layout is not torch.strided:
        raise _NoMemory
    try:
        start = tensor.data_ptr()
    except RuntimeError as error:
        raise _NoMemory from error
    if start == 0:
        raise _NoMemory
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size(), index
