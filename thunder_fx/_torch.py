"""The only module that touches private names of torch: Dynamo's contexts, caches and frames, and torch.fx's laziness.

Each function says which torch it was read on; "2.9 to 2.15" means that the test matrix runs it there. Whoever needs a
public name of torch imports torch itself.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import logging
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import convert_frame, eval_frame, exc, external_utils, guards
from torch._guards import CompileContext, TracingContext
from torch._subclasses import fake_tensor

logger = logging.getLogger("thunder_fx")

OptimizedModule = eval_frame.OptimizedModule

# What stands in captured graphs (2.9 to 2.15).
FakeTensor = fake_tensor.FakeTensor
HigherOrderOperator = torch._ops.HigherOrderOperator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
set_grad_enabled = torch._C._set_grad_enabled
enter_autocast = torch.amp.autocast_mode._enter_autocast
exit_autocast = torch.amp.autocast_mode._exit_autocast
MODE_SETTERS = frozenset({set_grad_enabled, enter_autocast, exit_autocast})
log_api_usage_once = torch._C._log_api_usage_once
tree_leaves = torch.utils._pytree.tree_leaves

# Raised through a backend to make Dynamo trace the frame again or leave it: no backend's failure (2.9 to 2.15).
CONTROL_FLOW: tuple[type[Exception], ...] = (exc.RestartAnalysis, exc.SkipFrame, exc.TensorifyScalarRestartAnalysis)


# What torch.compile returned, and what hangs on it


def context_of(compiled: object) -> Any | None:
    """The object behind one call of torch.compile, from what the call returned; None for anything else.

    It lives as long as a callable that can reach the compiled code, and no longer: Dynamo does not hold it.
    """
    # A function carries it in the closure of an attribute, which functools.wraps hands on to wrappers (2.9 to 2.15).
    # Asked of type() and vars(): an attribute of the user's may be anything, and may raise.
    if issubclass(type(compiled), OptimizedModule):
        context = vars(compiled).get("dynamo_ctx")
    elif type(compiled) is not types.FunctionType:
        return None
    else:
        getter = vars(compiled).get("get_compiler_config")
        if not isinstance(getter, types.FunctionType):
            return None
        context = inspect.getclosurevars(getter).nonlocals.get("self")
    return context if isinstance(context, eval_frame._TorchDynamoContext) else None


def backend_of(context: Any) -> Any:
    """The backend that the user (or thunderfx) gave to torch.compile, from its context (2.9 to 2.15)."""
    backend = context.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):  # 2.9 has no eval_frame.innermost_backend()
        backend = backend._torchdynamo_orig_backend
    return getattr(backend, "compiler_fn", backend)


def compiled_in_place(module: torch.nn.Module) -> Callable[..., Any] | None:
    """What `module.compile()` stored on a Module: a function that torch.compile returned; None if it was not called."""
    return vars(module).get("_compiled_call_impl")


def named_descendants(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The Modules below a Module with their qualified names; unlike named_modules() also where one does not hash."""
    pending, seen = [("", module)], {id(module)}
    while pending:
        prefix, parent = pending.pop(0)
        for name, child in vars(parent)["_modules"].items():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))
                yield f"{prefix}{name}", child


def calling_context(is_backend: Callable[[object], bool]) -> Any | None:
    """The torch.compile context, somewhere up the stack, that is calling its backend (of which is asked) just now."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename == eval_frame.__file__:
            context = frame.f_locals.get("self")
            if isinstance(context, eval_frame._TorchDynamoContext) and is_backend(backend_of(context)):
                return context
        frame = frame.f_back
    return None


def keep_on(context: Any, compiler: object) -> None:
    """Let a record live as long as a context does."""
    context._thunder_fx_compiler = compiler


def release_from(context: Any) -> None:
    vars(context).pop("_thunder_fx_compiler", None)


# What Dynamo is doing, from inside a backend's call


@dataclass(frozen=True)
class Compilation:
    """Dynamo's facts of the graph that it hands to a backend. Used while the backend runs, and not kept."""

    compile_id: str | None = None
    code: types.CodeType | None = None
    recompile_reason: str | None = None
    traced_code: tuple[types.CodeType, ...] = ()


