"""ThunderCompiler, the record of what was compiled, and Hook, the small callable that Dynamo is given in its place.

Dynamo keeps every backend until torch._dynamo.reset(). So it gets a Hook, which owns what compiling needs and reaches
the record by a weak reference: when the record is gone, the hook compiles exactly the same and records nothing. What
compiling consists of is graph/'s; who looks a record up is registry.py's and inspection.py's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fx import _keeping, _quick, _torch
from thunder_fx import options as option_rules
from thunder_fx._config import config
from thunder_fx.errors import OptionError, ThunderFXWarning
from thunder_fx.graph import (
    capture,
    higher_order,
    inductor,
    inplace,
    modes,
    partition,
    regions,
    rewrites,
    structure,
    support,
)
from thunder_fx.options import THUNDER_DEFAULTS
from thunder_fx.subgraph import CompiledFunction, CompilerType, Region, Source, SubgraphInfo, describe

logger = logging.getLogger("thunder_fx")

_live: weakref.WeakSet[ThunderCompiler] = weakref.WeakSet()
# For what follows of a hook's first use, and the set above: a WeakSet cannot be iterated while another thread adds.
_lock = threading.RLock()


class ThunderCompiler:
    """Compiles the graphs that Dynamo captures by thunder, and remembers each.

        from thunder_fx import ThunderCompiler, get_subgraph_info
        backend = ThunderCompiler(transforms=[])
        model.compile(backend=backend)          # or torch.compile(model, backend=backend)
        model(x)
        get_subgraph_info(model)                # the same as backend.subgraph_infos

    `thunderfx()` makes one for each callable; give one to torch.compile yourself to compile a Module in place, or to
    collect the graphs of several callables. It then lives until `torch._dynamo.reset()`, since Dynamo keeps its
    backends; `forget(model)` empties it before.

    Args:
        thunder_options: thunder.jit's options, by any name.
        torch_compile_options: what torch.compile was told. Only `mode`, `options` and `dynamic` act, on the regions
            that Inductor compiles, where torch.compile itself hands over none.
        **thunder_kwargs: thunder.jit's options, by the names that it takes.

    Raises:
        OptionError: (a TypeError) an unknown name, or an option that is torch.compile's.
        OptionValueError: (a ValueError) a value that an option does not take.

    Attributes:
        subgraph_infos: a SubgraphInfo for each captured graph, in order of capture; of one function's graphs as many
            as Dynamo compiles of it before a reset (torch._dynamo.config.accumulated_recompile_limit, 256), the newest.
        thunder_options, torch_compile_options: as given, in dicts of its own.
        emptied: whether forget() has dropped graphs of it.
    """

    def __init__(
        self,
        thunder_options: Mapping[str, Any] | None = None,
        torch_compile_options: Mapping[str, Any] | None = None,
        **thunder_kwargs: Any,
    ) -> None:
        target = "ThunderCompiler()"
        routed = option_rules.route(target, thunder_kwargs)
        if routed.torch_compile:
            name = next(iter(routed.torch_compile))
            raise OptionError(
                f"{target}: {name}= is torch.compile's option; write torch.compile(fn, backend=ThunderCompiler(...), "
                f"{name}=...)"
            )
        if thunder_options is not None and not isinstance(thunder_options, Mapping):
            raise OptionError(f"{target}: thunder_options= takes a dict; found {thunder_options!r}")
        if torch_compile_options is not None and not isinstance(torch_compile_options, Mapping):
            raise OptionError(f"{target}: torch_compile_options= takes a dict; found {torch_compile_options!r}")
        known = option_rules.route(target, dict(torch_compile_options or {}))
        if known.thunder:
            name = next(iter(known.thunder))
            raise OptionError(f"{target}: {name}= is thunder.jit's option; it does not go in torch_compile_options=")
        self.subgraph_infos: list[SubgraphInfo] = []
        self.thunder_options = option_rules.merge_thunder_options(target, thunder_options, routed.thunder)
        self.torch_compile_options = known.torch_compile
        self._states = option_rules.states_of([self.thunder_options, self.torch_compile_options])
        self.emptied = False
        self._hook = Hook(Settings(self.thunder_options, self.torch_compile_options), self)
        with _lock:
            _live.add(self)

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], **kwargs: Any) -> Any:
        return self._hook(graph_module, example_inputs, **kwargs)

    def __repr__(self) -> str:
        return f"<ThunderCompiler: {len(self.subgraph_infos)} graphs, thunder_options={self.thunder_options}>"

    def save_reproducer_to_folder(
        self, folder: str | os.PathLike[str], use_pytest_benchmark: bool = False, serialize_inputs: bool = False
    ) -> None:
        """Write scripts that run each captured graph, and each region of it, without thunder_fx.

            backend = ThunderCompiler()
            torch.compile(fn, backend=backend)(x)
            backend.save_reproducer_to_folder("folder")

        The name, arguments and file names are thunder.dynamo's; save_reproducer(fn, folder) is the same with more to
        ask for, and has the details.

        Args:
            folder: made if it is not there; what another ThunderCompiler has left in it stays.
            use_pytest_benchmark: write scripts that pytest-benchmark runs, in the place of those that compare.
            serialize_inputs: save the inputs that were recorded, in the place of made-up ones.

        Raises:
            NotCompiledError: (a TypeError) there is no graph yet.
            OptionValueError: (a ValueError) `serialize_inputs`, and no inputs were recorded.
            OSError: the folder cannot be made or written.
        """
        # What compiles knows nothing of what reads its records, but for this name of thunder.dynamo's.
        from thunder_fx.repro.bundle import save

        kinds = ("benchmark",) if use_pytest_benchmark else ("repro",)
        save(self, None, folder, inputs="real" if serialize_inputs else "synthetic", kinds=kinds)

    def _add(self, info: SubgraphInfo) -> None:
        """Dynamo compiles no more of a function than its limit until it is reset: what is older is called no more."""
        same = [known for known in self.subgraph_infos if known.source == info.source]
        for old in same[: max(0, len(same) + 1 - _torch.most_compilations())]:
            self.subgraph_infos.remove(old)
        self.subgraph_infos.append(info)

    def forget(self, *, stop_recording: bool) -> None:
        """Free the records; with `stop_recording`, make no new ones either. forget(fn) is the call for users."""
        self.subgraph_infos.clear()
        self.emptied = True
        if stop_recording:
            self._hook.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> ThunderCompiler:
        # Transforms and executors are the user's objects, which may hold anything: a copy compiles with the same ones.
        return type(self)(self.thunder_options, self.torch_compile_options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.thunder_options, self.torch_compile_options)


@dataclass(frozen=True)
class Settings:
    """What compiling needs to know, shared by a hook and its copies."""

    thunder_options: Mapping[str, Any]
    torch_compile_options: Mapping[str, Any]

    def for_thunder(self) -> dict[str, Any]:
        return {**THUNDER_DEFAULTS, **self.thunder_options}

    def for_inductor(self, mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
        told = self.torch_compile_options
        if mode is None and options is None:
            mode, options = told.get("mode"), told.get("options")
        return option_rules.inductor_options("torch.compile", mode, options, told.get("dynamic"))


class CompiledGraph:
    """What Dynamo calls for a graph. It can be emptied, since Dynamo leaves it in the function's globals for good."""

    # No __dict__: functools.wraps, by which Dynamo wraps it, would copy that.
    __slots__ = ("__weakref__", "is_about_to_warn", "is_recording", "record", "run")

    def __init__(self, run: Callable[..., Any], info: SubgraphInfo) -> None:
        self.record = weakref.ref(info)
        self.is_recording = info.is_recording = capture.is_on()
        self.is_about_to_warn = False
        self.run = self._recording(run) if self.is_recording else run

    def __call__(self, *args: Any) -> Any:
        try:
            return self.run(*args)
        except Exception as error:
            info = self.record()
            if info is not None and not self.is_recording:
                kept = [region._inputs for region in info.regions]
                info._inputs = capture.at_failure(args, writes=info.writes_inputs, kept=kept)
            if info is not None:
                _leave_reproducer_of(info, error)
            raise

    def _recording(self, run: Callable[..., Any]) -> Callable[..., Any]:
        record = self.record

        def recording(*args: Any) -> Any:
            info = record()
            if info is not None:
                info._inputs = capture.before_call(args)
            return run(*args)

        return recording

    def warn_in_next_call(self) -> None:
        """Say, if the graph is called while inputs are to be recorded, that it was compiled too early for that."""
        if self.is_recording or self.is_about_to_warn:
            return
        run, self.is_about_to_warn = self.run, True

        def warning(*args: Any) -> Any:
            if self.run is warning:
                self.run, self.is_about_to_warn = run, False
            info = self.record()
            if capture.is_on() and info is not None:
                warnings.warn(
                    f"the graph of {info.source} was compiled before capture_inputs was set: the inputs of this call "
                    "are not recorded. Set it before the first call (THUNDER_FX_CAPTURE_INPUTS=values), or compile the "
                    "function anew",
                    ThunderFXWarning,
                    stacklevel=3,
                )
            return run(*args)

        self.run = warning


