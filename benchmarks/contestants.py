"""Who is compared: each compiles a function or a Module, and is made to run on the torch that is installed.

thunder.dynamo of lightning-thunder 0.2.6 cannot run by itself on torch 2.12 and later. It gets what it needs and no
more: the names that it misses while it is imported, and split graphs whose code is there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAMES = ("thunder_fx", "thunder.dynamo", "inductor", "dynamo alone", "eager")


def compiler(name: str) -> Callable[[Any], Any]:
    """What compiles, imported and past the costs of its first use, which a benchmark may call with a callable."""
    import torch

    prepared: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "thunder_fx": _ours,
        "thunder.dynamo": _peer,
        "inductor": lambda: torch.compile,
        "dynamo alone": lambda: lambda fn: torch.compile(fn, backend="eager"),
        "eager": lambda: lambda fn: fn,
    }
    return prepared[name]()


def _ours() -> Callable[[Any], Any]:
    import thunder_fx

    return thunder_fx.thunderfx


def _peer() -> Callable[[Any], Any]:
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    # Its names are lent to thunder while it is imported, and the pass that makes it quicker is not.
    import thunder_fx  # noqa: F401

    # ruff: isort: split
    import thunder.dynamo.compiler as peer

    split = peer._splitter

    def eager_split(*args: Any, **kwargs: Any) -> Any:
        with _use_lazy_graph_module(False):
            return split(*args, **kwargs)

    peer._splitter = eager_split
    return peer.thunderfx
