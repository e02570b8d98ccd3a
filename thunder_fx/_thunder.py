"""The only module that touches private names of thunder, and what thunder.dynamo has that we do not write again.

Everything here is true of lightning-thunder 0.2.6; a new release may break this file and no other. What needs a public
name of thunder only may import thunder itself. How thunder is made importable on newer torch is _placeholders.py's.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
import linecache
import operator
import os
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder_fx import _placeholders, _torch
from thunder_fx.errors import CompatibilityError, OptionError, OptionValueError

_placeholders.install()
try:
    with warnings.catch_warnings():
        # Said at each import where torch was built for CUDA; a user of thunder_fx did not ask for it.
        warnings.filterwarnings("ignore", message="transformer_engine module not found")
        import thunder
    import thunder.core.pytree
    import thunder.core.symbol
    import thunder.dynamo.utils
    import thunder.executors.passes
    from thunder.common import CompileData, CompileStats
    from thunder.core.baseutils import sequencify
    from thunder.core.compile_data import compile_data_and_stats, get_compile_data
    from thunder.core.interpreter import interpreter_needs_wrap
    from thunder.core.jit_ext import get_jit_ctx, recursively_proxy, register_general_jit_lookaside
    from thunder.core.langctxs import langctx, resolve_language
    from thunder.core.options import CACHE_OPTIONS, DebugOptions, resolve_cache_option, resolve_sharp_edges_option
    from thunder.core.proxies import Proxy, TensorProxy, is_proxy_name_available, variableify
    from thunder.core.trace import TraceCtx, get_tracectx, tracectx
    from thunder.core.transform_common import Transform
    from thunder.core.transforms import get_grad, put_grad, value_and_grad
    from thunder.torch import _torch_to_thunder_function_map as _SYMBOLS
    from thunder.torch.default_torch_ops import torch_auto_registered_ops
    from thunder.torch.langctx import torchctx
    from thunder.transforms.extraction_only_prologue_transform import ExtractionOnlyPrologueTransform
except Exception as error:  # an AttributeError, where torch has lost a name
    raise CompatibilityError(
        f"lightning-thunder could not be imported on torch {torch.__version__}: {error}. Put `import thunder_fx` "
        "before the first `import thunder`, in a new process: on torch 2.13 and later thunder 0.2.6 needs its help, "
        "and an import that failed cannot be repeated. thunder_fx knows torch 2.9 to 2.15"
    ) from error

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx


# Options


@functools.cache
def jit_option_names() -> frozenset[str]:
    """The keyword-only names of thunder.jit."""
    parameters = inspect.signature(thunder.jit).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def check_transforms(target: str, transforms: Sequence[Any]) -> None:
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise OptionError(
                f"{target}: transforms= takes instances of thunder.core.transform_common.Transform; found "
                f"an object of {type(transform)!r}"
            )


def check_values(target: str, options: Mapping[str, Any]) -> None:
    """Refuse now what thunder.jit would refuse when the first graph meets it."""
    checks = {"cache": resolve_cache_option, "sharp_edges": resolve_sharp_edges_option, "langctx": resolve_language}
    for name, resolve in checks.items():
        if options.get(name) is not None:
            try:
                resolve(options[name])
            except Exception as error:
                raise OptionValueError(f"{target}: {name}= does not take {options[name]!r}: {error}") from error
    if not isinstance(options.get("debug_options"), (DebugOptions, NoneType)):
        raise OptionError(f"{target}: debug_options= takes a thunder.DebugOptions; found {options['debug_options']!r}")


def check_executors(target: str, executors: Sequence[Any]) -> None:
    try:
        thunder.resolve_executors(executors)
    except Exception as error:
        names = ", ".join(ex.name for ex in thunder.get_all_executors())
        raise OptionValueError(
            f"{target}: executors= takes thunder's executors or their names ({names}); found "
            f"{', '.join(ex if isinstance(ex, str) else f'a {type(ex).__qualname__} object' for ex in executors)}"
        ) from error


# Compiling a region


def jit(
    module: torch.nn.Module,
    options: Mapping[str, Any],
    *,
    static_inputs: bool,
    is_differentiable_outputs: list[bool],
) -> Callable[..., Any]:
    """thunder.jit on a region, as thunder.dynamo calls it.

    With static inputs Dynamo's guards have checked what thunder's prologue would check again: its tensor checks go.
    """
    transforms = [*(options.get("transforms") or ()), ExtractionOnlyPrologueTransform(static_inputs)]
    others = {name: value for name, value in options.items() if name != "transforms"}
    jitted: Callable[..., Any] = thunder.jit(
        module, transforms=transforms, is_differentiable_outputs=is_differentiable_outputs, **others
    )
    return jitted


class _Newest(list[Any]):
    """A list that lets the oldest of its entries go, and counts them; with an entry goes the source of its code."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.gone = 0

    def append(self, entry: Any) -> None:
        super().append(entry)
        _free_sources_with(entry)
        if len(self) > self._most:
            self.gone += len(self) - self._most
            del self[: -self._most]


