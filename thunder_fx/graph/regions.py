"""Compiling a region, and the callable that runs it: what it records when it fails, and who takes over.

A region's callable reaches the records by weak references only: Dynamo holds it longer than anyone holds the record.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._inductor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx import GraphModule

from thunder_fx import _thunder, _torch
from thunder_fx.errors import ThunderFXWarning
from thunder_fx.graph import higher_order, randomness, structure
from thunder_fx.subgraph import (
    CompiledFunction,
    CompilerType,
    Region,
    SplitReason,
    SplitReasonType,
    SubgraphInfo,
    describe,
)


class CompiledRegion(torch.nn.Module):
    """A region in the split graph: calls what compiled it, and keeps a failure's text on its record."""

    def __init__(self, graph_module: GraphModule, run: Callable[..., Any], region: Region) -> None:
        super().__init__()
        self.graph = graph_module.graph  # for GraphModule.print_readable and whoever counts nodes
        self.run = run
        # A weak reference is no business of Module.__setattr__, and a copy of the graph must not share the record.
        self._region = weakref.ref(region)

    def forward(self, *args: Any) -> Any:
        try:
            return self.run(*args)
        except Exception as error:
            region = self._region()
            if region is not None:
                region.failed(error)
            raise


def compile_region(
    graph_module: GraphModule,
    region: Region,
    info: SubgraphInfo,
    thunder_options: Mapping[str, Any],
    inductor_options: Mapping[str, Any],
) -> CompiledRegion:
    """Compile one region by the compiler that its record names; changes the record where another has to take it."""
    if region.compiler is CompilerType.THUNDER:
        run = _compile_by_thunder(graph_module, region, info, thunder_options, inductor_options)
    else:
        run = _compile_by_inductor(graph_module, region, inductor_options)
    return CompiledRegion(graph_module, run, region)


# thunder


def _compile_by_thunder(
    graph_module: GraphModule,
    region: Region,
    info: SubgraphInfo,
    thunder_options: Mapping[str, Any],
    inductor_options: Mapping[str, Any],
) -> Callable[..., Any]:
    # thunder's form of higher-order operators is not Inductor's, which may have to take over: so a copy.
    own = structure.copy_structure(graph_module)
    higher_order.adapt_autograd_functions(own)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    jitted = _thunder.jit(
        own,
        thunder_options,
        static_inputs=_torch.inside_dynamo() and not any(map(structure.is_symbolic, placeholders)),
        is_differentiable_outputs=[_is_differentiable(node) for node in structure.outputs(graph_module)],
    )
    region._compiled = jitted
    return _ThunderRun(jitted, graph_module, region, info, inductor_options)


def _forbid_second_derivative(result: Any) -> None:
    """Have the gradient of a gradient raise: thunder's backward cannot be differentiated, and would pass for constant.

    (torch's once_differentiable, under which thunder's backward runs, looks at the incoming gradients alone.)
    """
    for output in result if isinstance(result, (tuple, list)) else (result,):
        node: Any = output.grad_fn if isinstance(output, torch.Tensor) else None
        if type(node).__name__ == _thunder.AUTOGRAD_NODE:
            node.register_hook(_torch.raise_if_differentiable)
            return  # one node for all outputs of a region


def _is_differentiable(node: torch.fx.Node) -> bool:
    return getattr(node.meta.get("example_value"), "grad_fn", None) is not None


