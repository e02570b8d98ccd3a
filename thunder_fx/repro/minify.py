"""Shrinking the graph of a script that fails to the fewest nodes that still fail in the same way.

The search is torch's fx_minifier; here is what a try is (a script of the same form, in a process of its own), and what
the same way means.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from thunder_fx import _files, _torch
from thunder_fx.errors import MinifyError
from thunder_fx.graph import structure
from thunder_fx.repro import inputs as inputs_as_code
from thunder_fx.repro.bundle import save_tensor
from thunder_fx.repro.code import Source
from thunder_fx.repro.runner import Reproducer
from thunder_fx.repro.values import Writer
from thunder_fx.repro.verify import plain


@dataclass(frozen=True)
class Failure:
    """How a script fails: `raises` with an error, `differs` from eager, `dies` with a status, or `hangs`."""

    kind: str
    text: str = ""

    def is_like(self, other: Failure, pattern: str | None) -> bool:
        """Whether another failure is the same; with a pattern, whether its text has it."""
        if pattern is not None:
            return self.kind == other.kind and re.search(pattern, other.text) is not None
        if self.kind != other.kind:
            return False
        # By how much values differ from eager's changes with the graph; an error's text must not.
        if self.kind == "differs":
            return _OF_VALUES in other.text if _OF_VALUES in self.text else _OF_VALUES not in other.text
        return _first_line(self.text) == _first_line(other.text)


_OF_VALUES = "not close"
# The exit status of a try whose script could not even be loaded: that is no failure like any other.
_NOT_LOADED = 99


def _first_line(text: str) -> str:
    # thunder's interpreter adds the code that it was reading.
    return plain(text.partition("\n")[0].partition(" while tracing ")[0])


@dataclass
class Minified:
    """What came of it: the script that was written, its failure, and nodes before and after.

    Where the search was interrupted, it is the smallest that was found until then.
    """

    path: pathlib.Path
    failure: Failure
    before: int
    after: int
    tries: int
    is_complete: bool = True


def minify(
    script: pathlib.Path,
    out: pathlib.Path,
    *,
    pattern: str | None = None,
    timeout: float = 300,
    on_progress: Callable[[int, int], None] | None = None,
) -> Minified:
    """Shrink a script's graph; `on_progress` is called with the number of tries and of nodes of the smallest so far.

    Raises:
        MinifyError: (a ValueError) the script does not fail, or not by one compiler alone.
        OSError: the result cannot be written.
    """
    search, is_complete = _Search(script, pattern, timeout, on_progress), True
    with tempfile.TemporaryDirectory() as folder:
        try:
            graph_module, values = search.run(pathlib.Path(folder))
        except KeyboardInterrupt:
            if search.best is None:
                raise
            (graph_module, values), is_complete = search.best, False
    search.write(graph_module, values, out)
    return Minified(out, search.failure, search.before, _count(graph_module), search.tries, is_complete)


class _Search:
    def __init__(
        self,
        script: pathlib.Path,
        pattern: str | None,
        timeout: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.text = script.read_text(encoding="utf-8")
        self.script, self.pattern, self.timeout, self.on_progress = script, pattern, timeout, on_progress
        try:
            self._names = runpy.run_path(str(script), run_name="minified")
            self.reproducer: Reproducer = self._names["reproducer"]
            self.inputs = self.reproducer.make_inputs()
        except (Exception, SystemExit) as error:
            raise MinifyError(f"{script} cannot be loaded: {type(error).__name__}: {error}") from error
        self.tries, self.compiler, self.failure = 0, self.reproducer.compiler, Failure("agrees")
        self.before = self.smallest = 0
        self.best: tuple[GraphModule, list[Any]] | None = None

    def run(self, folder: pathlib.Path) -> tuple[GraphModule, list[Any]]:
        self.failure, self.compiler = self._first_failure(folder)
        graph_module, values = self._names["as_graph"](self.reproducer.graph()), self.inputs
        self.before = self.smallest = _count(graph_module)

        def fails(candidate: GraphModule, inputs: Sequence[Any]) -> bool:
            path = folder / f"try{self.tries}" / "minified_repro.py"
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir(parents=True)
            try:
                self.write(candidate, inputs, path)
            except Exception:  # a candidate that cannot be written is none
                return False
            is_same = self._fails_like_first(path)
            if is_same and _count(candidate) <= self.smallest:
                self.smallest, self.best = _count(candidate), (structure.copy_structure(candidate), list(inputs))
            if self.on_progress is not None:
                self.on_progress(self.tries, self.smallest)
            return is_same

        # fx_minifier runs the graph eager for intermediate values, and tells on stderr what it does.
        with self.reproducer.modes(), contextlib.redirect_stderr(io.StringIO()):
            eager = self._try(self.script, ["--compiler", "eager"])
            runs_eager = eager is None or eager.kind not in ("dies", "hangs")
            smallest, inputs = _torch.minify_graph(graph_module, values, fails, runs_eager=runs_eager)
        return smallest, list(inputs)

    def _first_failure(self, folder: pathlib.Path) -> tuple[Failure, str]:
        """How the script fails, and the one compiler by which it does."""
        split = self.reproducer.compiler == "recorded"
        compilers = ["thunder", "inductor"] if split else [self.reproducer.compiler]
        recorded = self._try(self.script, [])
        if recorded is None:
            raise MinifyError(
                f"{self.script} does not fail: there is nothing to shrink. Made-up inputs may not fail as yours did: "
                "record them with THUNDER_FX_CAPTURE_INPUTS=values"
            )
        for compiler in compilers:
            failure = self._try(self.script, ["--compiler", compiler]) if split else recorded
            if failure is not None and recorded.is_like(failure, self.pattern):
                return failure, compiler
        raise MinifyError(
            f"{self.script} fails ({recorded.kind}: {recorded.text.partition(chr(10))[0]}), but "
            + ("not so by one compiler alone: give the script of one region" if split else "not as --regex asks for")
        )

    def _fails_like_first(self, path: pathlib.Path) -> bool:
        failure = self._try(path, [])
        return failure is not None and self.failure.is_like(failure, self.pattern)

    def _try(self, path: pathlib.Path, arguments: list[str]) -> Failure | None:
        """How a script fails, in a process of its own; None if it does not."""
        self.tries += 1
        with tempfile.TemporaryDirectory() as elsewhere:
            report = pathlib.Path(elsewhere) / "report.json"
            process = _context().Process(target=_run_script, args=(str(path), [*arguments, "--json", str(report)]))
            process.start()
            process.join(self.timeout)
            if process.is_alive():
                process.kill()
                process.join()
                return Failure("hangs")
            if process.exitcode == _NOT_LOADED:
                return None
            if not report.exists():
                return Failure("dies", f"exit status {process.exitcode}")
            found = json.loads(report.read_text())
        if found["outcome"] == "agrees":
            return None
        if found["outcome"] == "differs":
            return Failure("differs", "; ".join(found["differences"]))
        return Failure("raises", found["error"])

    # Writing a script of the same form

    def write(self, graph_module: GraphModule, values: Sequence[Any], path: pathlib.Path) -> None:
        for node, value in zip(graph_module.graph.find_nodes(op="placeholder"), values, strict=True):
            node.meta["example_value"] = value
        writer = Writer()
        source = Source(writer)
        source.add(graph_module, "Graph")
        made = inputs_as_code.of_graph(graph_module, list(values), writer)
        parts = [*writer.definitions.values(), *source.classes, made.source()]
        text = _with_replaced(self.text, "\n\n\n".join(parts), self.compiler, made.computed)
        for file, tensor in {**source.constants, **made.files}.items():
            save_tensor(path.parent / file, tensor)
        _files.write_whole(path, text)


def _with_replaced(text: str, graph: str, compiler: str, computed: list[int]) -> str:
    """A script with another graph and other inputs, for one compiler; all else stays as it is."""
    lines, tree = [f"{line}\n" for line in text.split("\n")], ast.parse(text)
    replaced: dict[tuple[int, int], str] = {}
    is_first = True
    for node in tree.body:
        span = (node.lineno - 1, node.end_lineno or node.lineno)
        is_module = isinstance(node, ast.ClassDef) and any(ast.unparse(b) == "torch.nn.Module" for b in node.bases)
        if (is_module and not node.name.startswith("_")) or (  # type: ignore[attr-defined]
            isinstance(node, ast.FunctionDef) and node.name == "make_inputs"
        ):
            replaced[span] = graph + "\n" if is_first else ""
            is_first = False
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reproducer":
            call = node.value
            assert isinstance(call, ast.Call)
            own = ("compiler", "computed", "differentiable", "split", "written")
            kept = [k for k in call.keywords if k.arg not in own]
            keywords = [f"{k.arg}={ast.unparse(k.value)}" for k in kept]
            keywords += [f"compiler={compiler!r}", *([f"computed={computed}"] if computed else [])]
            replaced[span] = "reproducer = Reproducer(\n" + "".join(f"    {k},\n" for k in keywords) + ")\n"
    for (first, last), new in sorted(replaced.items(), reverse=True):
        lines[first:last] = [new]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines))


def _count(graph_module: GraphModule) -> int:
    """The operators of a graph."""
    return sum(node.op not in ("placeholder", "get_attr", "output") for node in graph_module.graph.nodes)


def _context() -> Any:
    """How the processes of tries are made: forked from one that has imported torch and thunder, where possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["thunder_fx._thunder"])
    return context


def _run_script(path: str, arguments: list[str]) -> None:
    """In the child."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            reproducer = runpy.run_path(path, run_name="minified")["reproducer"]
        except BaseException:
            sys.exit(_NOT_LOADED)
        sys.exit(reproducer.main(arguments))