def _free_sources_with(entry: Any) -> None:
    """thunder 0.2.6 leaves the source of each function that it generates in linecache, for tracebacks, for good."""
    functions = [entry.prologue_fn, entry.computation_fn, entry.epilogue_fn, entry.backward_fn]
    for function in filter(_is_function, functions):
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        for generated in filter(_is_function, [inspect.unwrap(function), *inner]):
            name = generated.__code__.co_filename
            if name.startswith("thunder."):
                weakref.finalize(generated, linecache.cache.pop, name, None).atexit = False


def _is_function(value: object) -> bool:
    return isinstance(value, types.FunctionType)


def keep_newest(jitted: Callable[..., Any], most: int) -> None:
    """Of what thunder compiles of a region, one for each set of sizes, keep so many; thunder 0.2.6 keeps all."""
    thunder.compile_stats(jitted).interpreter_cache = _Newest(most)


def compilations_gone(jitted: Callable[..., Any]) -> int:
    """How many of them are not kept any more."""
    gone: int = thunder.compile_stats(jitted).interpreter_cache.gone
    return gone


def is_tracing_failure(error: BaseException) -> bool:
    """Whether thunder failed on the operators of a region while tracing it, and not a user's code or a later pass."""
    tracing = False
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if tracing and not _belongs_to_tracing(code.co_filename):
            return False
        tracing = tracing or (code.co_name == "acquire_initial_trace" and code.co_filename == thunder.__file__)
        traceback = traceback.tb_next
    return tracing


# A region's own code is generated by torch.fx, and thunder's by thunder, into files of the names in angle brackets.
_GENERATED = ("<eval_with_key>", "thunder.", "<string>", "<frozen")
_PACKAGES = (
    *(os.path.join(package.__path__[0], "") for package in (thunder, torch)),
    os.path.join(os.path.dirname(__file__), ""),
)
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


def _belongs_to_tracing(filename: str) -> bool:
    # site-packages lies in the standard library's folder.
    is_standard = filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
    return is_standard or filename.startswith((*_GENERATED, *_PACKAGES))


# Calling what thunder compiled


@dataclass(frozen=True)
class Compiled:
    """What thunder made of a region: its code, and what its prologue and epilogue do around it.

    `checks` names what the prologue checks: "tensor", "number of inputs", a key of thunder's cache info, or, for
    anything else, the check itself. `sizes` are the shapes and numbers that it checks inputs for, by their positions.
    `inputs` are the positions of the computation's inputs among the region's, which are `inputs_given`; `outputs` says
    for each result which of the computation's outputs it is, or a number itself.
    """

    computation: Callable[..., Any]
    backward: Callable[..., Any] | None
    checks: frozenset[str]
    sizes: Mapping[int, Any]
    inputs: tuple[int, ...]
    inputs_given: int
    outputs: tuple[int | Constant, ...]
    returns_tuple: bool


def times_compiled(jitted: Callable[..., Any]) -> int:
    """For how many sets of inputs thunder has compiled a region, of those that are kept."""
    return len(thunder.compile_stats(jitted).interpreter_cache)