class _ThunderRun(torch.nn.Module):
    """Runs a region by thunder, which traces it when it first runs; if it cannot trace it, Inductor runs it instead.

    A Module, so that the split graph shows thunder's Module below the region.
    """

    def __init__(
        self,
        jitted: Callable[..., Any],
        graph_module: GraphModule,
        region: Region,
        info: SubgraphInfo,
        inductor_options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.jitted = jitted
        self._substitute: Callable[..., Any] | None = None
        # Held while thunder may still fail to trace it; in a tuple, so that Module does not register it as a child.
        self._untraced: tuple[GraphModule, Mapping[str, Any]] | None = (graph_module, inductor_options)
        self._region = weakref.ref(region)
        self._info = weakref.ref(info)

    def forward(self, *args: Any) -> Any:
        # Read in the opposite order to that in which another thread sets them, when it gives the region away.
        untraced = self._untraced
        if self._substitute is not None:
            return self._substitute(*args)
        if untraced is not None:
            return self._run_untraced(untraced, *args)
        return self._finish(self.jitted(*args))

    def _finish(self, result: Any) -> Any:
        if torch.is_grad_enabled():
            _forbid_second_derivative(result)
        return result

    def _run_untraced(self, untraced: tuple[GraphModule, Mapping[str, Any]], *args: Any) -> Any:
        graph_module, options = untraced
        # thunder traces again for each size: then any later call may be the one that it cannot trace.
        is_symbolic = any(map(structure.is_symbolic, graph_module.graph.find_nodes(op="placeholder")))
        try:
            result = self.jitted(*args)
        except Exception as error:
            if not _thunder.is_tracing_failure(error):
                raise
            region = self._region() or Region(name="", compiler=CompilerType.THUNDER)
            substitute = _give_away(graph_module, args, region, options, is_symbolic=is_symbolic)
            self._record_gift(error, region, substitute)
            self._substitute = substitute
            self._untraced = None
        else:
            if not is_symbolic:
                self._untraced = None
            return self._finish(result)
        return substitute(*args)

    def _record_gift(self, error: Exception, region: Region, substitute: Callable[..., Any]) -> None:
        info = self._info()
        if info is None:
            return
        text = f"region {region.name} was given away, since thunder could not trace it; see exception field"
        info.split_reasons.append(SplitReason(SplitReasonType.EXCEPTION_TRACING, text, describe(error)))
        if self.jitted in info.thunder_compiled_fns:
            index = info.thunder_compiled_fns.index(self.jitted)
            del info.thunder_compiled_fns[index], info.thunder_compiled_fns_example_inputs[index]
        for graph, function in info.submodule_to_compiled_functions.items():
            if function.compiled_fn is self.jitted:
                info.submodule_to_compiled_functions[graph] = CompiledFunction(substitute, region.compiler)


def _give_away(
    graph_module: GraphModule,
    args: tuple[Any, ...],
    region: Region,
    options: Mapping[str, Any],
    *,
    is_symbolic: bool,
) -> Callable[..., Any]:
    """What runs a region instead of thunder: Inductor; eager where sizes are symbolic, which needs Dynamo's help."""
    region._compiled = None
    if is_symbolic:
        region.compiler = CompilerType.EAGER
        return graph_module
    region.compiler = CompilerType.TORCH_INDUCTOR
    return _by_inductor_or_eager(graph_module, list(args), region, options)


# Inductor


def _compile_by_inductor(graph_module: GraphModule, region: Region, options: Mapping[str, Any]) -> Callable[..., Any]:
    if any(map(randomness.differs_in_inductor, structure.calls(graph_module))):
        region.compiler = CompilerType.EAGER
        return graph_module
    arguments = _thunder.fake_arguments(graph_module)
    if arguments is None:
        return _run_eager(graph_module, region, "Example values for arguments are not available.")
    return _by_inductor_or_eager(graph_module, arguments, region, options)


def _by_inductor_or_eager(
    graph_module: GraphModule, arguments: list[Any], region: Region, options: Mapping[str, Any]
) -> Callable[..., Any]:
    # Inductor changes the graph that it is given; the eager fallback needs it as it was.
    own = structure.copy_structure(graph_module)
    try:
        # Random operators keep eager's stream under a seed only in this mode.
        compiled = torch._inductor.compile(own, arguments, options={"fallback_random": True, **options})
    except _torch.CONTROL_FLOW:
        raise
    except DynamicOutputShapeException as error:
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
    else:
        region.error = why
    region.compiler = CompilerType.EAGER
    warnings.warn(f"{why} Falling back to eager for the region {region.name}.", ThunderFXWarning, stacklevel=2)
    return graph_module
