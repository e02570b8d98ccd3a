"""What print(explain(fn)) prints."""

import dataclasses
import io
import os
import subprocess
import sys

import pytest
import torch

from tests.helpers import needs_cxx, splits
from thunder_fx import explain, thunderfx
from thunder_fx.report import text
from thunder_fx.report.explanation import Explanation
from thunder_fx.report.model import Cost, GraphReport, Limit, Operator, Option, RegionReport


def explanation(*, graphs=1, regions=3, operators=4, options=0, errors=0, width=1):
    """Made up: as large as is asked for, with long names."""
    made = [
        GraphReport(
            graph_id=number,
            compile_id=f"{number}/0",
            function="f" * width,
            file="/" + "path/" * width + "file.py",
            line=7,
            previous_break=None,
            graph_break="a reason " * width,
            recompile="a guard " * width,
            inputs=(),
            nodes=operators * regions,
            regions=tuple(
                RegionReport(
                    name=f"thunder_{index}",
                    compiler=("thunder", "inductor", "eager")[index % 3],
                    operators=tuple(Operator(f"n{i}", "sin" * width, "file.py:3, in f") for i in range(operators)),
                    inputs=(),
                    executors={"torch": operators},
                    forward=(),
                    backward=(),
                    prologue=(),
                    seconds={"compile": 0.5},
                    compilations=1,
                    error="RuntimeError: boom " * width if index < errors else None,
                )
                for index in range(regions)
            ),
            splits=(),
            edges=(),
            seconds={"dynamo": 0.25, "compile": 1.0},
        )
        for number in range(graphs)
    ]
    return Explanation(
        callable=" ".join(["a callable"] * width),
        options=tuple(Option(f"option_{i}", "value " * width, "thunder.jit") for i in range(options)),
        graphs=tuple(made),
        costs=tuple(Cost(f"operator_{i}" * width, 1, 2, 3) for i in range(5)),
        limit=Limit(1, 8, 1, 256),
        diagnosis=None,
    )


@pytest.mark.parametrize("columns", ["80", "200", "50"])
def test_it_fits_the_terminal_and_80_columns(columns, monkeypatch):
    """Whatever the names; the summary has 15 lines at most, and printing begins with it."""
    monkeypatch.setenv("COLUMNS", columns)
    for found in (explanation(), explanation(graphs=9, regions=12, options=9, errors=12, width=30)):
        summary, everything = found.summary(), str(found)
        assert len(summary.split("\n")) <= 15
        assert max(map(len, everything.split("\n"))) <= min(80, int(columns))
        assert everything.startswith(summary)
        assert not any(line.endswith(" ") for line in everything.split("\n"))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colours_are_for_terminals(terminal, no_color, coloured, monkeypatch):
    """And not where NO_COLOR is set."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())
    printed = str(explanation())
    assert ("\x1b[32m" in printed or "\x1b[1;32m" in printed) is coloured
    assert "thunder_0" in printed


def test_a_file_gets_no_colours(monkeypatch):
    """`plain` is for one."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert "\x1b" not in f"{explanation():plain}"
    assert f"{explanation()}" == str(explanation())
    with pytest.raises(ValueError, match="found 'bold'"):
        format(explanation(), "bold")


def test_in_a_notebook_it_is_text_too(monkeypatch):
    """rich would hand it to the notebook, and give nothing back."""
    import builtins

    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell(), raising=False)
    assert "fix first" in str(explanation())


def test_a_terminal_that_knows_few_characters():
    """What it cannot show is shown by what it can."""
    code = "from tests.report.test_text import explanation; print(explanation(regions=9, width=30))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "thunder_0" in done.stdout


def test_what_is_the_users_has_no_controls():
    """No colours, bells or lines of its own."""
    option = Option("name", "a\nb\x1b[31mred\x07", "thunder.jit")
    made = dataclasses.replace(explanation(errors=1), options=(option,))
    graph = dataclasses.replace(made.graphs[0], graph_break="\x1b[2Jgone")
    made = dataclasses.replace(made, graphs=(graph,))
    assert "name=a bred -> thunder.jit" in made.summary()
    assert not set("\x1b\x07") & set(str(made))


def test_rich_prints_it_too():
    """In a program that uses rich."""
    import rich.console

    console = rich.console.Console(file=io.StringIO(), width=100)
    console.print(explanation())
    assert "fix first" in console.file.getvalue()


@needs_cxx
def test_the_tree():
    """Graphs, regions with who runs their operators, and what thunder does not run with the reason."""
    compiled = thunderfx(splits)
    compiled(torch.rand(4, requires_grad=True))
    printed = str(explain(compiled))
    for part in (
        "splits: 1 graph, 3 regions",
        "operators  4, of which thunder runs 75%",
        "thunder_0: 1 operator, run by thunder (torch",
        "inductor_1: 1 operator, run by inductor",
        "sinc is not run by thunder (MISSING_OP_SUPPORT)",
        "inputs: L_x_: float32[4], requires grad",
        "operators: cos, add",
        "Dead Code Elimination",
    ):
        assert part in printed, printed


def test_nothing_is_printed_of_markup():
    """Square brackets in a name are no style of rich's."""
    option = Option("name", "[red]value[/red]", "thunder.jit")
    found = text.rendered(text.summary(dataclasses.replace(explanation(), options=(option,))))
    assert "name=[red]value[/red]" in found
    made = explanation()
    graph = made.graphs[0]
    shown = text.rendered(text._graph(type(graph)(**{**vars(graph), "graph_break": "[bold]not a style[/bold]"})))
    assert "[bold]not a style[/bold]" in shown


def test_importing_thunder_fx_imports_no_rich():
    """Only who prints pays for it."""
    code = "import sys, thunder_fx; thunder_fx.thunderfx; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stdout.strip() == "False"