def current_compilation() -> Compilation:
    """What Dynamo is compiling just now; an empty Compilation outside of torch.compile."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None:
        return Compilation()
    local = _locals_of_compile()
    code = local.get("code")
    if code is not None and code.co_filename == external_utils.__file__:
        code = _wrapped_code(local) or code
    tracing = TracingContext.try_get()
    return Compilation(
        compile_id=describe_compile_id(compile_id),
        code=code,
        recompile_reason=local.get("recompile_reason"),
        traced_code=tuple(tracing.traced_code) if tracing is not None else (),
    )


def _locals_of_compile() -> dict[str, Any]:
    """The local variables of Dynamo's `_compile`, up the stack: the frame's code and the guard that failed.

    compilation metrics have both too, but only once a compilation has ended (2.9 to 2.15).
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_code.co_filename == convert_frame.__file__:
            return frame.f_locals
        frame = frame.f_back
    return {}


def _wrapped_code(local: dict[str, Any]) -> types.CodeType | None:
    """The code that torch's own `inner` frame calls: it puts one around builtins, partials, and torch.nn's Modules."""
    free = dict(zip(local["code"].co_freevars, local.get("closure") or (), strict=False))
    with contextlib.suppress(KeyError, ValueError):
        return code_of_callable(free["fn"].cell_contents)
    return None


def code_of_callable(fn: Any) -> types.CodeType | None:
    """The code that runs when an uncompiled callable is called; None for a builtin."""
    while True:
        if isinstance(fn, torch.nn.Module):
            fn = fn.forward
        elif hasattr(fn, "func") and hasattr(fn, "keywords"):  # functools.partial
            fn = fn.func
        elif hasattr(fn, "__code__"):
            code: types.CodeType = fn.__code__
            return code
        elif not isinstance(fn, type) and hasattr(type(fn).__call__, "__code__"):
            fn = type(fn).__call__
        else:
            return None


def graph_break_reason(graph_module: torch.fx.GraphModule) -> str | None:
    """Why Dynamo ended a graph where it did, in words; None where the function simply returned."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", True):
        return None
    place = f" ({reason.user_stack[-1].filename}:{reason.user_stack[-1].lineno})" if reason.user_stack else ""
    return f"{reason.reason}{place}"


# Whether Inductor, asked for eager's random numbers, draws them for rrelu too: on 2.13 to 2.15, not on 2.9 and 2.11.
INDUCTOR_DRAWS_RRELU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


def inside_dynamo() -> bool:
    """Whether Dynamo is calling a backend: its guards then stand before what the backend returns."""
    return CompileContext.current_compile_id() is not None


# Dynamo's caches


def guarded_code_of(compiled: object) -> types.CodeType | None:
    """The code under which Dynamo files what it compiles for a callable that torch.compile returned."""
    target = compiled.forward if isinstance(compiled, OptimizedModule) else compiled
    target = getattr(target, "_torchdynamo_orig_callable", target)
    # A function of this name is torch's own wrapper, which 2.14 and later have Dynamo see in place of its own Modules.
    if isinstance(target, types.MethodType) and getattr(target, "__name__", "") in ("_wrapped_call_impl", "_call_impl"):
        target = target.__self__
    if isinstance(target, torch.nn.Module):
        # A Module's hooks run outside, compiled in place too: the first frame that Dynamo sees is forward's.
        target = target.forward
    return getattr(target, "__code__", None)


@dataclass(frozen=True)
class CacheUsage:
    """How full Dynamo's cache is for one code object: (entries, limit) for one callable, and for all of them."""

    own: int
    own_limit: int
    total: int
    total_limit: int

    @property
    def full(self) -> bool:
        return self.own >= self.own_limit or self.total >= self.total_limit

    def with_one_more(self) -> CacheUsage:
        """As it will be when the graph that is being compiled has been stored."""
        return dataclasses.replace(self, own=self.own + 1, total=self.total + 1)

    @property
    def just_full(self) -> bool:
        """Whether the last entry filled a cache, so that it is said once and not at each entry after."""
        return self.own == self.own_limit or self.total == self.total_limit

    @property
    def which(self) -> str:
        if self.total >= self.total_limit:
            return f"accumulated_recompile_limit ({self.total_limit})"
        return f"recompile_limit ({self.own_limit})"


def cache_usage(code: types.CodeType, context: Any | None, own_limit: int | None = None) -> CacheUsage:
    """What Dynamo counts against its limits before it compiles `code` once more for a callable (2.9 to 2.15).

    `own_limit` is the callable's own, where torch.compile was given one (recompile_limit=, 2.13).
    """
    config = torch._dynamo.config
    isolated = getattr(context, "_isolate_recompiles_id", -1)  # torch 2.13
    if hasattr(eval_frame, "_get_cache_entries_for_region"):
        own = len(eval_frame._get_cache_entries_for_region(code, isolated))
        total = eval_frame._get_total_cache_entry_count(code)
    else:
        own = total = len(eval_frame._debug_get_cache_entry_list(code))
    limit = config.recompile_limit if own_limit is None else own_limit
    return CacheUsage(own, limit, total, config.accumulated_recompile_limit)


