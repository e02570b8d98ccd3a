"""What one call gives, and in what it differs from another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fx.portable.copies import is_plain


@dataclass
class Run:
    """What came of one call: its outputs, its inputs afterwards, and the gradients of the leaves.

    `memory` has, for each input and output, the number of the first that lies in the same piece of memory.
    """

    outputs: list[Any]
    inputs: list[Any]
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def remarks(ours: Run, eager: Run) -> list[str]:
    """In words, what a person should know who reads that two runs agree."""
    found = []
    for kind in ("outputs", "gradients"):
        for index, wanted in enumerate(getattr(eager, kind)):
            if _is_plain_tensor(wanted) and wanted.numel() and bool(torch.isnan(wanted).all()):
                found.append(f"{kind[:-1]} {index} is NaN everywhere, in eager too: that it agrees tells little")
    for index, (got, wanted) in enumerate(zip(ours.outputs, eager.outputs, strict=False)):
        if _are_alike(got, wanted) and _strides(got) != _strides(wanted):
            found.append(f"output {index} has strides {got.stride()}, where eager has {wanted.stride()}")
    if ours.memory != eager.memory:
        found.append("not the same outputs share memory with inputs, or with one another, as in eager")
    return found


def differences(ours: Run, eager: Run, exact: Callable[[], Run | None] | None) -> list[str]:
    """In words, all in which two runs differ.

    `exact` gives the same run in float64, if there is one: what rounding makes of it in eager, it may make in the other
    too. Without it only dtypes and shapes are compared.
    """
    found = []
    scale = _scale(eager)
    for kind in ("outputs", "inputs", "gradients"):
        a, b = getattr(ours, kind), getattr(eager, kind)
        if len(a) != len(b):
            found.append(f"{len(a)} {kind}, where eager has {len(b)}")
            continue
        for index, (got, wanted) in enumerate(zip(a, b, strict=True)):
            if kind == "gradients":
                got, wanted = _zero_if_left_out(got, wanted), _zero_if_left_out(wanted, got)
            why = _other_metadata(got, wanted)
            if why is None and exact is not None:
                why = _other_values(got, wanted)
                if why and _are_alike(got, wanted) and got.is_floating_point():
                    reference = getattr(exact(), kind, [])
                    why = None if _is_as_precise(got, wanted, reference[index : index + 1], scale) else why
            if why is not None:
                found.append(f"{'input after the call' if kind == 'inputs' else kind[:-1]} {index}: {why}")
    return found


def _scale(run: Run) -> float:
    """The largest of all numbers that go in or come out: sums of such may cancel, and leave rounding alone."""
    found = [
        torch.nan_to_num(x.detach().double(), posinf=0.0, neginf=0.0).abs().max().item()
        for x in (*run.inputs, *run.outputs, *run.gradients)
        if _is_plain_tensor(x) and x.is_floating_point() and x.numel()
    ]
    return max(found, default=0.0)


def _is_as_precise(got: torch.Tensor, wanted: torch.Tensor, reference: Sequence[Any], scale: float) -> bool:
    """Whether a result is about as near to float64's as eager's own is: then it is rounding that differs."""
    exact = next(iter(reference), None)
    if not isinstance(exact, torch.Tensor) or exact.shape != got.shape:
        return False
    ours_wide, theirs_wide, eps = got.detach().double(), wanted.detach().double(), torch.finfo(got.dtype).eps
    finite = torch.isfinite(exact) & torch.isfinite(ours_wide) & torch.isfinite(theirs_wide)
    if _other_values(ours_wide[~finite], theirs_wide[~finite]):
        return False
    if not finite.any():
        return True
    # So far from eager, float64 computed something else: it rounded to another whole number, or took another branch.
    if (theirs_wide - exact)[finite].abs().max().item() > math.sqrt(eps) * scale:
        return False
    # Half precision is coarse enough by itself.
    allowed = 3 if torch.finfo(got.dtype).bits <= 16 else 10
    # As a whole, and the worst element: one that is wrong is lost in the norm of a million that are right.
    for order in (2, float("inf")):
        ours, theirs, size = (
            torch.linalg.vector_norm(x[finite], order).item() for x in (ours_wide - exact, theirs_wide - exact, exact)
        )
        if not ours <= allowed * theirs + eps * size:
            return False
    return True


def _zero_if_left_out(gradient: Any, other: Any) -> Any:
    """A gradient that is zero may be left out."""
    return torch.zeros_like(other) if gradient is None and isinstance(other, torch.Tensor) else gradient


def _other_metadata(got: Any, wanted: Any) -> str | None:
    """In words, how a result is another kind of thing than eager's; of what is no tensor, the value too."""
    if not isinstance(wanted, torch.Tensor):
        same = type(got) is type(wanted) and (got == wanted or (got != got and wanted != wanted))
        return None if same else f"{got!r}, where eager has {wanted!r}"
    if not isinstance(got, torch.Tensor):
        return f"{got!r}, where eager has a tensor"
    for name in ("dtype", "shape", "device", "requires_grad"):
        if getattr(got, name) != getattr(wanted, name):
            return f"{name} is {getattr(got, name)}, where eager has {getattr(wanted, name)}"
    return None


def _other_values(got: Any, wanted: Any) -> str | None:
    if not isinstance(wanted, torch.Tensor):
        return None
    try:
        torch.testing.assert_close(got, wanted, equal_nan=True)
    except AssertionError as error:
        return ", ".join(line.strip().rstrip("!") for line in str(error).splitlines() if line.strip())
    return None


def _are_alike(got: Any, wanted: Any) -> bool:
    """Whether two are tensors of one dtype and shape, and no more than a layout of memory."""
    if not _is_plain_tensor(got) or not _is_plain_tensor(wanted):
        return False
    return bool(got.dtype is wanted.dtype and got.shape == wanted.shape)


def _is_plain_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_plain(x)


def _strides(x: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1] if x.numel() else []


def memory_of(values: Sequence[Any]) -> list[int]:
    """For each value the position of the first that lies in the same piece of memory."""
    pieces = [
        x.untyped_storage()._cdata if isinstance(x, torch.Tensor) and is_plain(x) and x.numel() else (index,)
        for index, x in enumerate(values)
    ]
    return [pieces.index(piece) for piece in pieces]
