"""The side table: which ThunderCompiler compiled which callable.

A table of the process, and weak: its keys are what torch.compile returned (they hash by identity, and take weak
references), its values ThunderCompilers. It is the only thing that keeps a thunderfx callable's record alive, so with
the callable goes the record. Global because a compiled callable is found from anywhere, and torch.compile's results
take no attribute that survives a copy. What lookups say when there is nothing to say is inspection.py's.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from torch.nn import Module

from thunder_fx import _thunder, _torch
from thunder_fx._torch import OptimizedModule, compiled_in_place
from thunder_fx.compiler import Hook, ThunderCompiler
from thunder_fx.errors import NotCompiledError, RegistrationError
from thunder_fx.interop import seen_as_ours
from thunder_fx.options import describe_callable, shown

# Reentrant: a finalizer may run in the middle of a lookup. Finalizers themselves take no lock.
_lock = threading.RLock()
_table: weakref.WeakKeyDictionary[Any, ThunderCompiler] = weakref.WeakKeyDictionary()
# Asked to be forgotten: their backends, which Dynamo keeps, would otherwise lead back to the record.
_forgotten: weakref.WeakSet[Any] = weakref.WeakSet()
# What torch.compile returned as it was (disable=True): by id, since a user's object may not hash.
_unchanged: dict[int, weakref.ref[Any]] = {}


def register(fn: Callable[..., Any], backend: ThunderCompiler) -> None:
    """Say which ThunderCompiler a callable belongs to.

        backend = thunder_fx.ThunderCompiler()
        compiled = torch.compile(foo, backend=backend)
        thunder_fx.register(serve, backend)            # serve calls compiled; lookups on serve now answer too

    Not needed for what thunderfx(), torch.compile or Module.compile made: lookups find those by themselves. The table
    holds `fn` weakly and `backend` strongly; registering again replaces.

    Raises:
        RegistrationError: (a TypeError) `backend` is no ThunderCompiler, or `fn` cannot be a key: it is not callable,
            takes no weak reference, or compares by value.
    """
    if not isinstance(backend, ThunderCompiler):
        raise RegistrationError(
            f"register({describe_callable(fn)}, ...): expected a thunder_fx.ThunderCompiler, found {shown(backend)}; "
            "last_backend(fn) gives the one of a compiled callable"
        )
    key = _key(fn)
    if not callable(fn) or key is None:
        raise RegistrationError(
            f"register({describe_callable(fn)}, ...): expected a function or a compiled Module, found an object of "
            f"{type(fn)!r}, which is not callable, takes no weak reference, or compares by value; wrap it in a function"
        )
    with _lock:
        _table[key] = backend
        _forgotten.discard(key)


def forget(fn: Callable[..., Any]) -> None:
    """Drop what is known of a compiled callable, which goes on working.

        thunder_fx.forget(compiled)

    Its records are freed at once; what it compiles from now on is not recorded, and lookups raise. A ThunderCompiler
    that was given to torch.compile (or to Module.compile) may serve others, and Dynamo keeps it until a reset: it is
    emptied, and goes on recording.

    Raises:
        NotCompiledError: (a TypeError) nothing is known of `fn`.
    """
    with _lock:
        compiler = resolve(fn)
        shared = has_compiler_as_backend(fn)
        for key in [key for key in candidates(fn) if _find(key) is compiler]:
            _table.pop(key, None)
            if shared:
                continue
            _forgotten.add(key)
            context = _torch.context_of(key)
            if context is not None:
                _torch.release_from(context)
        compiler.forget(stop_recording=not shared)


def compiled_callables() -> list[Callable[..., Any]]:
    """The compiled callables that are alive and known: those of thunderfx(), registered, or looked up before.

    for fn in thunder_fx.compiled_callables():
        print(fn, thunder_fx.last_backend(fn))
    """
    with _lock:
        return list(_table.keys())


def resolve(fn: Callable[..., Any]) -> ThunderCompiler:
    """The ThunderCompiler of a callable, found and from then on remembered; NotCompiledError if there is none."""
    compiler = known(fn)
    if compiler is None:
        raise NotCompiledError(_why_unknown(fn))
    return compiler


def known(fn: Any) -> ThunderCompiler | None:
    """The same of any object; None if there is none."""
    # The short way, which costs no more than a few of Python's own look-ups: what can be a key is asked for at once.
    kind, key = type(fn), fn
    if kind is not FunctionType and not issubclass(kind, OptimizedModule):
        key = compiled_in_place(fn) if issubclass(kind, Module) else None
    if key is not None:
        compiler = _table.get(key)
        if compiler is not None:
            return compiler
    with _lock:
        for key in candidates(fn):
            compiler = _find(key)
            if compiler is not None:
                # Not a backend itself: the table would keep it alive, as value of its own key.
                if _torch.context_of(key) is not None or _thunder.is_peer_callable(key):
                    _table[key] = compiler
                return compiler
    return None


def note_unchanged(fn: Any) -> None:
    """Remember, without keeping it, that torch.compile returned a callable as it was."""
    number = id(fn)
    with contextlib.suppress(TypeError):  # what takes no weak reference, a lookup calls unknown, and no more
        _unchanged[number] = weakref.ref(fn, lambda _: _unchanged.pop(number, None))


def _find(key: Any) -> ThunderCompiler | None:
    """What the table, or else torch.compile's own result, says of one candidate."""
    if key in _forgotten:
        return None
    compiler = _table.get(key)
    if compiler is not None:
        return compiler
    context = _torch.context_of(key)
    backend = _torch.backend_of(context) if context is not None else key
    if issubclass(type(backend), ThunderCompiler):
        own: ThunderCompiler = backend
        return own
    if issubclass(type(backend), Hook):
        hook: Hook = backend
        return hook.compiler_asked_for(context) if context is not None else hook.compiler()
    return seen_as_ours(backend)


