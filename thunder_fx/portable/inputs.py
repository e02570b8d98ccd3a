"""What a reproducer's make_inputs() is written with."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import torch


def filled(
    elements: int, dtype: torch.dtype, kind: str, device: str = "cpu", *, seed: int = 0, low: int = 0, below: int = 2
) -> torch.Tensor:
    """The elements of a piece of memory, made up: always the same for the same arguments.

    "normal": of mean 0 and deviation 1; "weight": the same, small; "probability": from 0 to 1; "positive": from 1/2 to
    3/2; "above one": from 1 to 2; "index": numbers from `low` on, less than `below`; "zero"; "definite": symmetric
    matrices of `below` rows whose diagonal outweighs the rest.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "zero":
        return torch.zeros(elements, dtype=dtype, device=device)
    if not dtype.is_floating_point and not dtype.is_complex:
        values = torch.randint(low, max(below, low + 1), (elements,), device="cpu", generator=generator)
        return values.to(device, dtype)
    wide = torch.complex64 if dtype.is_complex else torch.float64 if dtype is torch.float64 else torch.float32
    if kind in _UNIFORM or kind == "index":
        start, width = _UNIFORM.get(kind, (low, max(below - 1 - low, 0)))
        values = torch.rand(elements, dtype=wide, device="cpu", generator=generator) * width + start
    elif kind == "definite":
        matrices = torch.rand(-(-elements // below**2), below, below, dtype=wide, device="cpu", generator=generator)
        values = (matrices + matrices.mH + 2 * below * torch.eye(below, device="cpu")).reshape(-1)[:elements]
    else:
        values = torch.randn(elements, dtype=wide, device="cpu", generator=generator)
        values *= 0.02 if kind == "weight" else 1.0
    return values.to(device, dtype)


# Where the values of a kind begin, and how far they reach.
_UNIFORM = {"probability": (0.0, 1.0), "positive": (0.5, 1.0), "above one": (1.0, 1.0)}


def made_up(module: torch.nn.Module, *, training: bool) -> torch.nn.Module:
    """A Module with made-up weights, the same each time."""
    with torch.no_grad():
        for parameter in module.parameters():
            made = filled(parameter.numel(), parameter.dtype, "weight", str(parameter.device))
            parameter.copy_(made.reshape(parameter.shape))
    return module.train(training)


def loaded(file: str, device: str = "cpu") -> torch.Tensor:
    """The elements of a piece of memory, or a tensor, as they were recorded; from beside this script."""
    value: torch.Tensor = torch.load(pathlib.Path(__file__).parent / file, weights_only=True)
    return value.to(device)


def supply(what: str) -> Any:
    """Stands where a person has to put something."""
    raise SystemExit(what)


def tensor(
    memory: torch.Tensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int = 0,
    *,
    requires_grad: bool = False,
    conj: bool = False,
    neg: bool = False,
) -> torch.Tensor:
    """A tensor of this layout (in elements) in a piece of memory, which other tensors may share."""
    view = torch.empty(0, dtype=dtype, device=memory.device)
    view.set_(memory.untyped_storage(), offset, tuple(shape), tuple(stride))
    view = view.conj() if conj else view
    return (torch._neg_view(view) if neg else view).requires_grad_(requires_grad)
