"""Reproducers that nobody asked for one by one: what a failing region or compilation leaves behind, if told to.

The setting is thunder_fx.config.repro_dir. What a failing test leaves behind is the pytest plugin's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from thunder_fx import _torch
from thunder_fx._config import config
from thunder_fx.compiler import ThunderCompiler
from thunder_fx.errors import ConfigError
from thunder_fx.options import describe_callable
from thunder_fx.registry import compiled_callables, resolve
from thunder_fx.repro.bundle import safe, save
from thunder_fx.subgraph import describe

logger = logging.getLogger("thunder_fx")

# What was saved last of a compiler: a loop that fails a thousand times saves once.
_saved: weakref.WeakKeyDictionary[ThunderCompiler, tuple[Any, pathlib.Path]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def dump_on_error(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, an exception that a region or the compiler raises leaves a reproducer, and says where.

        with thunder_fx.dump_on_error("reproducers"):
            tfoo(x)

    The bundle goes into a folder of the callable's name; under a distributed launcher (which sets RANK) into `rank0`,
    `rank1`, ... before that. The exception carries a note with its path; it is otherwise the same, but for an exception
    of the compiler, of whose text torch.compile makes a new one: there the note is in the text. Recorded inputs are in
    it where `thunder_fx.config.capture_inputs` is "values", else made-up ones. Trouble in saving is a note, too.

    It holds for the thread or asyncio task that enters it. THUNDER_FX_REPRO_DIR in the environment is the same for the
    whole process.

    Raises:
        ConfigError: (a ValueError) `folder` is no path.
    """
    if not folder:
        raise ConfigError(f"dump_on_error() takes the path of a folder; found {folder!r}")
    with config.patch(repro_dir=folder):
        yield


def save_for(error: BaseException, compiler: ThunderCompiler, folder: str) -> None:
    """Save a bundle of a compiler that has just failed, and note on the exception where it is."""
    try:
        _note(error, f"thunder_fx: a reproducer is in {_save(compiler, pathlib.Path(folder))}")
    except Exception as trouble:  # which must not hide the error that is being reported
        _note(error, f"thunder_fx: no reproducer could be saved in {folder}: {describe(trouble)}")


def _save(compiler: ThunderCompiler, folder: pathlib.Path) -> pathlib.Path:
    infos = list(compiler.subgraph_infos)
    state = (str(folder), *((i.graph_id, i.error, *(r.error for r in i.regions)) for i in infos))
    before, path = _saved.get(compiler, (None, folder))
    if before == state and path.exists():
        return path
    rank = os.environ.get("RANK")
    name = name_of(compiler)
    path = saved(compiler, name, folder / f"rank{rank}" / safe(name) if rank else folder / safe(name))
    _saved[compiler] = (state, path)
    return path


def saved(compiler: ThunderCompiler, name: str, folder: pathlib.Path, about: str | None = None) -> pathlib.Path:
    """Save a bundle without a word, with the inputs that were asked for, and give its folder."""
    recorded = config.capture_inputs == "values" and any(info._inputs for info in compiler.subgraph_infos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has to be supplied is in the index, too
        inputs = "real" if recorded else "synthetic"
        return save(compiler, name, folder, inputs=inputs, kinds=("repro",), about=about).folder


def name_of(compiler: ThunderCompiler) -> str:
    """What the callable is called that a compiler compiles; the function that was captured, if that is not known."""
    for fn in compiled_callables():
        with contextlib.suppress(TypeError):
            if resolve(fn) is compiler:
                return describe_callable(fn).removeprefix("a ").removeprefix("compiled ")
    sources = [info.source for info in compiler.subgraph_infos if info.source is not None]
    return sources[0].function if sources else "callable"


def _note(error: BaseException, text: str) -> None:
    logger.warning(text)
    has_text = type(error).__str__ is BaseException.__str__ and len(error.args) == 1 and isinstance(error.args[0], str)
    # An exception may refuse: a frozen dataclass has no attribute that could be set.
    with contextlib.suppress(Exception):
        if has_text and _torch.inside_dynamo():
            # torch.compile makes a new exception of a backend's, of its text alone.
            error.args = (f"{error.args[0]}\n{text}",)
        if sys.version_info >= (3, 11):
            error.add_note(text)
        else:  # what add_note does; pytest shows it, and a traceback of Python 3.10 does not
            vars(error)["__notes__"] = [*getattr(error, "__notes__", []), text]
