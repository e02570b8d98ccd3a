"""The command line: what it prints, and its exit status."""

import json
import subprocess
import sys

import pytest
import torch

from tests.helpers import needs_cxx, sine
from tests.repro import faults
from thunder_fx import cli, save_reproducer, thunderfx

pytestmark = needs_cxx


def saved(folder, fn=sine, *inputs, **options):
    compiled = thunderfx(fn, **options)
    compiled(*inputs or (torch.rand(3),))
    return save_reproducer(compiled, folder)


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert all(len(line) <= 80 for line in captured.out.splitlines() if "/" not in line), captured.out
    return status, captured.out, captured.err


def test_run_a_folder_and_a_script(tmp_path, capsys):
    """Each with its outcome, and the file that is executed said before; 0 if all agree."""
    bundle = saved(tmp_path)
    status, out, _ = run(capsys, "run", tmp_path)
    assert status == 0
    for number, script in enumerate(bundle.scripts, 1):
        assert f"[{number}/2] running {script}" in out
    assert out.count("agrees") == 2
    status, out, _ = run(capsys, "run", bundle.scripts[1], "--compiler", "eager")
    assert (status, out.count("agrees")) == (0, 1)


def test_verify_is_0_only_if_all_do_what_was_recorded(tmp_path, capsys):
    """It stamps index and manifest; a recorded error is to be raised again, and wrong numbers are not recorded."""
    saved(tmp_path / "good")
    status, out, _ = run(capsys, "verify", tmp_path / "good")
    assert (status, "all 2 do what was recorded" in out) == (0, True)
    manifest = json.loads((tmp_path / "good" / "manifest.json").read_text())
    assert {entry["verified"] for entry in manifest["files"]} == {"agrees"}
    compiled, inputs = faults.does_not_compile_in_thunder()
    with pytest.raises(RuntimeError):
        compiled(*inputs)
    save_reproducer(compiled, tmp_path / "failing")
    status, out, _ = run(capsys, "verify", tmp_path / "failing")
    assert (status, out.count("reproduced the error")) == (0, 2)
    compiled, inputs = faults.wrong_in_thunder()
    compiled(*inputs)
    save_reproducer(compiled, tmp_path / "wrong")
    status, out, _ = run(capsys, "verify", tmp_path / "wrong")
    assert (status, "not as recorded: graph0_repro.py" in out) == (1, True)
    assert "it differs from eager, where no error was recorded" in out
    status, out, _ = run(capsys, "run", tmp_path / "wrong")
    assert (status, out.count("differs")) == (1, 2)


def test_all_bundles_below_a_folder(tmp_path, capsys):
    """As failing tests leave them; made-up inputs that do not fail get a hint."""
    saved(tmp_path / "test_one-12345678" / "sine")
    compiled, inputs = faults.fails_in_thunder()
    with pytest.raises(IndexError):
        compiled(*inputs)
    save_reproducer(compiled, tmp_path / "test_two-12345678" / "pick")
    status, out, _ = run(capsys, "verify", tmp_path)
    assert status == 1
    assert "all 2 do what was recorded" in out
    assert "THUNDER_FX_CAPTURE_INPUTS=values" in " ".join(out.split())
    assert run(capsys, "run", tmp_path)[0] == 0


def test_bad_usage_is_one_line_and_2(tmp_path, capsys):
    """What was expected, and what was found; no traceback."""
    foreign, newer, empty = tmp_path / "foreign", tmp_path / "newer", tmp_path / "empty"
    for folder, text in (
        (foreign, "[]"),
        (newer, '{"schema_version": 99, "written_by": "a newer one"}'),
        (empty, None),
    ):
        folder.mkdir()
        if text:
            (folder / "manifest.json").write_text(text)
    script = tmp_path / "mine.py"
    script.write_text("raise SystemExit('executed')")
    for arguments, why in (
        (["run", tmp_path / "missing"], "expected the folder of a reproducer, found nothing"),
        (["verify", script], "expected the folder of a reproducer, found a file"),
        (["verify", foreign], "expected a manifest of thunder_fx, found another"),
        (["run", newer], "expected a manifest of schema 1 at most, found 99"),
        (["verify", empty], "found no manifest.json"),
        (["run", script], "found one that thunder_fx did not write"),
        (["minify", script], "found one that thunder_fx did not write"),
        (["minify", tmp_path / "missing.py"], "which cannot be read"),
    ):
        status, out, err = run(capsys, *arguments)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert why in err
    with pytest.raises(SystemExit) as caught:
        cli.main(["nonsense"])
    assert caught.value.code == 2


