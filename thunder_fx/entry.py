"""thunderfx(): the one call that compiles. What options mean is options.py's; what compiling does, compiler.py's."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
from typing_extensions import Unpack

from thunder_fx import _torch, registry
from thunder_fx import options as option_rules
from thunder_fx.compiler import ThunderCompiler, retire_with, warn_of_limit
from thunder_fx.errors import ThunderFXWarning, UncompilableError
from thunder_fx.options import Options, describe_callable

F = TypeVar("F", bound=Callable[..., Any])


@overload
def thunderfx(fn: F, /, **options: Unpack[Options]) -> F: ...
@overload
def thunderfx(fn: None = None, /, **options: Unpack[Options]) -> Callable[[F], F]: ...
def thunderfx(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compile a function or Module by thunder, behind torch.compile.

        import torch, thunder_fx

        def foo(x):
            return torch.sin(x) + 1

        tfoo = thunder_fx.thunderfx(foo)
        tfoo(torch.randn(3))
        thunder_fx.get_subgraph_info(tfoo)

    Also a decorator, bare (`@thunderfx`) or with options (`@thunderfx(fullgraph=True)`), for functions and for methods
    in a class body.

    Args:
        fn: a function, Module, bound method, functools.partial, or an object with a `__call__`.
        **options: torch.compile's keywords (fullgraph, dynamic, mode, options, disable, ...) and thunder.jit's
            (executors, transforms, cache, ..., and what its executors look up by name), each routed by its name.
            `mode=` and `options=` reach the regions that Inductor compiles. `thunder_options={...}` takes any further
            name for thunder.jit. Where torch has `isolate_recompiles` (2.13), it is on unless given.

    Returns:
        Exactly what torch.compile returns: for a function a function, for a Module a Module with its parameters. With
        `disable=True` that is `fn` itself, and nothing is recorded.

    Raises:
        UncompilableError: (a TypeError) `fn` is not something to call, or is a class.
        OptionError: (a TypeError) an unknown or misplaced option; names the nearest known one.
        OptionValueError: (a ValueError) a value that an option does not take.

    Nothing is recorded by a call that raises.
    """
    target = f"thunderfx({'' if fn is None else describe_callable(fn)})"
    if "backend" in options:
        raise option_rules.refuse_backend(target)
    routed = option_rules.route(target, options)
    if fn is None:
        # What was routed is a list of our own by now: a generator of transforms serves each decorated function.
        return functools.partial(_compile, routed=routed)
    return _compile(fn, routed)


def _compile(fn: Callable[..., Any], routed: option_rules.Routed) -> Any:
    _check_compilable(fn)
    compiler = ThunderCompiler(routed.thunder, routed.torch_compile)
    options = dict(compiler.torch_compile_options)
    if options.get("options") is not None:
        options["options"] = dict(options["options"])  # torch.compile pops from it
    if "isolate_recompiles" in option_rules.installed_torch_compile_names():
        # Otherwise the ninth callable compiled from one function or class gets no graph, and nobody says so.
        options.setdefault("isolate_recompiles", True)
    compiled = torch.compile(fn, backend=compiler._hook, **options)
    if compiled is fn:
        registry.note_unchanged(fn)
        return compiled
    context = _torch.context_of(compiled)
    if context is None or _torch.backend_of(context) is not compiler._hook:
        warnings.warn(
            f"thunderfx({describe_callable(fn)}): torch.compile of torch {torch.__version__} did not take the backend "
            "that it was given, as under its bisector, or returned something unknown; lookups will not know it",
            ThunderFXWarning,
            stacklevel=3,
        )
        return compiled
    retire_with(context, compiler._hook)
    registry.register(compiled, compiler)
    code = _torch.guarded_code_of(compiled)
    if code is not None:
        warn_of_limit(code, _torch.cache_usage(code, context))
    return compiled


def _check_compilable(fn: object) -> None:
    target = f"thunderfx({describe_callable(fn)})"
    if isinstance(fn, type):
        raise UncompilableError(
            f"{target}: expected a function or a Module instance, found a class; compile an instance of it, or "
            "decorate its forward or another method"
        )
    if isinstance(fn, (staticmethod, classmethod)):
        kind = type(fn).__name__
        raise UncompilableError(f"{target}: expected a function, found a {kind}; put @{kind} above @thunderfx")
    if not callable(fn):
        raise UncompilableError(
            f"{target}: expected a function, Module or other callable, found an object of {type(fn)!r}; options are "
            "keywords, as in thunderfx(fn, fullgraph=True)"
        )