def is_structured_log_on() -> bool:
    """Whether TORCH_TRACE, or a handler of somebody's, takes torch's structured log (2.9 to 2.15)."""
    handlers = torch._logging._internal.trace_log.handlers
    # One that is there for whoever may yet set a folder has none.
    return any(getattr(handler, "root_dir", "") is not None for handler in handlers)


def log_artifact(name: str, text: str, compile_id: str | None = None) -> None:
    """Put JSON into torch's structured log, beside what Dynamo says of the compilation that runs, or of this one."""
    known = None
    if compile_id is not None and not inside_dynamo():
        known = torch._guards.CompileId.from_string(compile_id)
    torch._logging._internal.trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: text,
        expect_trace_id=False,
        compile_id=known,
    )


def dynamo_seconds(compile_id: str | None, code: tuple[str, int] | None) -> float | None:
    """How long Dynamo itself took over a compilation, its backend left out; None where it is not known any more.

    Dynamo keeps the metrics of the last 64 (2.9 to 2.15). Ids begin anew after a reset: so file and line, too.
    """
    for found in reversed(torch._dynamo.utils.get_compilation_metrics()):
        if str(found.compile_id) == compile_id and (found.co_filename, found.co_firstlineno) == code:
            whole, backend = found.entire_frame_compile_time_s, found.backend_compile_time_s
            return None if whole is None else max(0.0, whole - (backend or 0.0))
    return None


def was_seen(code: types.CodeType) -> bool:
    """Whether Dynamo has looked at a frame of this code since the last reset, whatever came of it (2.9 to 2.15)."""
    return code in convert_frame.input_codes


def stance() -> str:
    """What torch.compiler.set_stance() has set: "default", "force_eager", ..."""
    return eval_frame._stance.stance


def is_skipped_library_code(code: types.CodeType) -> bool:
    """Whether Dynamo never captures a frame of this code by itself: torch's own Modules are such (2.9 to 2.15)."""
    return bool(torch._dynamo.trace_rules.check_file(code.co_filename).skipped)


def most_compilations() -> int:
    """Of one code object, until Dynamo is reset."""
    return int(torch._dynamo.config.accumulated_recompile_limit)


def invalidate(
    codes: Iterable[weakref.ref[types.CodeType]], is_backend: Callable[[object], bool], compile_ids: Container[str]
) -> None:
    """Empty Dynamo's cache entries of these compilations, which nothing can call any more: it frees their regions.

    Takes no lock, since the garbage collector may call it anywhere. The entries stay, spent, and count to Dynamo's
    limits. This is what Dynamo does itself when an object that it guards on dies (2.9 to 2.15).
    """
    for reference in codes:
        code = reference()
        if code is None:
            continue
        for entry in eval_frame._debug_get_cache_entry_list(code):
            if not _is_of(entry, is_backend, compile_ids):
                continue
            manager = entry.guard_manager
            if isinstance(manager, guards.DeletedGuardManagerWrapper) or manager.extra_state is None:
                continue
            manager.extra_state.invalidate(entry, guards.DeletedGuardManagerWrapper("the compiled callable is gone"))


def _is_of(entry: Any, is_backend: Callable[[object], bool], compile_ids: Container[str]) -> bool:
    """Whether a cache entry of Dynamo's is one of these compilations, by this backend, which torch 2.9 does not show.

    After a reset the ids begin anew: at worst another's entry is compiled once more.
    """
    if hasattr(entry, "backend") and not is_backend(getattr(entry.backend, "compiler_fn", entry.backend)):
        return False
    return describe_compile_id(entry.compile_id) in compile_ids


def describe_compile_id(compile_id: Any) -> str:
    """As TORCH_LOGS writes it: frame/compilation."""
    return f"{compile_id.frame_id}/{compile_id.frame_compile_id}"


# torch.fx


def eager_graph_modules() -> contextlib.AbstractContextManager[None]:
    """Inside, torch.fx makes GraphModules whose code is there at once.

    Under Dynamo they are lazy from torch 2.12 on: thunder's interpreter then walks torch's code generator, and dies.
    """
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    return _use_lazy_graph_module(False)


