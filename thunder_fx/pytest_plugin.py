"""A pytest plugin: a test that fails after compiling with thunder_fx leaves reproducers, and its report says where.

pytest loads it in every run of an environment that has thunder_fx, so that it imports neither torch nor thunder: what
needs them is repro/of_tests.py, which is imported once a test has failed that had imported thunder_fx itself.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

from thunder_fx import _keeping

_PROPERTY = "thunder_fx_reproducer"
_SECTION = "thunder_fx reproducers"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("thunder_fx", "reproducers of failing tests, by thunder_fx")
    group.addoption(
        "--thunder-fx-repro-dir",
        metavar="DIR",
        help="a test that fails after compiling with thunder_fx leaves reproducers in DIR/<test>/<callable>",
    )
    group.addoption(
        "--thunder-fx-repro-max",
        metavar="N",
        type=_count,
        default=50,
        help="how many reproducers a run leaves at most (50); with pytest-xdist its workers share them",
    )
    group.addoption(
        "--thunder-fx-repro-max-size",
        metavar="MIB",
        type=_count,
        default=1024,
        help="and how many MiB (1024): what would make it more is not kept",
    )
    parser.addini("thunder_fx_repro_dir", "the same as --thunder-fx-repro-dir, relative to the ini file")


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"takes a number, 0 or more; found {text!r}")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    folder = _folder(config)
    if folder is not None:
        config.pluginmanager.register(Reproducers(config, folder), "thunder_fx_reproducers")


def _folder(config: pytest.Config) -> pathlib.Path | None:
    """Where reproducers go: the option, else the ini file, else the environment; None if none says."""
    here = pathlib.Path(config.invocation_params.dir)
    option = config.getoption("thunder_fx_repro_dir")
    if option:
        return here / str(option)
    ini = config.getini("thunder_fx_repro_dir")
    if ini:
        return pathlib.Path(config.inipath.parent if config.inipath is not None else config.rootpath, str(ini))
    environment = os.environ.get("THUNDER_FX_REPRO_DIR")
    return here / environment if environment else None


class Reproducers:
    """Saves at each failure, and writes an index of the run; with pytest-xdist workers save, and one process writes."""

    def __init__(self, config: pytest.Config, folder: pathlib.Path) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.folder = pathlib.Path(os.path.abspath(folder))
        self.is_worker = worker is not None
        workers = (worker or {}).get("workercount", 1)
        self.left = -(-config.getoption("thunder_fx_repro_max") // workers)
        self.bytes_left = (config.getoption("thunder_fx_repro_max_size") << 20) // workers
        self.saved: set[str] = set()
        self.first_graph = 0
        self.entries: list[tuple[str, str, str]] = []
        self.trouble: OSError | None = None
        self.silenced: str | None = None
        self._silence_dumps()

    def _silence_dumps(self) -> None:
        """An exception that a test expects is no failure: what the environment asks for is this plugin's business."""
        if "THUNDER_FX_REPRO_DIR" in os.environ:
            import thunder_fx

            self.silenced, thunder_fx.config.repro_dir = thunder_fx.config.repro_dir, None

    def pytest_unconfigure(self) -> None:
        """Where pytest was called from a program, the program goes on."""
        if self.silenced is not None:
            import thunder_fx

            thunder_fx.config.repro_dir = self.silenced

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """While a test runs, what it compiles stays, though it may be dropped: `thunderfx(fn)(x)`."""
        try:
            return (yield)
        finally:
            _keeping.kept = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Where a test, or one more attempt of it, begins."""
        self.first_graph = _next_graph()
        _keeping.kept = []

    # Outermost: what is an expected failure, or a skip, has been found out inside.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # A process that has not imported thunder_fx's compiler has compiled nothing.
        if report.failed and call.excinfo is not None and "thunder_fx.compiler" in sys.modules:
            self._save(item, call.excinfo, report)
        return report

    def _save(self, item: pytest.Item, failure: pytest.ExceptionInfo[BaseException], report: pytest.TestReport) -> None:
        """Nothing that happens here may change the outcome of the test, or hide its error."""
        try:
            from thunder_fx.repro import of_tests

            compilers = of_tests.belonging(item, failure, self.first_graph)
            taken = compilers[: self.left]
            about = f"Left by the test `{item.nodeid}`, which failed in {report.when}: {_first_line(failure)}"
            done = of_tests.save(
                taken, self.folder / self._name(item), about, root=self.folder, bytes_left=self.bytes_left
            )
            paths = done.paths
            new = set(paths) - self.saved
            self.saved |= new
            self.left -= len(new)
            self.bytes_left -= done.bytes
            lines = [*paths, f"to run: thunder-fx verify {self.folder / self._name(item)}"] if paths else []
            lines += [f"{'one could not' if paths else 'none could'} be saved: {trouble}" for trouble in done.troubles]
            for count, option in ((len(compilers) - len(taken), "max"), (done.left_out, "max-size")):
                if count:
                    lines.append(f"{count} more were left out: --thunder-fx-repro-{option} is reached")
        except Exception as trouble:
            paths, lines = [], [f"none could be saved: {type(trouble).__name__}: {trouble}"]
        for path in paths:
            item.user_properties.append((_PROPERTY, path))
            report.user_properties.append((_PROPERTY, path))
        if lines:
            report.sections.append((_SECTION, "\n".join(lines)))

    def _name(self, item: pytest.Item) -> pathlib.Path:
        """A folder for a test and its attempt: safe on any system, unique, and not too long."""
        digest = hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]
        name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', item.nodeid)[-80:].strip('_.')}-{digest}"
        attempt = getattr(item, "execution_count", 1)  # pytest-rerunfailures
        return pathlib.Path(name) / f"attempt{attempt}" if attempt > 1 else pathlib.Path(name)

    # The index, by the process that sees all reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.is_worker and report.outcome != "passed":
            paths = [str(value) for name, value in report.user_properties if name == _PROPERTY]
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(getattr(crash, "message", "")).partition("\n")[0]
            self.entries += [(report.nodeid, why, path) for path in paths]
            # At once: a run that is killed at its time limit has an index, too.
            if paths:
                self._write_index_or_say_why()

    def pytest_sessionfinish(self) -> None:
        if self.trouble is not None:
            warnings.warn(f"thunder_fx: {self.folder / 'index.md'} could not be written: {self.trouble}", stacklevel=1)

    def _write_index_or_say_why(self) -> None:
        try:
            self._write_index()
            self.trouble = None
        except OSError as trouble:  # the run goes on as it would have gone on
            self.trouble = trouble

    def _write_index(self) -> None:
        """This run's, and those that an earlier run left in the folder."""
        whys = {path: (nodeid, why) for nodeid, why, path in reversed(self.entries)}
        lines = {}
        for path, (nodeid, why) in reversed(whys.items()):
            relative = os.path.relpath(path, self.folder).replace(os.sep, "/")
            lines[relative] = f"- `{nodeid}`: [{relative}]({relative}/index.md)" + (f": `{why}`" if why else "")
        index = self.folder / "index.md"
        for line in index.read_text(encoding="utf-8").splitlines() if index.exists() else ():
            found = re.match(r"- `.*`: \[(.*?)\]\(", line)
            if found and (self.folder / found[1]).exists():
                lines.setdefault(found[1], line)
        text = [
            "# Reproducers of failing tests",
            "",
            "`thunder-fx verify` on this folder runs them.",
            "",
            *lines.values(),
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        index.write_text("\n".join(text) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Where --show-capture leaves the sections of reports out, the paths stand by themselves."""
        if self.entries and config.getoption("showcapture", "all") != "all":
            terminalreporter.section(_SECTION)
            for path in dict.fromkeys(path for _, _, path in self.entries):
                terminalreporter.line(path)


def _first_line(failure: pytest.ExceptionInfo[BaseException]) -> str:
    return f"`{failure.exconly().partition(chr(10))[0]}`"


def _next_graph() -> int:
    """The number that the next captured graph gets; 0 where nothing can have been captured."""
    subgraph = sys.modules.get("thunder_fx.subgraph")
    return int(subgraph.next_graph_id()) if subgraph is not None else 0