def size_of(value: Any) -> Any:
    """The shape of a tensor, and a number itself: what thunder compiles a region anew for."""
    return value.shape if isinstance(value, torch.Tensor) else value


def compiled_for(jitted: Callable[..., Any], inputs: Sequence[Any]) -> Compiled | None:
    """What thunder compiled of a region last, if that was for inputs of these sizes.

    None, too, if its prologue or epilogue does more than to hand inputs and outputs through.
    """
    entries = list(thunder.compile_stats(jitted).interpreter_cache)
    if not entries or entries[-1].return_none_instead_of_grads:
        return None
    entry = entries[-1]
    prologue = _read_prologue(entry.prologue_traces[-1])
    epilogue = _read_epilogue(entry.epilogue_traces[-1])
    if prologue is None or epilogue is None:
        return None
    compiled = Compiled(entry.computation_fn, entry.backward_fn, *prologue, len(inputs), *epilogue)
    # Another thread may have compiled it meanwhile for others.
    return compiled if all(size_of(inputs[at]) == size for at, size in compiled.sizes.items()) else None


def _read_prologue(trace: TraceCtx) -> tuple[frozenset[str], dict[int, Any], tuple[int, ...]] | None:
    """What a prologue checks, for which sizes, and the positions of the inputs that it hands to the computation."""
    checks: set[str] = set()
    sizes: dict[int, Any] = {}
    position_of: dict[str, int] = {}
    subject_of: dict[str, str] = {}
    for bsym in trace.bound_symbols:
        name = bsym.sym.name
        if name == "unpack_getitem" and bsym.args[0].name == "args":
            position_of[bsym.output.name] = bsym.args[1]
        elif name == "unpack_getitem" and bsym.args[0].name == "cache_info":
            subject_of[bsym.output.name] = bsym.args[1]
        elif name == "check_len":
            checks.add("number of inputs")
        elif name in ("check_tensor_shape_and_metadata", "check_tensor_metadata"):
            checks.add("tensor")
            sizes[position_of[bsym.args[0].name]] = tuple(bsym.args[1])
        elif name == "check_number_type_and_value" and getattr(bsym.args[0], "name", None) in position_of:
            checks.add("number")
            sizes[position_of[bsym.args[0].name]] = bsym.args[1]
        elif name.startswith("check_"):
            checks.add(subject_of.get(getattr(bsym.args[0], "name", ""), name))
        elif name == "python_return":
            to_computation, to_epilogue = bsym.args[0]
            names = [proxy.name for proxy in to_computation]
            if to_epilogue or not position_of.keys() >= set(names):
                return None
            return frozenset(checks), sizes, tuple(position_of[name] for name in names)
        elif name not in ("unpack_trivial", "unpack_cache_info"):
            return None
    return None


class Constant(NamedTuple):
    """A number that a region returns, as sizes are."""

    value: int | float


def _read_epilogue(trace: TraceCtx) -> tuple[tuple[int | Constant, ...], bool] | None:
    """Which of the computation's outputs an epilogue returns, and which numbers, and whether in a tuple."""
    *unpacking, end = trace.bound_symbols
    if any(bsym.sym.name != "unpack_trivial" for bsym in unpacking):
        return None
    names = [proxy.name for proxy in trace.args]
    (returned,) = end.args
    results = returned if isinstance(returned, (tuple, list)) else (returned,)
    outputs: list[int | Constant] = []
    for result in results:
        if isinstance(result, Proxy) and result.name in names:
            outputs.append(names.index(result.name))
        elif isinstance(result, (int, float)):
            outputs.append(Constant(result))
        else:
            return None
    return tuple(outputs), returned is results