def module_of_operator(name: str) -> str | None:
    """The module in which torch.library.custom_op registered an operator, "mylib::foo"; None where it did not."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(name)
    return definition._init_fn.__module__ if definition is not None else None


def generate_code(graph_module: torch.fx.GraphModule) -> None:
    """Generate a GraphModule's code now, lazy or not: after its graph was changed, and before thunder reads it."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    if isinstance(graph_module, _LazyGraphModule):
        graph_module.real_recompile()
    else:
        graph_module.recompile()


def call_plainly(graph_module: torch.fx.GraphModule) -> None:
    """Take away what a GraphModule's call does beyond a Module's: on an exception it formats a report of the line.

    thunder's interpreter would interpret the formatting, for minutes, where an operator refuses its arguments
    (2.9 to 2.15: each GraphModule has a class of its own). To be called after the last change of the code.
    """
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            type(module).__call__ = torch.nn.Module.__call__  # type: ignore[method-assign]


def attribute(node: torch.fx.Node) -> Any:
    """What a get_attr node reads: a constant, a parameter, or a nested graph; None where there is no such attribute."""
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value


def module_as_code(module: torch.nn.Module) -> str | None:
    """The call that makes a Module of torch.nn with the same settings; None where its repr does not tell them all."""
    from torch._dynamo.debug_utils import NNModuleToString

    return f"torch.nn.{module!r}" if type(module) in NNModuleToString.safe_reprs else None


def give_example_values(graph_module: torch.fx.GraphModule, arguments: Sequence[Any]) -> None:
    """Give each node of a graph the fake value that Dynamo would have given it, where a graph is not Dynamo's.

    Nodes are left without one where the graph cannot be run on fake tensors; then less of it is compiled.
    """
    if any("example_value" in node.meta for node in graph_module.graph.nodes):
        return
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    nodes = {node.name: node for node in graph_module.graph.nodes}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            value = super().run_node(node)
            if node.op != "output":
                nodes[node.name].meta["example_value"] = value
            return value

    try:
        # A copy whose parameters and buffers are fake too: running it writes into some.
        with fake_tensor.FakeCopyMode(mode):
            twin = copy.deepcopy(graph_module)
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        with mode, _modes_kept(), saved_tensors_hooks_aside():
            Recorder(twin).run(*fakes)
    except Exception as error:
        logger.info(
            "a graph that is not Dynamo's could not be run on fake tensors: %s: %s", type(error).__name__, error
        )


@contextlib.contextmanager
def saved_tensors_hooks_aside() -> Iterator[None]:
    """Inside, what autograd saves passes none of the user's hooks: they are not to see, or count, fake tensors."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        yield  # a transform of torch.func forbids hooks
        return
    with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
        yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@contextlib.contextmanager
def _modes_kept() -> Iterator[None]:
    """After it, gradients and autocast are on or off as before, whatever a graph that broke off has set."""
    grad, devices = torch.is_grad_enabled(), ("cpu", "cuda")
    autocasts = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        for device, (enabled, dtype) in zip(devices, autocasts, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that two fake tensors share exactly if they share a storage; None where a tensor has no storage."""
    try:
        number: int = tensor.untyped_storage()._cdata
        return number
    except (NotImplementedError, RuntimeError):
        return None


def is_plain_tensor(value: torch.Tensor) -> bool:
    """Whether a tensor is torch's own, real or fake, and no subclass with a meaning of its own (DTensor, nested)."""
    return type(value) in (torch.Tensor, torch.nn.Parameter, FakeTensor)


def minify_graph(
    graph_module: torch.fx.GraphModule,
    inputs: list[Any],
    fails: Callable[[torch.fx.GraphModule, Any], bool],
    *,
    runs_eager: bool,
) -> tuple[torch.fx.GraphModule, Any]:
    """The smallest graph, with its inputs, that torch's fx_minifier finds still failing (2.9 to 2.15).

    fx_minifier runs graphs eager, for values to put in the place of operators, and does not expect that to fail: what
    has no value then stays an operator. Where running them would end the process, nothing is run.
    """
    from torch._functorch import fx_minifier

    class Tolerant(fx_minifier.ConcreteProp):
        def propagate(self, *args: Any) -> Any:
            with contextlib.suppress(Exception):
                return super().propagate(*args) if runs_eager else None

    usual = fx_minifier.ConcreteProp
    fx_minifier.ConcreteProp = Tolerant  # type: ignore[misc]
    try:
        found: tuple[torch.fx.GraphModule, Any] = fx_minifier.minifier(
            graph_module, inputs, fails, dump_state=lambda graph_module, inputs: None
        )
    finally:
        fx_minifier.ConcreteProp = usual  # type: ignore[misc]
    return found


