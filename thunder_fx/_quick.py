"""How thunder compiles the same, sooner: what stands in for functions of its own while it compiles.

Like _thunder.py this touches private names of thunder, and is true of lightning-thunder 0.2.6. Whatever is here changes
seconds and nothing else; what changes a trace does not belong here.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import optree
import torch

from thunder_fx import _thunder  # noqa: F401  # which makes thunder importable

# ruff: isort: split
import thunder
import thunder.core.pytree
import thunder.core.symbol
import thunder.executors.passes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceProvenance, from_trace
from thunder.distributed.prims import PrimIDs as DistPrimIDs
from thunder.extend import FusionExecutor

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx


@contextlib.contextmanager
def quickened() -> Iterator[None]:
    """Inside, thunder compiles the same and sooner: what it works out for each symbol anew, it works out once.

    In thunder 0.2.6 these are the signatures of functions (Symbol.normalize), lists of types and trees that are built
    for each look at a symbol's arguments (thunder.core.pytree), and passes over a trace that change nothing, or whose
    result is thrown away. Traces are the same but for the numbers in their names, which a test holds against them.
    Another thread that compiles meanwhile gets the same. Python's full garbage collections wait meanwhile: they look
    at all that the process has, several times in a compilation, a fifth of its seconds, and find next to nothing.
    """
    names = _quick_names()  # before the lock is held: it makes much, and a collection may call anything
    token = _Inside()
    try:
        with _state.lock:
            is_first = not _state.inside
            _state.inside.add(token)
            if is_first:
                _begin(names)
        yield
    finally:
        try:
            _leave(token)
        except BaseException:  # Ctrl-C, on the way out
            _leave(token)
            raise


class _Inside:
    """Stands for one who is inside."""


class _State:
    """Who is inside, what was put in the place of what, and what there was before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Weak: one who was interrupted on the way out as well is gone with its frame.
        self.inside: weakref.WeakSet[_Inside] = weakref.WeakSet()
        self.names: tuple[tuple[Any, str, Any, Any], ...] = ()
        self.modules = 0
        self.threshold = gc.get_threshold()[2]


_state = _State()
# So many collections of the younger ones go before a full one, in the place of 10: a Llama of 12 layers takes 250. It
# is no more than that because another thread may save it meanwhile, and restore it later; and nobody else's number.
_LATE = 10_007


# Both may be interrupted anywhere, and are right when called again.


def _begin(names: tuple[tuple[Any, str, Any, Any], ...]) -> None:
    _state.modules, _state.names = len(sys.modules), names
    for module, name, usual, quick in names:
        if getattr(module, name) is usual:  # else it is somebody's own, who has put it there for a reason
            setattr(module, name, quick)
    youngest, younger, full = gc.get_threshold()
    if full != _LATE:
        _state.threshold = full
    gc.set_threshold(youngest, younger, _LATE)


def _leave(token: _Inside) -> None:
    with _state.lock:
        _state.inside.discard(token)
        if not _state.inside:
            _end()


def _end() -> None:
    for module, name, usual, quick in _state.names:  # which another thread may have made anew, with what is there now
        if getattr(module, name) is quick:
            setattr(module, name, usual)
    if len(sys.modules) != _state.modules:
        _mend_new_modules()
    _signatures.clear()
    youngest, younger, full = gc.get_threshold()
    if full == _LATE:  # else somebody has set it meanwhile
        gc.set_threshold(youngest, younger, _state.threshold)


def _mend_new_modules() -> None:
    """What thunder has imported meanwhile took the names that stood there."""
    usual = {quick: usual for _, _, usual, quick in _state.names}
    for module, name, value in _functions_of_thunder():
        if value in usual:
            setattr(module, name, usual[value])
    _quick_names.cache_clear()


def _in_forked_process() -> None:
    """Only the thread that forked is there, and it may be inside."""
    _state.lock = threading.RLock()
    _state.inside.clear()
    _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_process)

_signatures: dict[Any, inspect.Signature] = {}