def direct_call(
    compiled: Compiled,
    constants: tuple[torch.Tensor, ...],
    is_differentiable: Sequence[bool],
    *,
    is_grad_enabled: bool,
) -> Callable[..., Any] | None:
    """A function of a region's inputs that runs its computation without prologue and epilogue."""
    computation, positions = compiled.computation, compiled.inputs
    is_plain = not constants and positions == tuple(range(compiled.inputs_given))
    select = _selection(compiled.outputs, compiled.returns_tuple)

    def inputs(args: tuple[Any, ...]) -> Any:
        every = args + constants
        return [every[position] for position in positions]

    if compiled.backward is None:
        if is_plain:
            return lambda *args: select(computation(*args))
        return lambda *args: select(computation(*inputs(args)))
    if not is_grad_enabled:
        return None
    connect = _connection(compiled.backward, is_differentiable)
    if is_plain:
        return lambda *args: select(connect(*computation(*args)))
    return lambda *args: select(connect(*computation(*inputs(args))))


def _selection(outputs: tuple[int | Constant, ...], returns_tuple: bool) -> Callable[[Any], Any]:
    if not returns_tuple:
        (output,) = outputs
        return (lambda results: output.value) if isinstance(output, Constant) else operator.itemgetter(output)
    if any(isinstance(output, Constant) for output in outputs):
        return lambda results: tuple([o.value if isinstance(o, Constant) else results[o] for o in outputs])
    return lambda results: tuple([results[index] for index in outputs])


# The name of the autograd node behind the outputs of a region that has gradients.
AUTOGRAD_NODE = "ThunderFunctionBackward"


def _connection(
    backward: Callable[..., Any], is_differentiable: Sequence[bool]
) -> Callable[[dict[str, Any], tuple[Any, Any]], Any]:
    constant = [index for index, differentiable in enumerate(is_differentiable) if not differentiable]

    def connect(data: dict[str, Any], saved: tuple[Any, Any]) -> Any:
        ThunderFunction.apply(  # type: ignore[no-untyped-call]
            backward, constant, *saved, data["flat_output"], *data["flat_args"]
        )
        return data["output"]

    return connect


# What to call when a backward has raised.
_watchers: weakref.WeakKeyDictionary[Callable[..., Any], Callable[[Exception], None]] = weakref.WeakKeyDictionary()


def watch_backward(backward: Callable[..., Any], failed: Callable[[Exception], None]) -> None:
    """Have `failed` called with what a backward raises, where it runs by direct_call()."""
    _watchers[backward] = failed