def adaptations() -> dict[str, bool]:
    """What thunder_fx does for this torch and no other, in words, and whether it does."""
    return {
        "names that torch lost, lent to thunder while it is imported (torch 2.13)": not hasattr(torch.Tensor, "rename"),
        "autograd.Function.apply lent as well (torch 2.14)": not hasattr(torch.autograd.Function.apply, "__func__"),
        "split graphs whose code is made at once (lazy under Dynamo from torch 2.12)": True,
        "each compiled callable has its own recompile limit (isolate_recompiles, torch 2.13)": "isolate_recompiles"
        in inspect.signature(inspect.unwrap(torch.compile)).parameters,
        "rrelu runs eager, since Inductor draws other numbers (before torch 2.13)": not INDUCTOR_DRAWS_RRELU,
        "clamp has a derivative at its bounds (before torch 2.15)": CLAMP_HAS_DERIVATIVE_AT_BOUNDS,
    }


# Inductor

# Raised where a region's sizes depend on data.
DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException


def compile_by_inductor(graph_module: torch.fx.GraphModule, arguments: list[Any], options: dict[str, Any]) -> Any:
    import torch._inductor  # takes a second, and is not always needed

    return torch._inductor.compile(graph_module, arguments, options=options)


# Autograd


def _clamp_has_derivative_at_bounds() -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, requires_grad=True, device="cpu")
        (derivative,) = torch.autograd.grad(x.clamp(min=0).sum(), x)
    return bool(derivative)


# Whether the derivative of clamp is 1 where a value is just at a bound: on 2.9 to 2.13, and 0 on 2.15.
CLAMP_HAS_DERIVATIVE_AT_BOUNDS = _clamp_has_derivative_at_bounds()


def next_autograd_node() -> int:
    """The number that the next node of this thread's autograd graph gets at least (2.9 to 2.15)."""
    with torch.enable_grad(), torch.inference_mode(False):
        node: Any = torch.zeros((), requires_grad=True, device="cpu").clone().grad_fn
    return int(node._sequence_nr())


def watch_backward(nodes: Iterable[Any], failed: Callable[[Exception], None]) -> None:
    """Have `failed` called with what the backward raises of the region of Inductor's that made these autograd nodes.

    A region has a class of autograd.Function of its own (2.9 to 2.15), whose backward is compiled when it first runs.
    """
    for node in nodes:
        function: Any = getattr(type(node), "_forward_cls", None)
        if type(node).__name__ == "CompiledFunctionBackward" and function is not None:
            function.backward = staticmethod(telling(function.backward, failed))
            return


def telling(function: Callable[..., Any], failed: Callable[[Exception], None]) -> Callable[..., Any]:
    """The same function, which calls `failed` with what it raises."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            failed(error)
            raise

    return run


def raise_if_differentiable(gradients: Any, _: Any) -> None:
    """A hook of an autograd node whose backward cannot be differentiated: raises where it would have to be.

    That is, where it runs with create_graph=True. To wait for the second derivative, as once_differentiable does, is
    too late: autograd leaves out a node that no input hangs on, and the result is wrong without a word.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "thunder_fx: create_graph=True (for a second derivative) is not supported by regions that thunder runs: "
            "thunder's backward cannot be differentiated. Compile this function with torch.compile(fn, backend='eager')"
        )


# Symbolic sizes


def expression(size: Any) -> str:
    """A number as text, a symbolic one as `s0 + 1`, without specialising it."""
    return str(size.node.expr) if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else str(size)


def unbacked(fake_mode: Any | None) -> tuple[bool, bool]:
    """Whether a ShapeEnv allows numbers, and sizes, that only the data tell: `x.item()`, `x[mask]` (2.9 to 2.15)."""
    settings = getattr(getattr(fake_mode, "shape_env", None), "settings", None)
    if settings is None:
        return False, False
    return settings.allow_scalar_outputs, settings.allow_dynamic_output_shape_ops


def hint(size: Any) -> Any:
    """A number as it is; a symbolic one by its hint, the value seen while capturing, without specialising; else -1."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return size
    has_hint = getattr(size.node, "has_hint", None)  # a nested tensor's ragged size has none
    value = size.node.hint if has_hint is not None and has_hint() else None
    return -1 if value is None else value
