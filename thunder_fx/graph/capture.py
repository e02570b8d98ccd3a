"""Keeping copies of the values that a graph or region is given, where the user asked for it, or where it failed.

What is made of them is repro's. The setting is thunder_fx.config.capture_inputs, read when a graph is compiled.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fx import _torch
from thunder_fx._config import config
from thunder_fx.subgraph import RecordedInputs, describe

logger = logging.getLogger("thunder_fx")


def is_on() -> bool:
    return bool(config.capture_inputs == "values")


def before_call(args: Sequence[Any]) -> RecordedInputs:
    """Copies of what a call is given, taken before it runs."""
    return _recorded(args, "")


def at_failure(args: Sequence[Any], *, writes: bool) -> RecordedInputs | None:
    """Copies of what a failed call was given. A failure to copy must not hide the one that is being reported."""
    note = "recorded when it failed, maybe after it had written into some of them" if writes else ""
    try:
        return _recorded(args, note)
    except Exception as error:
        logger.warning("the inputs of a failed call could not be recorded: %s", describe(error))
        return None


def _recorded(args: Sequence[Any], note: str) -> RecordedInputs:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    storages = {_torch.storage_of(tensor): _size(tensor) for tensor in tensors}
    size, limit = sum(storages.values()), int(config.capture_limit)
    if size > limit << 20:
        return RecordedInputs(
            None,
            f"the inputs take {size / 2**20:.0f} MiB, more than the {limit} that are recorded: they are made up; raise "
            "thunder_fx.config.capture_limit (THUNDER_FX_CAPTURE_LIMIT, in MiB) before the call",
        )
    with torch.no_grad(), torch.inference_mode(False):
        # deepcopy keeps what shares memory sharing it.
        values = copy.deepcopy([arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args])
    return RecordedInputs(values, note)


def _size(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # sparse, and the like
        return tensor.numel() * tensor.element_size()
