"""Who is compared: each compiles a function or a Module, and is made to run on the torch that is installed.

thunder.dynamo of lightning-thunder 0.2.6 cannot run by itself on torch 2.12 and later. It gets what it needs and no
more: the names that it misses while it is imported, and split graphs whose code is there at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

NAMES = ("thunder_fx", "thunder.dynamo", "inductor", "dynamo alone", "eager")


def compiler(name: str) -> Callable[..., Any]:
    """What compiles a callable, with options of torch.compile; all that it imports by itself is imported."""
    import torch

    prepared: dict[str, Callable[[], Callable[..., Any]]] = {
        "thunder_fx": _ours,
        "thunder.dynamo": _peer,
        "inductor": lambda: torch.compile,
        "dynamo alone": lambda: lambda fn, **options: torch.compile(fn, backend="eager", **options),
        "eager": lambda: lambda fn, **options: fn,
    }
    return prepared[name]()


def _ours() -> Callable[..., Any]:
    import thunder_fx

    # What does not do what was asked of it is not to be timed as if it did.
    warnings.simplefilter("error", thunder_fx.ThunderFXWarning)
    return thunder_fx.thunderfx


def _peer() -> Callable[..., Any]:
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    # Importing it lends thunder the names that it misses, for as long as thunder is being imported. What makes
    # thunder's passes quicker is in place only while thunder_fx itself compiles: the peer's are as released.
    import thunder_fx  # noqa: F401

    # ruff: isort: split
    import thunder.dynamo.compiler as peer

    split = peer._splitter

    def eager_split(*args: Any, **kwargs: Any) -> Any:
        with _use_lazy_graph_module(False):
            return split(*args, **kwargs)

    if split.__name__ != "eager_split":
        peer._splitter = eager_split
    return peer.thunderfx


def graphs_so_far() -> int:
    """How many graphs Dynamo has handed to a backend in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def parts(name: str, compiled: Any, graphs_before: int, given_away: int | None = 0) -> dict[str, int]:
    """How many graphs were captured of a callable that ran, and of thunder's contestants the regions these became.

    `given_away` is how many of thunder_fx's regions are known to be Inductor's; None where thunder need not have any.

    Raises:
        RuntimeError: nothing was captured, or thunder compiled nothing of it, or less than it is known to: the times
            would be another's.
    """
    if name == "eager":
        return {}
    found = {"graphs": graphs_so_far() - graphs_before}
    if name in ("thunder_fx", "thunder.dynamo"):
        import thunder_fx
        from thunder_fx.subgraph import CompilerType

        infos = thunder_fx.get_subgraph_info(compiled)
        regions = [region for info in infos for region in info.regions]
        others = [region.name for region in regions if region.compiler is not CompilerType.THUNDER]
        found = {"graphs": len(infos), "regions": len(regions)}
        known = len(others) == given_away or name != "thunder_fx"
        if given_away is not None and (len(others) == len(regions) or not known):
            raise RuntimeError(f"{name} compiled {len(regions)} regions, and thunder is not to run {others}")
    if not found["graphs"]:
        raise RuntimeError(f"{name} compiled nothing: {found}")
    return found