class Hook:
    """What thunderfx() gives to torch.compile as its backend."""

    # Dynamo names a backend by this in its logs.
    __name__ = "thunder_fx"

    def __init__(self, settings: Settings, compiler: ThunderCompiler | None = None) -> None:
        self.settings = settings
        self._compiler = weakref.ref(compiler) if compiler is not None else None
        # A copy of a hook belongs to a copy of a compiled callable: its record is made when it first compiles.
        self._is_copy = compiler is None
        self._forgotten = False
        # By the torch.compile context that it was compiled for, and what was compiled where none was found.
        self._products: weakref.WeakKeyDictionary[Any, _Products] = weakref.WeakKeyDictionary()
        self._others = _Products(self.is_hook_of)

    def compiler(self) -> ThunderCompiler | None:
        return self._compiler() if self._compiler is not None else None

    def compiler_asked_for(self, context: Any) -> ThunderCompiler | None:
        """The record, for a lookup on a callable of this context: a new one if the last is gone; None if forgotten."""
        return None if self._forgotten else self.compiler() or self._new_compiler(context)

    def _compiler_to_record_in(self, context: Any | None) -> ThunderCompiler | None:
        compiler = self.compiler()
        if compiler is None and self._is_copy and not self._forgotten and context is not None:
            return self._new_compiler(context)
        return compiler

    def _new_compiler(self, context: Any) -> ThunderCompiler:
        """A record that lives as long as the torch.compile context: whoever can call the compiled code can ask."""
        with _lock:
            compiler = self.compiler()
            if compiler is None:
                compiler = ThunderCompiler(self.settings.thunder_options, self.settings.torch_compile_options)
                compiler._hook = self
                _torch.keep_on(context, compiler)
                if self._compiler is None:
                    retire_with(context, self)
                self._compiler = weakref.ref(compiler)
            return compiler

    def forget(self) -> None:
        """Record nothing from here on."""
        self._compiler = None
        self._forgotten = True

    def is_hook_of(self, backend: object) -> bool:
        """Whether a backend that torch.compile was given compiles by this hook."""
        return backend is self or (isinstance(backend, ThunderCompiler) and getattr(backend, "_hook", None) is self)

    def __call__(
        self,
        graph_module: torch.fx.GraphModule,
        example_inputs: list[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        context = _torch.calling_context(self.is_hook_of)
        compilation = _torch.current_compilation()
        products = self._products_of(context)
        products.note(compilation)
        _torch.give_example_values(graph_module, example_inputs)
        info = _open_record(graph_module, compilation)
        compiler = self._compiler_to_record_in(context)
        if compiler is not None:
            compiler._add(info)
            if _keeping.kept is not None:
                _keeping.kept.append(compiler)
        start = time.perf_counter()
        try:
            inductor_options = self.settings.for_inductor(mode, options)
            info.inductor_options = {**inductor.DEFAULTS, **inductor_options}
            how = regions.Options(self.settings.for_thunder(), inductor_options, _leave_reproducer_of, _log_artifact)
            run = compile_graph(graph_module, info, how)
        except _torch.CONTROL_FLOW:
            # Dynamo will come again with another graph of the same frame; this one never was.
            if compiler is not None:
                with contextlib.suppress(ValueError):  # forget() may have been quicker
                    compiler.subgraph_infos.remove(info)
            raise
        except Exception as error:
            info.error = describe(error)
            _log_artifact(info)
            _leave_reproducer(error, compiler)
            raise
        finally:
            info.seconds = time.perf_counter() - start
            _log(info)
        _warn_near_limit(compilation, context, self.settings.torch_compile_options.get("recompile_limit"))
        _log_artifact(info)
        compiled = CompiledGraph(run, info)
        products.add(compiled)
        return compiled

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(self.settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (self.settings,)

    def _products_of(self, context: Any | None) -> _Products:
        if context is None:
            return self._others
        with _lock:
            found = self._products.get(context)
            if found is None:
                found = self._products[context] = _Products(self.is_hook_of)
                weakref.finalize(context, found.free).atexit = False
            return found

    def codes(self) -> list[types.CodeType]:
        """The code objects that were compiled, and are alive."""
        references = [code for products in self._all_products() for code in list(products.codes.values())]
        return [code for reference in references if (code := reference()) is not None]

    def compiled_graphs(self) -> list[CompiledGraph]:
        """What runs the graphs that were compiled, of those that are alive."""
        references = [graph for products in self._all_products() for graph in list(products.graphs)]
        return [graph for reference in references if (graph := reference()) is not None]

    def _all_products(self) -> list[_Products]:
        return [self._others, *self._products.values()]

    def retire(self) -> None:
        """No callable can reach it any more: hold nothing of the user's. Called by the garbage collector."""
        self._others.free()
        self.settings = Settings({}, {})


class _Products:
    """What a hook compiled for one torch.compile context: freed when that is gone, since nothing can call it then."""

    def __init__(self, is_backend: Callable[[object], bool]) -> None:
        self._is_backend = is_backend
        self.codes: dict[int, weakref.ref[types.CodeType]] = {}
        self._compile_ids: set[str] = set()
        self.graphs: list[weakref.ref[CompiledGraph]] = []

    def note(self, compilation: _torch.Compilation) -> None:
        if compilation.code is not None:
            self.codes = {key: code for key, code in self.codes.items() if code() is not None}
            self.codes[id(compilation.code)] = weakref.ref(compilation.code)
            self._compile_ids.add(str(compilation.compile_id))

    def add(self, compiled: CompiledGraph) -> None:
        self.graphs = [reference for reference in self.graphs if reference() is not None]
        self.graphs.append(weakref.ref(compiled))

    def free(self) -> None:
        """Called by the garbage collector; takes no lock."""
        _torch.invalidate(self.codes.values(), self._is_backend, self._compile_ids)
        for reference in self.graphs:
            compiled = reference()
            if compiled is not None:
                compiled.run = _retired
        self.codes, self.graphs = {}, []


def _log_artifact(info: SubgraphInfo, region: Region | None = None) -> None:
    """Where torch's structured log is on, put what is known of a graph, or of a region, into it."""
    if not _torch.is_structured_log_on():
        return
    # What compiles knows nothing of what reads its records, but for those who ask for it this way.
    from thunder_fx.report.log import emit

    try:
        emit(info, region)
    except Exception as trouble:  # which must not end a call that is right, or hide a failure
        logger.warning("thunder_fx: graph %d could not be put into the log: %s", info.graph_id, describe(trouble))


def _leave_reproducer_of(info: SubgraphInfo, error: Exception) -> None:
    if config.repro_dir is not None:
        _leave_reproducer(error, next((c for c in live_compilers() if info in c.subgraph_infos), None))


def _leave_reproducer(error: Exception, compiler: ThunderCompiler | None) -> None:
    """Where failures are to leave reproducers, save one, and tell the exception where."""
    if config.repro_dir is not None and compiler is not None:
        # What compiles knows nothing of what reads its records; this is for when it has failed.
        from thunder_fx.repro.dumps import save_for

        save_for(error, compiler, config.repro_dir)


def _retired(*args: Any) -> Any:
    raise RuntimeError("this compiled graph was freed with its compiled callable, which nothing can call any more")


def retire_with(context: Any, hook: Hook) -> None:
    """Free what a hook compiled, in Dynamo's caches, once its torch.compile context is gone."""
    weakref.finalize(context, hook.retire).atexit = False


def _warn_where_too_late(settings: Mapping[str, Any]) -> None:
    """Inputs are recorded by graphs that are compiled while the setting is on."""
    if settings.get("capture_inputs") == "values":
        for compiler in live_compilers():
            for graph in compiler._hook.compiled_graphs():
                graph.warn_in_next_call()


config.on_change(_warn_where_too_late)


def live_compilers() -> list[ThunderCompiler]:
    """Every ThunderCompiler that is alive, for whoever asks what was compiled since: graph_id tells the order."""
    with _lock:
        return list(_live)


def compile_graph(
    graph_module: torch.fx.GraphModule, info: SubgraphInfo, options: regions.Options
) -> Callable[..., Any]:
    """Rewrite, split and compile a captured graph, filling in its record; returns what runs it."""
    written = inplace.inputs_written(graph_module)
    info.writes_inputs = bool(written)
    eager = structure.copy_structure(graph_module) if written else None
    split_graph, parts = _split(graph_module, info, options)
    original = info.original_split_graph_module
    assert original is not None
    for part in parts:
        inputs = structure.example_inputs(partition.region_graph(original, part.name))
        info.regions.append(Region(part.name, part.compiler, part.nodes, inputs))
    with _phase(info, "compile"):
        for number, region in enumerate(info.regions):
            _compile_region(split_graph, number, region, info, options)
        _torch.generate_code(split_graph)
    info.split_graph_module = split_graph
    # Not the Module itself: its call looks for hooks, and torch.fx's prints to stderr when a region raises.
    run = partition.without_stitching(split_graph) or split_graph.forward
    if eager is None:
        return run
    record = weakref.ref(info)

    def note() -> None:
        if (found := record()) is not None:
            found.overlapping_calls += 1

    return inplace.OverlapGuard(run, higher_order.runs_in_eager(eager).forward, written, note)


@_quick.quickened()
@_torch.saved_tensors_hooks_aside()
def _split(
    graph_module: torch.fx.GraphModule, info: SubgraphInfo, options: regions.Options
) -> tuple[torch.fx.GraphModule, list[partition.Part]]:
    """Rewrite a captured graph, find who can run what of it, and split it so; the reasons go into its record."""
    with _phase(info, "rewrite"):
        rewrites.rewrite(graph_module, options.thunder, modes.ambient())
    with _phase(info, "support"):
        reasons = support.reasons_against(graph_module, options.thunder)
        info.split_reasons.extend(reasons.values())
        info.split_reasons.extend(support.autocasts_reaching_over(graph_module, reasons))
    with _phase(info, "split"):
        split_graph, parts = partition.split(graph_module, reasons.keys(), support.groups_of(graph_module))
        info.original_split_graph_module = structure.copy_structure(split_graph)
    return split_graph, parts


@contextlib.contextmanager
def _phase(info: SubgraphInfo, name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        info.phases[name] = time.perf_counter() - start


def _compile_region(
    split_graph: torch.fx.GraphModule, number: int, region: Region, info: SubgraphInfo, options: regions.Options
) -> None:
    original = info.original_split_graph_module
    assert original is not None
    start = time.perf_counter()
    try:
        compiled = regions.compile_region(partition.region_graph(split_graph, region.name), region, info, options)
    except Exception as error:
        region.failed(error)
        raise
    finally:
        region.seconds["compile"] = time.perf_counter() - start
    if region.compiler is CompilerType.EAGER:
        for graph in (split_graph, original):
            partition.rename_region(graph, region.name, f"eager_{number}")
        region.name = f"eager_{number}"
    setattr(split_graph, region.name, compiled)
    function = region._compiled if region._compiled is not None else compiled
    if region.compiler is CompilerType.THUNDER:
        info.thunder_compiled_fns.append(function)
        info.thunder_compiled_fns_example_inputs.append(list(region.example_inputs))
    key = partition.region_graph(original, region.name)
    info.submodule_to_compiled_functions[key] = CompiledFunction(function, region.compiler)
    if config.verbose:
        seconds = region.seconds["compile"]
        count = f"{len(region.nodes)} operator{'s' if len(region.nodes) != 1 else ''}"
        logger.info("graph %d: %s, %s, %.2f s", info.graph_id, region.name, count, seconds)


def _open_record(graph_module: torch.fx.GraphModule, compilation: _torch.Compilation) -> SubgraphInfo:
    """A record with all that is known at capture. Of the captured graph it has a copy: Dynamo gets the other."""
    return SubgraphInfo(
        structure.copy_structure(graph_module),
        compile_id=compilation.compile_id,
        source=_source(compilation.code) if compilation.code is not None else None,
        graph_break_reason=_torch.graph_break_reason(graph_module),
        recompile_reason=compilation.recompile_reason,
        state=dataclasses.replace(modes.state(), unbacked=_torch.unbacked(structure.fake_mode_of(graph_module.graph))),
        inlined=frozenset(_source(code) for code in compilation.traced_code if code is not compilation.code),
    )


def _source(code: types.CodeType) -> Source:
    return Source(code.co_filename, code.co_firstlineno, code.co_name)


def _log(info: SubgraphInfo) -> None:
    if config.verbose:
        outcome = info.error or ", ".join(region.name for region in info.regions)
        logger.info("graph %d, %s: %.2f s, %s", info.graph_id, info.source, info.seconds, outcome)


def _warn_near_limit(compilation: _torch.Compilation, context: Any | None, recompile_limit: int | None) -> None:
    """Say once that the next compilation of this function gets no graph, since Dynamo then runs it eager, silently."""
    if compilation.code is None or context is None:
        return
    usage = _torch.cache_usage(compilation.code, context, recompile_limit).with_one_more()
    if usage.just_full:
        warn_of_limit(compilation.code, usage)


def warn_of_limit(code: types.CodeType, usage: _torch.CacheUsage) -> None:
    """The warning for callables that get no graph because Dynamo has compiled their code too often."""
    if usage.full:
        warnings.warn(
            f"{_source(code)} has now been compiled as often as torch._dynamo.config.{usage.which} allows, "
            "counting every callable compiled from it. What is compiled of it next gets no graph and runs eager, "
            "without a word from torch.compile. Raise the limit, call torch._dynamo.reset(), or see "
            "TORCH_LOGS=recompiles for what makes it recompile",
            ThunderFXWarning,
            stacklevel=2,
        )