def test_env_says_what_bug_reports_need(capsys):
    """Versions, devices, and which adaptations are active."""
    status, out, _ = run(capsys, "env")
    assert status == 0
    assert f"torch {torch.__version__}" in out
    assert "lightning-thunder 0.2.6" in out
    assert "adaptations:" in out
    assert "devices: cpu" in out


def test_both_ways_to_start_it():
    """The module; the script that pip installs has the same function."""
    done = subprocess.run([sys.executable, "-m", "thunder_fx", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("demo", "run", "verify", "minify", "env"))
    import importlib.metadata

    (entry,) = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "thunder-fx"]
    assert entry.load() is cli.main


def test_help_imports_no_torch():
    """So that it answers at once."""
    code = (
        "import sys; from thunder_fx import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


# Minifying


def long(x, y):
    """60 operators, of which one is a sine."""
    for _ in range(14):
        x = (x * 1.01 + y).tanh()
    z = x.sin()
    for _ in range(5):
        z = (z * 0.9 + y).cos()
    return z * 2, x + y


def operators_of(script):
    text = script.read_text()
    body = text[text.index("class Graph(") : text.index("def make_inputs")]
    return [line for line in body.splitlines() if " = " in line and "self" not in line]


def minified(tmp_path, capsys, make, *arguments, fails=None):
    fn, inputs, options = make
    compiled = thunderfx(fn, **options)
    if fails is None:
        compiled(*inputs)
    else:
        with pytest.raises(fails):
            compiled(*inputs)
    bundle = save_reproducer(compiled, tmp_path)
    whole = next(s for s in bundle.scripts if s.name == "graph0_repro.py")
    status, out, err = run(capsys, "minify", whole, "--out", tmp_path / "small_repro.py", *arguments)
    assert status == 0, err
    return out, tmp_path / "small_repro.py"


INPUTS = (torch.rand(4, requires_grad=True), torch.rand(4))


@pytest.mark.slow
def test_a_wrong_operator_among_60_is_found(tmp_path, capsys):
    """At most 3 are left, in a script of the same form, which still differs from eager."""
    out, script = minified(tmp_path, capsys, (long, INPUTS, {"transforms": [faults.SwapSinForCos()]}))
    assert "operators became" in out
    assert 1 <= len(operators_of(script)) <= 3
    assert "sin" in script.read_text()
    status, out, _ = run(capsys, "run", script)
    assert (status, "differs" in out) == (1, True)


def test_a_small_graph_is_shrunk_and_the_text_says_so(tmp_path, capsys):
    """The same with few operators, which takes seconds."""

    def short(x, y):
        return ((x * 2 + y).sin() * y).tanh()

    out, script = minified(tmp_path, capsys, (short, INPUTS, {"transforms": [faults.SwapSinForCos()]}))
    assert "5 operators became 1" in out
    assert "code: return ((x * 2 + y).sin() * y).tanh()" in script.read_text()
    assert "differs: output 0" in out
    assert "tries" in out
    assert run(capsys, "run", script)[0] == 1


@pytest.mark.slow
def test_an_operator_that_kills_its_process_is_found(tmp_path, capsys):
    """A crash is a failing try, and not the end. (The script is changed to it, since it would kill this process.)"""
    compiled = thunderfx(long)
    compiled(*INPUTS)
    script = save_reproducer(compiled, tmp_path).scripts[0]
    text = script.read_text().replace('"""What thunder.jit was called with."""', "return {'transforms': [KillAtSin()]}")
    killer = (
        "with placeholders():\n    from thunder.core.transform_common import Transform\n\n\n"
        "class KillAtSin(Transform):\n"
        "    def transform_traces_pre_prologue(self, prologue, computation, epilogue, **kwargs):\n"
        "        import os\n\n"
        "        if any(bsym.sym.name == 'sin' for bsym in computation.bound_symbols):\n"
        "            os._exit(7)\n"
        "        return prologue, computation, epilogue\n\n\n"
    )
    script.write_text(text.replace("def make_inputs", killer + "def make_inputs", 1))
    status, out, err = run(capsys, "minify", script, "--out", tmp_path / "small_repro.py")
    assert status == 0, err
    assert "dies: exit status 7" in out
    assert 1 <= len(operators_of(tmp_path / "small_repro.py")) <= 3


@pytest.mark.slow
def test_a_failure_that_would_drift_keeps_the_first(tmp_path, capsys):
    """Smaller graphs fail in another way here, and the first way is what is asked for."""
    options = {"transforms": [faults.RaiseAtSinElseAtTanh()]}
    out, script = minified(tmp_path, capsys, (long, INPUTS, options), fails=RuntimeError)
    assert "raises: RuntimeError: there is a sine" in out
    assert any("sin" in line for line in operators_of(script))
    assert len(operators_of(script)) <= 3


def test_an_interrupted_search_leaves_the_smallest_so_far(tmp_path, capsys, monkeypatch):
    """And says that it is not the end, with 1."""
    from thunder_fx.repro import minify

    def short(x, y):
        return ((x * 2 + y).sin() * y).tanh() + x

    compiled = thunderfx(short, transforms=[faults.SwapSinForCos()])
    compiled(*INPUTS)
    script = save_reproducer(compiled, tmp_path).scripts[0]
    run_one, found = minify._Search._fails_like_first, []

    def interrupted(self, path):
        if len(found) == 1:
            raise KeyboardInterrupt
        is_same = run_one(self, path)
        found.extend([path] * (is_same and self.before > self.smallest - 1))
        return is_same

    monkeypatch.setattr(minify._Search, "_fails_like_first", interrupted)
    status, out, _ = run(capsys, "minify", script, "--out", tmp_path / "small_repro.py")
    assert (status, "stopped before the end: 6 operators became" in out) == (1, True)
    assert run(capsys, "run", tmp_path / "small_repro.py")[0] == 1


def test_a_script_without_end_is_stopped(tmp_path, capsys):
    """`run` and `verify` have a time limit for each."""
    bundle = saved(tmp_path)
    for script in bundle.scripts:
        script.write_text(script.read_text().replace("sys.exit(reproducer.main())", "time.sleep(100)"))
    status, out, _ = run(capsys, "run", tmp_path, "--timeout", "6")
    assert (status, out.count("hangs"), out.count("no end in 6 s")) == (1, 2, 2)
    status, out, _ = run(capsys, "verify", tmp_path, "--timeout", "6")
    assert (status, out.count("does not run"), out.count("no end in 6 s")) == (1, 2, 2)


def test_a_graph_that_fails_eager_too_is_shrunk(tmp_path, capsys):
    """What cannot be run eager stays an operator: an index that is too large."""
    compiled = thunderfx(lambda x, i: (x.sin() * 2)[i].cos() + 1)
    with pytest.raises(IndexError):
        compiled(torch.rand(3), torch.tensor([9]))
    save_reproducer(compiled, tmp_path, inputs="real")
    out = tmp_path / "new" / "small_repro.py"
    status, printed, err = run(capsys, "minify", tmp_path / "graph0_repro.py", "--out", out)
    assert status == 0, err
    assert "raises: IndexError: index 9 is out of bounds" in " ".join(printed.split())
    assert 1 <= len(operators_of(out)) <= 3


def test_a_script_that_does_not_fail_is_not_shrunk(tmp_path, capsys):
    """Nor one that fails otherwise than --regex says: one line, and 2."""
    whole = saved(tmp_path / "good").scripts[0]
    status, _, err = run(capsys, "minify", whole)
    assert (status, "does not fail: there is nothing to shrink" in err) == (2, True)
    compiled, inputs = faults.wrong_in_thunder()
    compiled(*inputs)
    whole = save_reproducer(compiled, tmp_path / "wrong").scripts[0]
    status, _, err = run(capsys, "minify", whole, "--regex", "no such text")
    assert (status, "but not as --regex asks for" in err) == (2, True)
