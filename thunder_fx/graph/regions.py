"""A region's callable: what runs it, what it records when it fails, who takes over, and the short way.

A region's callable reaches the records by weak references only: Dynamo holds it longer than anyone holds the record.
What Inductor compiles is inductor.py's.

The short way (decision 9 of the design). thunder's callable looks its cache up on every call, by running a prologue
that checks what it compiled for. Dynamo's guards have checked the same just before, so that a region of static shapes
goes straight to thunder's computation, and one of symbolic sizes finds it by the sizes at hand. GUARDED_BY_DYNAMO says
which guard stands for which check; a prologue with any other check keeps thunder's own way, and so does a computation
that writes into its inputs, for which aliasing matters.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from thunder_fx import _quick, _thunder, _torch
from thunder_fx._config import config
from thunder_fx.errors import ThunderFXWarning
from thunder_fx.graph import capture, higher_order, inductor, modes, results, structure, tracing, writes
from thunder_fx.subgraph import (
    CompiledFunction,
    CompilerType,
    Region,
    SplitReason,
    SplitReasonType,
    SubgraphInfo,
    describe,
)

logger = logging.getLogger("thunder_fx")

# For so many sets of sizes a region is kept compiled: as many as Dynamo compiles of one function before it is reset.
MOST_SIZES = 256

# While a region goes from one compiler to the next, which is rare: no other thread begins the same.
_handing_over = threading.RLock()


@dataclass(frozen=True)
class Options:
    """How to compile a region, by either compiler; and what to call when its backward has raised.

    `on_first_call` is called when thunder has compiled it, which is then.
    """

    thunder: Mapping[str, Any]
    inductor: Mapping[str, Any]
    on_backward_failure: Callable[[SubgraphInfo, Exception], None] = lambda info, error: None
    on_first_call: Callable[[SubgraphInfo, Region], None] = lambda info, region: None


class CompiledRegion(torch.nn.Module):
    """A region in the split graph: calls what compiled it, and keeps a failure's text on its record."""

    def __init__(
        self,
        graph_module: GraphModule,
        run: Callable[..., Any],
        region: Region,
        backward_failed: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self._backward_failed = backward_failed
        self.graph = graph_module.graph  # for GraphModule.print_readable and whoever counts nodes
        self.run = run
        # Not the Module itself: its call looks for hooks, and torch.fx's prints to stderr when a region raises.
        self._run = run.forward if isinstance(run, torch.nn.Module) else run
        self._wanted = results.in_eager(graph_module)
        self._call = self._first_call
        # A weak reference is no business of Module.__setattr__, and a copy of the graph must not share the record.
        self._region = weakref.ref(region)

    def forward(self, *args: Any) -> Any:
        try:
            return self._call(*args)
        except Exception as error:
            region = self._region()
            if region is not None:
                region.failed(error)
                self._keep_inputs_of_failure(region, args)
            raise

    def _keep_inputs_of_failure(self, region: Region, args: tuple[Any, ...]) -> None:
        nodes = [node for node in self.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        region._inputs = capture.at_failure(args, writes=any(map(writes.all_written_storages, nodes)))

    def _first_call(self, *args: Any) -> Any:
        """Whatever result a compiler makes otherwise than eager, it makes so again in each call."""
        run, before = self._run, _nodes_of(args)
        result = run(*args)
        _torch.watch_backward(_nodes_of(results.of(result)) - before, self._backward_failed)
        mend = results.mending(result, self._wanted)
        self._call = run if mend is None else lambda *args: mend(run(*args))
        return result if mend is None else mend(result)


class _RecordingRegion(CompiledRegion):
    """A region that keeps copies of what it is given, since the user asked for them when it was compiled."""

    def forward(self, *args: Any) -> Any:
        region = self._region()
        if region is not None:
            region._inputs = capture.before_call(args)
        return super().forward(*args)

    def _keep_inputs_of_failure(self, region: Region, args: tuple[Any, ...]) -> None:
        pass  # they were taken before the call, which is better


def compile_region(graph_module: GraphModule, region: Region, info: SubgraphInfo, options: Options) -> CompiledRegion:
    """Compile one region by the compiler that its record names; changes the record where another has to take it."""
    if region.compiler is CompilerType.THUNDER:
        run: Callable[..., Any] = _ThunderRun(graph_module, region, info, options)
    else:
        run = inductor.compile_region(graph_module, region, options.inductor)
    kind = _RecordingRegion if capture.is_on() else CompiledRegion
    return kind(graph_module, run, region, _backward_watcher(region, info, options))


def _backward_watcher(region: Region, info: SubgraphInfo, options: Options) -> Callable[[Exception], None]:
    """What to call when the region's backward has raised: autograd reports it where no region is on the stack."""
    region_of, info_of, tell = weakref.ref(region), weakref.ref(info), options.on_backward_failure

    def failed(error: Exception) -> None:
        region, info = region_of(), info_of()
        if region is not None and info is not None:
            region.failed(error)
            tell(info, error)

    return failed


class _ThunderRun(torch.nn.Module):
    """Runs a region by thunder, which traces it when it first runs.

    What cannot be traced straight is left to thunder's interpreter, and what that cannot trace, to Inductor. A Module,
    so that the split graph shows thunder's Module below the region.
    """

    def __init__(self, graph_module: GraphModule, region: Region, info: SubgraphInfo, options: Options) -> None:
        super().__init__()
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        self._is_symbolic = any(map(structure.is_symbolic, placeholders))
        # Outside of Dynamo nobody has checked anything before a call.
        self._is_guarded = _torch.inside_dynamo()
        self._is_differentiable = differentiable_outputs(graph_module)
        self._writes = any(writes.all_written_storages(node) for node in structure.calls(graph_module))
        self._grad_mode_after = modes.grad_mode_after(graph_module)
        self._region = weakref.ref(region)
        self._info = weakref.ref(info)
        self._backward_failed = _backward_watcher(region, info, options)
        self._on_first_call = options.on_first_call
        # Held while thunder may still fail to trace it; in a tuple, so that Module does not register it as a child.
        self._untraced: tuple[GraphModule, Options] | None = (graph_module, options)
        straight = not tracing.needs_interpreter(options.thunder)
        self.jitted, constants = self._jit(graph_module, options, straight=straight)
        self._by_thunder = (self.jitted, constants)
        region._compiled = self.jitted
        region.interpreted = not straight
        self._run: Callable[..., Any] = self._run_straight if straight else self._run_interpreted
        # Where sizes are symbolic, the short way for each set of them, and what runs those that have none.
        self._ways: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._run_others = self._run

    def forward(self, *args: Any) -> Any:
        return self._run(*args)

    def _jit(
        self, graph_module: GraphModule, options: Options, *, straight: bool
    ) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        """thunder's callable for the region, and the constants to call it with, after the region's inputs."""
        # thunder's form of higher-order operators is not Inductor's, which may have to take over: so a copy.
        own = structure.copy_structure(graph_module)
        higher_order.adapt(own)
        module, constants = tracing.traceable(own) if straight else (tracing.interpretable(own), ())
        jitted = _thunder.jit(
            module,
            options.thunder,
            static_inputs=self._is_guarded and not self._is_symbolic,
            is_differentiable_outputs=self._is_differentiable,
        )
        _thunder.keep_newest(jitted, MOST_SIZES)
        return jitted, constants

    # What `_run` is, one after another. Two threads may be in the same one: the first to fail goes on to the next.

    def _run_straight(self, *args: Any) -> Any:
        untraced, (jitted, _) = self._untraced, self._by_thunder
        try:
            return self._first_call(*args)
        except Exception as error:
            if untraced is None or not _thunder.is_tracing_failure(error):
                raise
        with _handing_over:
            if self._by_thunder[0] is jitted:
                self._by_thunder = self._jit(*untraced, straight=False)
                self.jitted = self._by_thunder[0]
                self._replace_in_record(jitted, CompiledFunction(self.jitted, CompilerType.THUNDER))
                if (region := self._region()) is not None:
                    region._compiled, region.interpreted = self.jitted, True
                self._run = self._run_interpreted
        return self._run(*args)

    def _run_interpreted(self, *args: Any) -> Any:
        untraced = self._untraced
        try:
            return self._first_call(*args)
        except Exception as error:
            if untraced is None or not _thunder.is_tracing_failure(error):
                raise
            refused = describe(error)
        with _handing_over:
            if self._untraced is not None:
                substitute = self._give_away(*untraced, args)
                self._record_gift(refused, substitute)
                self._run = substitute
                self._untraced = None
        return self._run(*args)

    def _first_call(self, *args: Any) -> Any:
        is_grad_enabled = torch.is_grad_enabled()
        start, before = time.perf_counter(), self._compilations()
        # Where sizes are symbolic and there is no short way, most later calls compile nothing.
        with _quick.quickened() if before == 0 or self._ways else contextlib.nullcontext():
            result = self._run_checked(*args)
        if self._compilations() > before:
            self._note_first_call(time.perf_counter() - start)
            if _thunder.compilations_gone(self._by_thunder[0]) == 1:
                self._warn_of_sizes()
        # Where sizes are symbolic thunder traces again for each: any later call may be the one that it cannot trace.
        if self._is_symbolic:
            self._add_way(args, is_grad_enabled)
        else:
            only = _thunder.times_compiled(self._by_thunder[0]) == 1
            self._run = (self._short_way(args, is_grad_enabled) if only else None) or self._run_checked
            self._untraced = None
        return result

    def _add_way(self, args: tuple[Any, ...], is_grad_enabled: bool) -> None:
        way = self._short_way(args, is_grad_enabled)
        if way is None or not all(type(arg) is int or isinstance(arg, torch.Tensor) for arg in args):
            return
        with _handing_over:
            if self._untraced is None:  # another thread has given the region away meanwhile
                return
            while len(self._ways) >= MOST_SIZES:
                del self._ways[next(iter(self._ways))]
            self._ways[_sizes(args)] = way
            if self._run != self._run_by_sizes:
                self._run_others, self._run = self._run, self._run_by_sizes

    def _run_by_sizes(self, *args: Any) -> Any:
        """Dynamo's guards have checked all but the sizes, and so these find what was compiled for them."""
        way = self._ways.get(_sizes(args))
        return self._run_others(*args) if way is None else way(*args)

    def _compilations(self) -> int:
        return _thunder.compilations(self._by_thunder[0])

    def _note_first_call(self, seconds: float) -> None:
        """thunder compiles when a region first runs: what a graph's compilation took leaves that out."""
        info, region = self._info(), self._region()
        if region is not None:
            region.seconds["first call"] = region.seconds.get("first call", 0.0) + seconds
            if info is not None:
                self._on_first_call(info, region)
        if config.verbose and info is not None and region is not None:
            logger.info("graph %d: %s, first call for these sizes %.2f s", info.graph_id, region.name, seconds)

    def _warn_of_sizes(self) -> None:
        info, region = self._info(), self._region()
        if info is not None and region is not None:
            warnings.warn(
                f"thunder has compiled {region.name} of {info.source} for more than {MOST_SIZES} sets of sizes: the "
                f"newest {MOST_SIZES} are kept, and one that comes back after that is compiled again. Pad the inputs "
                "to fewer sizes",
                ThunderFXWarning,
                stacklevel=2,
            )

    def _run_checked(self, *args: Any) -> Any:
        """thunder's own way, which checks its inputs."""
        jitted, constants = self._by_thunder
        result = jitted(*args, *constants)
        if torch.is_grad_enabled():
            _prepare_backward(_nodes_of(results.of(result)) - _nodes_of(args), self._backward_failed)
        if self._grad_mode_after is not None:
            # thunder 0.2.6 sets the mode that a region leaves when it compiles it, and in later calls the one it found.
            torch.set_grad_enabled(self._grad_mode_after)
        return result

    def _short_way(self, args: tuple[Any, ...], is_grad_enabled: bool) -> Callable[..., Any] | None:
        """Straight to thunder's computation, where Dynamo's guards have checked all that its prologue would."""
        jitted, constants = self._by_thunder
        compiled = _thunder.compiled_for(jitted, [*args, *constants])
        if not self._is_guarded or self._writes or self._grad_mode_after is not None:
            return None
        if compiled is None or not compiled.checks <= GUARDED_BY_DYNAMO.keys():
            return None
        if compiled.sizes and not self._is_symbolic:
            return None
        if compiled.backward is not None:
            _thunder.watch_backward(compiled.backward, self._backward_failed)
        return _thunder.direct_call(compiled, constants, self._is_differentiable, is_grad_enabled=is_grad_enabled)

    def _give_away(self, graph_module: GraphModule, options: Options, args: tuple[Any, ...]) -> Callable[..., Any]:
        """What runs the region instead: Inductor; eager where sizes are symbolic, which needs Dynamo's help."""
        region = self._region() or Region(name="", compiler=CompilerType.THUNDER)
        region._compiled, region.interpreted = None, False
        if self._is_symbolic:
            region.compiler = CompilerType.EAGER
            return higher_order.runs_in_eager(graph_module).forward
        region.compiler = CompilerType.TORCH_INDUCTOR
        return inductor.compile_for(graph_module, list(args), region, options.inductor)

    def _record_gift(self, refused: str, substitute: Callable[..., Any]) -> None:
        info, region = self._info(), self._region()
        if info is None or region is None:
            return
        text = f"region {region.name} was given away, since thunder could not trace it; see exception field"
        info.split_reasons.append(SplitReason(SplitReasonType.EXCEPTION_TRACING, text, refused))
        if self.jitted in info.thunder_compiled_fns:
            index = info.thunder_compiled_fns.index(self.jitted)
            del info.thunder_compiled_fns[index], info.thunder_compiled_fns_example_inputs[index]
        self._replace_in_record(self.jitted, CompiledFunction(substitute, region.compiler))

    def _replace_in_record(self, old: Callable[..., Any], new: CompiledFunction) -> None:
        info = self._info()
        if info is None:
            return
        info.thunder_compiled_fns[:] = [new.compiled_fn if fn is old else fn for fn in info.thunder_compiled_fns]
        for graph, function in info.submodule_to_compiled_functions.items():
            if function.compiled_fn is old:
                info.submodule_to_compiled_functions[graph] = new


# thunder's prologue checks, by what they check, and the guard of Dynamo that has checked it when a call gets here.
GUARDED_BY_DYNAMO: Mapping[str, str] = {
    "number of inputs": "Dynamo's code calls a graph with the inputs that it was captured with",
    "number": "none: _run_by_sizes looks it up",
    "tensor": "TENSOR_MATCH: dtype, device, layout, shape, strides, requires_grad, class, dispatch keys",
    "default_dtype": "GLOBAL_STATE",
    "default_device": "DEFAULT_DEVICE",
    "is_grad_enabled": "GLOBAL_STATE",
    "is_autocast_enabled": "GLOBAL_STATE",
    "autocast_config_torch_enabled": "GLOBAL_STATE",
    "autocast_config_torch_cpu_enabled": "GLOBAL_STATE",
    "autocast_gpu_dtype": "GLOBAL_STATE",
    "autocast_cpu_dtype": "GLOBAL_STATE",
    "autocast_thunder_dtype": "GLOBAL_STATE",
    # Two names of one tensor matter to what writes into one of them: that keeps thunder's own way.
    "alias_tensor_indices": "none is needed",
    # Of thunder.distributed's own wrappers, which a region is not.
    "no_grad_sync": "none is needed",
}


def differentiable_outputs(graph_module: GraphModule) -> list[bool]:
    """For each value that a graph returns, whether autograd connects it to the inputs.

    But for numbers: to thunder 0.2.6 they are constants of the sizes that it compiles for, which it does not compute.
    """
    values = [node.meta.get("example_value") for node in structure.outputs(graph_module)]
    numbers = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return [getattr(value, "grad_fn", None) is not None for value in values if not isinstance(value, numbers)]


def _prepare_backward(nodes: Iterable[Any], failed: Callable[[Exception], None]) -> None:
    """Have the gradient of a gradient raise: thunder's backward cannot be differentiated, and would pass for constant.

    (torch's once_differentiable, under which thunder's backward runs, looks at the incoming gradients alone.) And have
    a backward that raises tell so.
    """
    for node in nodes:
        if type(node).__name__ == _thunder.AUTOGRAD_NODE:
            node.register_hook(_torch.raise_if_differentiable)
            node.compiled_backward = _torch.telling(_thunder.emptying(node.compiled_backward), failed)
            return  # one node for all outputs of a region


def _sizes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([arg.shape if isinstance(arg, torch.Tensor) else arg for arg in args])


def _nodes_of(values: Iterable[Any]) -> set[Any]:
    """The autograd nodes behind values. What a region was given and hands on has another's."""
    return {value.grad_fn for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None}
