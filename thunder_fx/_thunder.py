"""The only module that touches private names of thunder, and what thunder.dynamo has that we do not write again.

Everything here is true of lightning-thunder 0.2.6; a new release may break this file and no other. What needs a public
name of thunder only may import thunder itself. How thunder is made importable on newer torch is _placeholders.py's.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from thunder_fx import _placeholders, _torch
from thunder_fx.errors import CompatibilityError, OptionError, OptionValueError

_placeholders.install()
try:
    with warnings.catch_warnings():
        # Said at each import where torch was built for CUDA; a user of thunder_fx did not ask for it.
        warnings.filterwarnings("ignore", message="transformer_engine module not found")
        import thunder
    import thunder.dynamo.utils
    from thunder.core.langctxs import resolve_language
    from thunder.core.options import DebugOptions, resolve_cache_option, resolve_sharp_edges_option
    from thunder.core.transform_common import Transform
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
    graph_module: torch.fx.GraphModule,
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
    # Changed in place: what a checkpoint runs must be thunder's symbols (0.2.6 does not look inside it).
    thunder.dynamo.utils.checkpoint_converter(graph_module, graph_module)
    _torch.call_plainly(graph_module)
    jitted: Callable[..., Any] = thunder.jit(
        graph_module, transforms=transforms, is_differentiable_outputs=is_differentiable_outputs, **others
    )
    return jitted


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
_PACKAGES = tuple(os.path.join(package.__path__[0], "") for package in (thunder, torch))
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


def _belongs_to_tracing(filename: str) -> bool:
    # site-packages lies in the standard library's folder.
    is_standard = filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
    return is_standard or filename.startswith((*_GENERATED, *_PACKAGES))


# The name of the autograd node behind the outputs of a region that has gradients.
AUTOGRAD_NODE = "ThunderFunctionBackward"


# What thunder.dynamo knows of a node


def node_support(node: torch.fx.Node, options: Mapping[str, Any]) -> Any | None:
    """thunder.dynamo's reason why thunder cannot run a node, as its SplitReason; None where it can."""
    supported, reason = thunder.dynamo.utils.is_node_supported_by_thunder(node, dict(options))
    return None if supported else reason


@functools.cache
def has_symbol(target: Any) -> bool:
    """Whether thunder has a symbol of its own for a function."""
    return target in thunder.dynamo.utils._torch_to_thunder_function_map


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