@functools.cache
def _quick_names() -> tuple[tuple[Any, str, Any, Any], ...]:
    """Each module of thunder that has one of the functions, under which name, and what stands in for it."""
    symbol, passes = thunder.core.symbol, thunder.executors.passes
    pairs = ((_flatten_usual, _flatten), (_flatten_with_dataclass_usual, _flatten_with_dataclass))
    # Another thread may be inside, and have the quick ones in place.
    either = {value: pair for pair in pairs for value in pair}
    found = [(module, name, *either[value]) for module, name, value in _functions_of_thunder() if value in either]
    return (
        *found,
        (symbol, "inspect", inspect, _quick_inspect),
        (passes, "dce", _dce_usual, _dce),
        (passes, "_transform_for_operator_executor_execution", _assign_executors_usual, _assign_executors),
    )


def _functions_of_thunder() -> Iterator[tuple[types.ModuleType, str, types.FunctionType]]:
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == "thunder" and isinstance(module, types.ModuleType):
            for name, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType):
                    yield module, name, value


class _QuickInspect(types.ModuleType):
    """The module inspect, for thunder.core.symbol."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    def signature(function: Any) -> inspect.Signature:
        if not isinstance(function, types.FunctionType):  # another callable may have no hash
            return inspect.signature(function)
        found = _signatures.get(function)
        if found is None:
            found = _signatures[function] = inspect.signature(function)
        return found


_quick_inspect = _QuickInspect("inspect")
_flatten_usual = thunder.core.pytree.tree_flatten
_flatten_with_dataclass_usual = thunder.core.pytree.tree_flatten_with_dataclass
# What thunder's tree_flatten lets pass by type, as far as it is met; all else is for it to judge.
_TREES = frozenset({dict, list, tuple, str, int, bool, float, NoneType, slice, torch.Size, torch.dtype})
_NAMESPACE = thunder.core.pytree.OPTREE_NAMESPACE


def _flatten(args: Any, namespace: str = _NAMESPACE) -> Any:
    if type(args) in _TREES or isinstance(args, Proxy):
        return optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)
    return _flatten_usual(args, namespace)


def _flatten_with_dataclass(tree: Any) -> Any:
    """Without building the tree anew: what is no dataclass, or a known one, needs no registering."""
    leaves, spec = _flatten(tree)
    if any(hasattr(type(leaf), "__dataclass_fields__") for leaf in leaves):
        return _flatten_with_dataclass_usual(tree)
    return leaves, spec


_dce_usual = thunder.executors.passes.dce
_assign_executors_usual = thunder.executors.passes._transform_for_operator_executor_execution


def _dce(trace: TraceCtx, *args: Any, **kwargs: Any) -> TraceCtx:
    """transform_for_execution calls it twice in a row where torch.distributed is there: what came of it is clean."""
    if getattr(trace, "_thunder_fx_is_clean", False) and not args and not kwargs:
        return trace
    clean: TraceCtx = _dce_usual(trace, *args, **kwargs)
    if not args and not kwargs:  # what was asked to keep more may yet be cleaned of it
        clean._thunder_fx_is_clean = True  # type: ignore[attr-defined]
    return clean


def _assign_executors(trace: TraceCtx, executors: Sequence[Any]) -> TraceCtx:
    """A trace each of whose symbols has its executor would be built anew, symbol by symbol, and be the same.

    And thunder.jit assigns executors twice: the first time, in thunder's __init__.py, for maybe_sort_waits, and where
    nothing waits for other processes that throws the trace away.
    """
    if sys._getframe(1).f_globals.get("__name__") == "thunder" and not _communicates(trace.bound_symbols):
        return trace
    if not all(_is_settled(bound, executors) for bound in trace.bound_symbols):
        result: TraceCtx = _assign_executors_usual(trace, executors)
        return result
    twin = from_trace(trace)
    twin.bound_symbols = list(trace.bound_symbols)
    twin.set_provenance(TraceProvenance("Transform for operator executor execution (took 0 milliseconds)"))
    return twin


# The id of wait_prim_impl, which thunder.executors.torchex has where torch.distributed is there.
_WAIT = "torch_wait_prim_impl"


def _communicates(bound_symbols: Iterable[Any]) -> bool:
    return any(
        isinstance(b.sym.id, DistPrimIDs) or b.sym.id == _WAIT or _communicates(b.subsymbols) for b in bound_symbols
    )


def _is_settled(bound: Any, executors: Sequence[Any]) -> bool:
    if bound.sym.python_impl is not None or bound.sym.id is PrimIDs.GET_GRAD:
        return True
    return bound.sym.executor is not None and not any(
        executor.can_fuse(bound) if isinstance(executor, FusionExecutor) else executor.can_execute(bound)
        for executor in executors
    )