def emptying(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The same backward, after which the lists that it was given are empty, as thunder's autograd Function asserts.

    What thunder 0.2.6 generates empties them as it reads them: not where the gradient needs none of it, since a result
    has no elements.
    """

    def run(saved: list[Any], gradients: list[Any]) -> Any:
        tensors = saved[0]  # the backward empties the outer list as well
        results = backward(saved, gradients)
        tensors.clear()
        gradients.clear()
        return results

    return run


class ThunderFunction(torch.autograd.Function):
    """Ties the outputs that a region's computation has made to autograd.

    As thunder.executors.torch_autograd does it (0.2.6), less what does not change from call to call.
    """

    @staticmethod
    def forward(
        ctx: Any, backward: Any, constant: list[int], saved: Any, saved_other: Any, outputs: Any, *inputs: Any
    ) -> Any:
        ctx.compiled_backward = backward
        ctx.saved_other = saved_other
        # A view of an output, saved, would be freed by nobody: https://github.com/pytorch/pytorch/issues/94990
        ctx.save_for_backward(
            *[t.detach() if isinstance(t, torch.Tensor) and t._base is not None else t for t in saved]
        )
        if constant:
            ctx.mark_non_differentiable(*[outputs[index] for index in constant])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _torch.raise_if_differentiable(None, None)
        saved = list(ctx.saved_tensors)
        # Freed one by one while thunder's backward goes on, which empties the lists that it is given.
        ctx.maybe_clear_saved_tensors()
        try:
            results = ctx.compiled_backward([saved, ctx.saved_other], list(gradients))
        except Exception as error:
            if (failed := _watchers.get(ctx.compiled_backward)) is not None:
                failed(error)
            raise
        return (None, None, None, None, None, *results)


# Tracing


def trace_through(function: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Have thunder's bytecode interpreter call `run` on its proxies wherever it meets a call of `function`."""

    @register_general_jit_lookaside(function)  # type: ignore[untyped-decorator]
    def lookaside(*args: Any) -> Any:
        recursively_proxy(*args)
        return interpreter_needs_wrap(run)(*args)


# Symbols for functions of ours, which thunder's table of torch's functions has no business with.
_OWN_SYMBOLS: dict[Any, Any] = {}


def use_setitem_for(function: Callable[..., Any]) -> None:
    """Let thunder's out-of-place `x[index] = value` stand for a function of the same arguments."""
    _OWN_SYMBOLS[function] = thunder.torch.setitem


def symbol_for(target: Any) -> Any | None:
    """Thunder's symbol for a torch function, a method (torch.Tensor.sin) or a registered custom operator."""
    if not thunder.core.utils.is_hashable(target):
        return None
    symbol = _SYMBOLS.get(target) or _OWN_SYMBOLS.get(target)
    if symbol is None and isinstance(target, torch._ops.OpOverload):
        symbol = _SYMBOLS.get(target.overloadpacket)
    return symbol


@functools.cache
def _automatic() -> frozenset[Any]:
    operators = (operator for several in torch_auto_registered_ops.values() for operator in several)
    return frozenset(operators) | frozenset(thunder.dynamo.utils.UNSUPPORTED_THUNDER_FUNCTION)


def is_automatic(target: Any) -> bool:
    """Whether thunder's symbol only leads back to eager torch, or is known not to do as torch does."""
    return thunder.core.utils.is_hashable(target) and target in _automatic()


def is_replaced(target: Any, executors: Sequence[Any]) -> bool:
    """Whether an executor brings a symbol of its own for a torch function."""
    return thunder.core.utils.is_hashable(target) and any(target in executor._lookasides for executor in executors)


def is_einops(target: Any) -> bool:
    """Whether a function is one of einops's, which work on thunder's proxies as on tensors."""
    return getattr(target, "__module__", None) == "einops.einops"


def are_registered(executors: Sequence[Any]) -> bool:
    """Whether all of these executors stay for as long as they are registered, whoever else lets go of them."""
    return set(executors) <= set(thunder.get_all_executors())


def has_method(name: str) -> bool:
    """Whether thunder's proxies have a method that no torch function stands for (`float`, `long`, ...)."""
    return bool(torchctx.has_method(name))


def callable_for(target: Any) -> Callable[..., Any]:
    """What stands for a function while thunder traces: an executor's symbol, thunder's, or the function."""
    found: Callable[..., Any] = _replacement(target) or symbol_for(target) or target
    return found


def _replacement(target: Any) -> Any | None:
    """An executor's symbol for a torch function, of the executors that are in use while thunder traces."""
    compile_data = get_compile_data()
    replacements = (compile_data.executor_lookasides if compile_data is not None else None) or {}
    return replacements.get(target) if thunder.core.utils.is_hashable(target) else None


def method_for(name: str, args: Any, kwargs: Any) -> Callable[..., Any]:
    """What stands for a method of a tensor while thunder traces."""
    function = getattr(torch.Tensor, name, None)
    found = _replacement(function) or symbol_for(function)
    if found is None and isinstance(args[0], Proxy):
        found = torchctx.get_method(name, args, kwargs)
    # A context object, a size, a number: its own.
    return found if found is not None else _bound(name)


def _bound(name: str) -> Callable[..., Any]:
    return lambda this, *args, **kwargs: getattr(this, name)(*args, **kwargs)


def rename(value: Any, name: str) -> None:
    """Let thunder's traces show a value by the name that it has in the captured graph. To be called in thunder.jit."""
    if isinstance(value, Proxy) and is_proxy_name_available(name):
        names = get_jit_ctx()._proxy_swapmap
        if variableify(value) not in names:
            names[variableify(value)] = value.replace_name(name)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Inside, what is traced is constant to thunder's gradient."""
    compile_data = get_compile_data()
    before, compile_data.is_grad_enabled = compile_data.is_grad_enabled, False
    try:
        yield
    finally:
        compile_data.is_grad_enabled = before


_numbers = itertools.count()


def autograd_function(forward: Callable[..., Any], backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An autograd.Function's two bodies (functions of proxies), as an operator with this gradient.

    Where thunder.jit traces it is an operator of its own, as thunder's interpreter makes one (0.2.6); elsewhere, as
    where a checkpoint is run again, thunder's symbol.
    """
    context = _jit_context()
    if context is None:
        return _SYMBOLS[torch.ops.higher_order.autograd_function_apply](forward, backward, *args, **kwargs)

    @thunder.torch.call_higher_order_function_and_consider_outer_autograd_setting  # type: ignore[untyped-decorator]
    def run(*inputs: Any) -> Any:
        return forward(None, *inputs)[0]

    def differentiate(*inputs: Any) -> Any:
        result, saved = forward(None, *inputs)
        gradients = backward(None, *map(get_grad, sequencify(result)), *saved)
        for proxy, gradient in zip(inputs, sequencify(gradients), strict=False):
            if isinstance(proxy, TensorProxy) and gradient is not None:
                put_grad(proxy, gradient)
        return result

    executor = context.ad_hoc_executor
    operator = executor.register_operator(f"higher_order_autograd_function_apply_{next(_numbers)}", like=run)
    result = operator(*args)
    executor.register_implementation(operator, execution_transform=run, grad_transform=differentiate)
    return result


def _jit_context() -> Any | None:
    try:
        return get_jit_ctx()
    except LookupError:
        return None


class _Line(NamedTuple):
    """What thunder reads of a dis.Positions, which Python 3.10 has not."""

    lineno: int


def set_source(file: str | None, line: int | None) -> None:
    """The line of the program that the next symbols of the current trace come from; thunder prints it beside them."""
    trace = get_tracectx()
    if trace is not None:
        trace.set_current_source_location(file, None if line is None else _Line(line))


def trial(
    run: Callable[[], Any],
    options: Mapping[str, Any],
    *,
    is_grad_enabled: bool,
    autocasts: Sequence[tuple[Any, ...]],
) -> Any:
    """Call `run` where thunder's symbols can be called on proxies, and drop what they record.

    Autocasts are the arguments of torch's `_enter_autocast`, outermost first.
    """
    executors = resolved_executors(options)
    compile_data = CompileData(fn=trial, disable_preprocessing=True, executors_list=executors)
    compile_data.executor_lookasides = {
        replaced: symbol for executor in executors for replaced, symbol in executor._lookasides.items()
    }
    compile_data.is_grad_enabled = is_grad_enabled

    @thunder._with_cache_info_ctx  # type: ignore[untyped-decorator]
    def run_with_cache_info() -> Any:
        # Factory functions ask for these, as in thunder.jit.
        info = thunder._get_cache_info()
        info["default_dtype"], info["default_device"] = torch.get_default_dtype(), torch.get_default_device()
        for autocast in autocasts:
            _SYMBOLS[torch.amp.autocast_mode._enter_autocast](*autocast)
        return run()

    with (
        compile_data_and_stats(compile_data, CompileStats()),
        langctx(resolve_language(options.get("langctx") or "torch")),
        tracectx(TraceCtx()),
    ):
        return run_with_cache_info()


def resolved_executors(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The executors that thunder.jit would use, by name or object or default."""
    executors: tuple[Any, ...] = tuple(thunder.resolve_executors(options.get("executors")))
    return executors


def tensor_proxy(tensor: torch.Tensor, shape: Sequence[int]) -> Any:
    """A proxy with the metadata of a (fake) tensor, and a shape in plain numbers. To be called in a trial."""
    return TensorProxy(
        shape=tuple(shape),
        device=thunder.core.devices.to_device(tensor.device),
        dtype=thunder.core.dtypes.to_dtype(tensor.dtype),
        requires_grad=tensor.requires_grad,
    )


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its gradient: thunder raises where one of its operators has none."""
    wrapped: Callable[..., Any] = value_and_grad(function)
    return wrapped


def metadata_of(value: Any) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and dtype of a tensor's proxy; None for anything else."""
    if not isinstance(value, TensorProxy):
        return None
    return tuple(map(int, value.shape)), thunder.core.dtypes.to_torch_dtype(value.dtype)


# What thunder.dynamo knows of a graph


def convert_checkpoints(graph_module: torch.fx.GraphModule) -> None:
    thunder.dynamo.utils.checkpoint_converter(graph_module, graph_module)


def has_symbolic_values(options: Mapping[str, Any]) -> bool:
    """Whether thunder.jit is told to trace sizes as symbols (cache="symbolic values")."""
    cache = options.get("cache")
    return cache is not None and resolve_cache_option(cache) is CACHE_OPTIONS.SYMBOLIC_VALUES


def remove_empty_autocast(graph_module: torch.fx.GraphModule) -> None:
    thunder.dynamo.utils.remove_empty_autocast(graph_module)


def fake_arguments(graph_module: torch.fx.GraphModule) -> list[Any] | None:
    """What Inductor is compiled for: the placeholders' fake values; None where Dynamo left one of them out."""
    arguments: list[Any] | None = thunder.dynamo.utils.make_fake_arguments(graph_module)
    return arguments


# What thunder remembers of a region


def forward_traces(compiled: Callable[..., Any] | None) -> list[TraceCtx]:
    return _stage(compiled, "last_traces")


def backward_traces(compiled: Callable[..., Any] | None) -> list[TraceCtx]:
    return _stage(compiled, "last_backward_traces")


def prologue_traces(compiled: Callable[..., Any] | None) -> list[TraceCtx]:
    return _stage(compiled, "last_prologue_traces")


def _stage(compiled: Callable[..., Any] | None, name: str) -> list[TraceCtx]:
    # thunder.last_traces and its kin raise before the first call, and where nothing was compiled; a record has none.
    return list(getattr(thunder.compile_stats(compiled), name, None) or ())


def pass_of(trace: TraceCtx) -> tuple[str, float | None]:
    """The pass that made a trace, and how many seconds it took, where it says so; of the first, that it was traced."""
    text = str(trace.get_provenance() or "").removeprefix("# Constructed by ").strip()
    found = re.fullmatch(r"(.*) \(took (\d+) milliseconds\)", text)
    return (found[1], int(found[2]) / 1000) if found else (text or "Tracing", None)


def executor_counts(traces: Iterable[TraceCtx]) -> dict[str, int]:
    """How many operators of final traces each executor claims, the most first; what Python itself does is left out."""
    counts = collections.Counter(
        bound.sym.executor.name
        for trace in traces
        for bound in trace.bound_symbols
        if bound.sym.executor is not None and bound.sym.name != "clear_mutable_collection"
    )
    return dict(counts.most_common())


def phases(compiled: Callable[..., Any] | None) -> dict[str, float]:
    """Of thunder's last compilation of a region, the seconds of tracing, and of its passes until it runs."""
    stats = thunder.compile_stats(compiled)
    if stats is None or stats.last_trace_tracing_stop < 0:
        return {}
    traced = stats.last_trace_tracing_stop
    return {
        "tracing": (traced - stats.last_trace_tracing_start) / 1e9,
        "passes": max(0, stats.last_trace_host_execution_start - traced) / 1e9,
    }


def compilations(compiled: Callable[..., Any] | None) -> int:
    """How often thunder compiled a region: one for each set of shapes."""
    return getattr(thunder.compile_stats(compiled), "cache_misses", 0)


# thunder.dynamo's own objects


def peer_compiler(obj: object) -> Any | None:
    """The thunder.dynamo.ThunderCompiler behind one of its objects: itself, or its compiled callable's; else None."""
    if is_peer_callable(obj):
        obj = obj._backend  # type: ignore[attr-defined]
    return obj if issubclass(type(obj), _PEER_COMPILER) else None


def is_peer_callable(obj: object) -> bool:
    """Whether something is what thunder.dynamo.thunderfx() returned."""
    return issubclass(type(obj), _PEER_COMPILED_OBJECT)


# Bound now: tools that compare us with thunder.dynamo replace these names in its modules.
_PEER_COMPILED_OBJECT = thunder.dynamo.ThunderFXCompiledObject
_PEER_COMPILER = thunder.dynamo.ThunderCompiler
