"""Compiling a region by Inductor, and running it eager where Inductor cannot. What thunder runs is regions.py's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from thunder_fx import _thunder, _torch
from thunder_fx.errors import ThunderFXWarning
from thunder_fx.graph import higher_order, randomness, structure, writes
from thunder_fx.subgraph import CompilerType, Region, describe

# Random operators keep eager's stream under a seed only so.
DEFAULTS: Mapping[str, Any] = {"fallback_random": True}


def compile_region(graph_module: GraphModule, region: Region, options: Mapping[str, Any]) -> Callable[..., Any]:
    if any(map(randomness.differs_in_inductor, structure.calls(graph_module))) or _is_wrong_about_writes(graph_module):
        region.compiler = CompilerType.EAGER
        return higher_order.runs_in_eager(graph_module)
    arguments = _thunder.fake_arguments(graph_module)
    if arguments is None:
        return _run_eager(graph_module, region, "Example values for arguments are not available.")
    return compile_for(graph_module, _apart(arguments), region, options)


def _is_wrong_about_writes(graph_module: GraphModule) -> bool:
    """Whether a region holds a write of a kind that Inductor gets silently wrong (seen on 2.13).

    A write into an input of a region that takes part in autograd: it may keep a view of the input for its backward, and
    write into it before (`v = x[:, 1]; y = (v - 1).sinc(); v.fill_(1); return y`). One through a view that shows an
    element more than once (`x.expand(2, 4, 4).zero_()` makes -x of x). And a change of shape in place, which fails
    when it runs.
    """
    nodes = structure.calls(graph_module)
    targets = [tensor for node in nodes for target in writes.written(node) for tensor in structure.tensors_of(target)]
    if any(map(structure.shows_elements_twice, targets)) or any(structure.name_of(n) in _RESHAPING for n in nodes):
        return True
    # What a higher-order operator writes is for whoever compiles its body: eager does not run every one of them.
    nodes = [node for node in nodes if not isinstance(node.target, _torch.HigherOrderOperator)]
    inputs = writes.storages_from_outside(graph_module)
    if all(inputs.isdisjoint(writes.written_storages(node)) for node in nodes):
        return False
    return any(tensor.requires_grad for node in graph_module.graph.nodes for tensor in structure.tensors_of(node))


_RESHAPING = frozenset(
    {"as_strided_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "t_", "transpose_", "unsqueeze_"}
)


def _apart(arguments: list[Any]) -> list[Any]:
    """The same arguments, none sharing a storage with another.

    Inductor compiles overlapping arguments for overlapping ones only, if it writes into them; inplace.OverlapGuard lets
    no such call come here.
    """
    seen: set[int | None] = set()
    apart = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.layout is torch.strided:
            storage = _torch.storage_of(argument)
            if storage in seen:
                argument = _alone(argument)
            seen.add(storage)
        apart.append(argument)
    return apart


def _alone(fake: Any) -> Any:
    with fake.fake_mode:
        twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return twin.requires_grad_(fake.requires_grad)


def compile_for(
    graph_module: GraphModule, arguments: list[Any], region: Region, options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile a region for arguments, real or fake, of which none overlaps another; eager where Inductor fails."""
    # Inductor changes the graph that it is given; the eager fallback needs it as it was.
    own = structure.copy_structure(graph_module)
    try:
        compiled = _torch.compile_by_inductor(own, arguments, {**DEFAULTS, **options})
    except _torch.CONTROL_FLOW:
        raise
    except _torch.DynamicOutputShapeException as error:
        return _run_eager(graph_module, region, f"Dynamic output shape operator encountered: {error}.", error)
    except Exception as error:
        advice = " (install g++, or set CXX)" if type(error.__cause__ or error).__name__ == "InvalidCxxCompiler" else ""
        return _run_eager(graph_module, region, f"Inductor failed with {describe(error)}{advice}.", error)
    region._compiled = compiled
    run: Callable[..., Any] = compiled
    return run


def _run_eager(
    graph_module: GraphModule, region: Region, why: str, error: Exception | None = None
) -> Callable[..., Any]:
    if error is not None:
        region.failed(error)
        region._failed_by = CompilerType.TORCH_INDUCTOR
    else:
        region.error = why
    region.compiler = CompilerType.EAGER
    warnings.warn(f"{why} Falling back to eager for the region {region.name}.", ThunderFXWarning, stacklevel=2)
    return higher_order.runs_in_eager(graph_module)