def candidates(fn: Any) -> Iterator[Any]:
    """What a callable could be known as: itself, what it is bound to or compiled in place to, what it wraps."""
    seen: set[int] = set()
    while fn is not None and id(fn) not in seen:
        seen.add(id(fn))
        key = _key(fn)
        if key is not None:
            yield key
        fn = _inner(fn)


def _key(fn: Any) -> Any | None:
    """What stands for a callable in the table; None for what cannot stand there."""
    if _is_plain_module(fn):
        compiled = compiled_in_place(fn)
        if compiled is not None:
            return compiled
    if issubclass(type(fn), (MethodType, type)):
        return None  # a method is made anew at each access, and its function stands for it; a class is never compiled
    kind: Any = type(fn)
    by_identity = kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__
    return fn if by_identity and kind.__weakrefoffset__ else None


def _inner(fn: Any) -> Any | None:
    """The next callable that a compiled one may hide in."""
    # Asked of type(): an object of the user's may lie about its __class__, or raise.
    kind = type(fn)
    if issubclass(kind, (MethodType, staticmethod, classmethod)):
        return fn.__func__
    if issubclass(kind, functools.partial):
        return fn.func
    return vars(fn).get("__wrapped__") if kind is FunctionType else None


def _is_plain_module(fn: Any) -> bool:
    return issubclass(type(fn), Module) and not issubclass(type(fn), OptimizedModule)


def has_compiler_as_backend(fn: Any) -> bool:
    """Whether a callable was compiled with backend=ThunderCompiler()."""
    contexts = filter(None, map(_torch.context_of, candidates(fn)))
    return any(isinstance(_torch.backend_of(context), ThunderCompiler) for context in contexts)


def _why_unknown(fn: Any) -> str:
    what = describe_callable(fn)
    if id(fn) in _unchanged and _unchanged[id(fn)]() is fn:
        return (
            f"{what} is not compiled: torch.compile returned it unchanged (disable=True, or TORCHDYNAMO_DISABLE=1), so "
            "thunderfx() had nothing to record"
        )
    if not callable(fn):
        return (
            f"expected a compiled callable, found {what} ({type(fn).__qualname__}); compile a function or Module with "
            "thunderfx(fn)"
        )
    if any(key in _forgotten for key in candidates(fn)):
        return f"{what} was forgotten by forget(); compile it again with thunderfx(fn)"
    if issubclass(type(fn), Module):
        children = [name for name, child in _torch.named_descendants(fn) if _is_known(child)]
        if children:
            names = ", ".join(children[:10]) + (", ..." if len(children) > 10 else "")
            return (
                f"{what} is not compiled, but parts of it are: {names}; ask for those, or compile the whole with "
                "thunderfx(module)"
            )
    return (
        f"{what} ({type(fn).__qualname__}) was not compiled by thunder_fx; ask for what `compiled = thunderfx(fn)` "
        "returned (not for fn), or compile it with backend=ThunderCompiler()"
    )


def _is_known(module: Module) -> bool:
    return any(_find(key) is not None for key in candidates(module))
