"""Which compiled callables a failing test is about, and saving them. Called by the pytest plugin at a failure."""

from __future__ import annotations

import collections
import contextlib
import dis
import pathlib
import shutil
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fx import _torch
from thunder_fx.compiler import CompiledGraph, ThunderCompiler, live_compilers
from thunder_fx.registry import known
from thunder_fx.repro.bundle import is_free_for, safe
from thunder_fx.repro.dumps import name_of, saved
from thunder_fx.subgraph import describe

# How deep the values of fixtures are searched: attributes and elements of attributes and elements.
DEPTH = 3


def belonging(item: Any, failure: Any, first_graph: int) -> list[ThunderCompiler]:
    """The compilers that have graphs and belong to a test, each once.

    Those that have captured a graph since the test began (`first_graph` on); those that its fixtures and the globals
    that it names reach; and those on the traceback of its failure. Locals of a test that failed before live on in its
    traceback, and do not count.
    """
    found = [c for c in live_compilers() if any(info.graph_id >= first_graph for info in c.subgraph_infos)]
    fixtures = dict(getattr(item, "funcargs", {}))
    of_class = [vars(base) for base in getattr(getattr(item, "cls", None), "__mro__", ())[:-1]]
    values = (*fixtures.values(), *_globals_named_by(getattr(item, "obj", None)), getattr(item, "instance", None))
    for value in (*values, *map(dict, of_class)):
        found += _reachable(value)
    for traceback in _tracebacks(failure.value, failure.tb):
        found += _on_traceback(traceback)
    unique = dict.fromkeys(compiler for compiler in found if compiler.subgraph_infos)
    return sorted(unique, key=lambda compiler: compiler.subgraph_infos[0].graph_id)


@dataclass
class Saved:
    """The folders of bundles, how many bytes were added by them, what kept others from being saved.

    `left_out` counts those that were too large.
    """

    paths: list[str] = field(default_factory=list)
    bytes: int = 0
    troubles: list[str] = field(default_factory=list)
    left_out: int = 0


def save(
    compilers: Iterable[ThunderCompiler], folder: pathlib.Path, about: str, *, root: pathlib.Path, bytes_left: int
) -> Saved:
    """Save a bundle of each, as long as they take no more than `bytes_left` together.

    One that was there before, of the same test, is brought up to date whatever it takes.
    """
    done = Saved()
    for compiler in compilers:
        try:
            name = name_of(compiler)
            places = [folder / (safe(name) if n == 1 else f"{safe(name)}_{n}") for n in range(1, 1000)]
            place = next((place for place in places if is_free_for(compiler, place)), places[0])
            before = _size(place)
            path = saved(compiler, name, place, about)
            added = _size(path) - before
            if before == 0 and done.bytes + added > bytes_left:
                done.left_out += 1
                _take_away(path, root)
            else:
                done.bytes += added
                done.paths.append(str(path))
        except Exception as trouble:  # which must hide neither the other bundles nor the test's failure
            done.troubles.append(describe(trouble))
    return done


def _size(folder: pathlib.Path) -> int:
    """How many bytes a bundle takes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _take_away(bundle: pathlib.Path, root: pathlib.Path) -> None:
    """A bundle, and the folders of its test, where nothing else is in them; not the run's."""
    shutil.rmtree(bundle)
    for parent in bundle.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()


def _globals_named_by(function: Any) -> Iterator[Any]:
    function = getattr(function, "__func__", function)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents
    pending = [code] if isinstance(code, types.CodeType) else []
    while pending:
        code = pending.pop()
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        # Not co_names, which has the names of attributes, too.
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval in names:
                yield names[instruction.argval]


def _reachable(value: Any) -> Iterator[ThunderCompiler]:
    """The compilers of the callables that a value is, holds, or has as attributes."""
    pending, seen = collections.deque([(value, 0)]), set()
    while pending:  # breadth first: what is reached on several ways counts by the shortest
        value, depth = pending.popleft()
        if id(value) in seen or issubclass(type(value), _PLAIN):
            continue
        seen.add(id(value))
        compiler = known(value)
        if compiler is not None:
            yield compiler
        if depth < DEPTH:
            pending.extend((part, depth + 1) for part in _parts(value))


_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.Tensor, torch.dtype)


def _parts(value: Any) -> list[Any]:
    with contextlib.suppress(Exception):  # an object of the user's may do anything when it is looked at
        if isinstance(value, Mapping):
            return list(value.values())[:1000]
        if isinstance(value, (list, tuple, set, frozenset)):
            return list(value)[:1000]
        if isinstance(value, torch.nn.Module):
            return [*(child for _, child in _torch.named_descendants(value)), *vars(value).values()]
        if isinstance(value, types.MethodType):
            return [value.__self__]
        slots = [
            name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()) if isinstance(name, str)
        ]
        attributes = [getattr(value, name) for name in slots if hasattr(value, name) and not name.startswith("__")]
        return [*getattr(value, "__dict__", {}).values(), *attributes][:1000]
    return []


def _tracebacks(error: BaseException | None, first: types.TracebackType | None) -> Iterator[types.TracebackType | None]:
    """Of a failure, and of the failures that it was raised from, or while handling."""
    yield first
    seen = {id(error)}
    pending = [error.__cause__, error.__context__] if error is not None else []
    while pending:
        error = pending.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error.__traceback__
            pending += [error.__cause__, error.__context__]


def _on_traceback(traceback: types.TracebackType | None) -> Iterator[ThunderCompiler]:
    """The compilers of compiled graphs that were running, and of compiled callables that a frame holds."""
    infos = []
    while traceback is not None:
        local = traceback.tb_frame.f_locals
        this = local.get("self")
        if isinstance(this, CompiledGraph):
            infos.append(this.record())
        for value in list(local.values()):
            compiler = known(value)
            if compiler is not None:
                yield compiler
        traceback = traceback.tb_next
    for compiler in live_compilers():
        if any(info is not None and info in compiler.subgraph_infos for info in infos):
            yield compiler
