"""Keeping copies of the values that a graph or region is given, where the user asked for it, or where it failed.

What is made of them is repro's. The setting is thunder_fx.config.capture_inputs, read when a graph is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thunder_fx import _torch
from thunder_fx._config import config
from thunder_fx.portable.copies import copied
from thunder_fx.subgraph import RecordedInputs, describe


def is_on() -> bool:
    return bool(config.capture_inputs == "values")


def before_call(args: Sequence[Any]) -> RecordedInputs:
    """Copies of what a call is given, taken before it runs."""
    return _recorded(args, "", 0)


def at_failure(args: Sequence[Any], *, writes: bool, kept: Iterable[RecordedInputs | None] = ()) -> RecordedInputs:
    """Copies of what a failed call was given; `kept` are those that its regions have made, which count to the limit."""
    note = "recorded when it failed, maybe after it had written into some of them" if writes else ""
    values = [value for recorded in kept if recorded is not None for value in recorded.values or ()]
    return _recorded(args, note, _size(values))


def _recorded(args: Sequence[Any], note: str, used: int) -> RecordedInputs:
    """A failure to copy must neither end a call nor hide the failure that is being reported."""
    try:
        return _copied(args, note, used)
    except Exception as error:
        return RecordedInputs(None, f"the inputs could not be recorded, and are made up: {describe(error)}")


def _copied(args: Sequence[Any], note: str, used: int) -> RecordedInputs:
    size, limit = _size(args), int(config.capture_limit)
    if size + used > limit << 20:
        return RecordedInputs(
            None,
            f"the inputs take {size / 2**20:.0f} MiB, more than the {limit} that are recorded: they are made up; raise "
            "thunder_fx.config.capture_limit (THUNDER_FX_CAPTURE_LIMIT, in MiB) before the call",
        )
    with torch.no_grad(), torch.inference_mode(False):
        return RecordedInputs(copied(args, detached=True), note)


def _size(values: Iterable[Any]) -> int:
    """The bytes of the memory that values lie in, each piece once."""
    sizes: dict[Any, int] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = _torch.storage_of(value)
            if storage is None:  # sparse, and the like
                sizes[id(value)] = value.numel() * value.element_size()
            else:
                sizes[storage, "storage"] = value.untyped_storage().nbytes()
    return sum(sizes.values())
