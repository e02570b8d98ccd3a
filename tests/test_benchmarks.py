"""The benchmarks: what they say where a measurement fails, is wrong, or misses its target; none asserts a time."""

import dataclasses
import functools
import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def of_benchmarks(monkeypatch):
    """Imports one of its modules, which are no package: they run as scripts, beside each other."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("run", "suite", "measure", "contestants", "models"):
        sys.modules.pop(name, None)


def run(*arguments):
    command = [sys.executable, str(FOLDER / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_some_are_measured_and_leave_the_results_of_all_alone(tmp_path):
    """A table of 80 columns at most; what was asked for twice is measured once, and written where --json says."""
    before = {path.name: path.read_bytes() for path in FOLDER.glob("*.json")}
    done = run("--quick", "--only", "imports", "--only", "imports", "--json", tmp_path / "some.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("import thunder_fx, to import") == 1
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert {path.name: path.read_bytes() for path in FOLDER.glob("*.json")} == before
    written = json.loads((tmp_path / "some.json").read_text())
    (row,) = written["rows"]
    assert 0 < row["value"] < 1
    least, most = map(float, row["spread"].split(" to "))
    assert least <= row["value"] <= most
    assert written["versions"]["torch"] == torch.__version__
    assert written["dirty"] in (True, False, None)


@pytest.mark.skipif(not pathlib.Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_a_file_that_cannot_be_written_is_refused_first(tmp_path):
    """Not after half an hour."""
    done = run("--json", tmp_path / "missing" / "results.json")
    assert done.returncode == 2
    assert "expected a file, in a folder that is there" in done.stderr
    done = run("--json", "/proc/results.json")
    assert done.returncode == 2
    assert "/proc/results.json: cannot be written" in done.stderr


def test_a_failed_measurement_is_no_met_target(of_benchmarks):
    """Whatever the others say: the value is theirs, the row says what failed, and its target is not met."""
    suite = of_benchmarks("suite")
    ours = [{"seconds": 1.0}, {"failed": "first_call: ValueError: no"}, {"seconds": 3.0}]
    row = suite.compared("what", ours, [{"seconds": 10.0}] * 3, "seconds", limit=0.5)
    assert (row.value, row.spread) == (0.2, "0.1 to 0.3")
    assert row.failed == "first_call: ValueError: no"
    assert row.is_met is False
    assert of_benchmarks("run").verdict(row) == "<= 0.5 FAILED"


def test_a_target_is_met_up_to_its_limit(of_benchmarks):
    """At the limit it is met, above it is not, and without a limit or a value there is nothing to be met, or all."""
    suite, verdict = of_benchmarks("suite"), of_benchmarks("run").verdict
    assert [suite.Row("what", value, 1.0).is_met for value in (0.9, 1.0, 1.1, None)] == [True, True, False, False]
    assert suite.Row("what", 2.0).is_met is None
    said = [verdict(suite.Row("what", value, limit)) for value, limit in ((0.9, 1.0), (1.1, 1.0), (1.0, None))]
    assert said == ["<= 1", "<= 1 NOT MET", ""]


def test_one_value_has_no_spread(of_benchmarks):
    """Only what was repeated has one; of what was not the table says so."""
    assert of_benchmarks("suite").spread([1.0]) == "one run"
    assert of_benchmarks("suite").spread([1.0, 0.5, 2.0]) == "0.5 to 2"


def test_what_a_measurement_died_of_is_said(of_benchmarks, monkeypatch):
    """The error's own line, though more of its text follows; and that it took too long."""
    suite = of_benchmarks("suite")
    why = "lookup function many: ValueError: invalid literal for int() with base 10: 'many'"
    assert suite.measured("lookup", "function", "many") == {"failed": why}
    monkeypatch.setattr(suite, "TIME_LIMIT", 0.01)
    assert suite.measured("imports", "torch") == {"failed": "imports torch: no result after 0.01 s"}


def test_a_look_up_is_constant_where_it_grows_no_more_than_a_bare_one(of_benchmarks, monkeypatch):
    """A slow moment of the machine slows both; a look-up that goes over all entries does not."""
    suite = of_benchmarks("suite")

    def on_a_slow_machine(what, kind, count):
        slower = 2.0 if count == 100_000 else 1.0
        return {"thunder_fx": [0.2 * slower] * 3, "bare": [0.1 * slower] * 3}

    def over_all(what, kind, count):
        return {"thunder_fx": [0.1 + count / 1e5], "bare": [0.1]} if count != 1 else {"failed": "killed"}

    monkeypatch.setattr(suite, "measured", on_a_slow_machine)
    row = list(suite.lookups(quick=True))[-1]
    assert (row.value, row.is_met) == (1.0, True)
    monkeypatch.setattr(suite, "measured", over_all)
    row = list(suite.lookups(quick=True))[-1]
    assert row.value == pytest.approx((1.1 / 0.1) / (0.11 / 0.1))
    assert (row.failed, row.is_met) == ("killed", False)


def test_growth_needs_both_ends(of_benchmarks):
    """Ours grows by 0.4 s a layer, where Dynamo alone takes 0.1 s: four times; without an end it failed."""
    suite = of_benchmarks("suite")
    found = {
        2: {"thunder_fx": [{"seconds": 2.0}], "dynamo alone": [{"seconds": 1.0}]},
        12: {"thunder_fx": [{"seconds": 6.0}], "dynamo alone": [{"seconds": 2.0}]},
    }
    row = suite.growth(found)
    assert row.value == pytest.approx(4.0)
    assert "thunder_fx 0.400 s, dynamo alone 0.100 s" in row.note
    found[2]["thunder_fx"] = [{"failed": "no"}]
    row = suite.growth(found)
    assert (row.value, row.failed, row.is_met) == (None, "no", False)


def test_growth_is_not_met_where_one_of_several_failed(of_benchmarks):
    """Those that did not may be the quick ones: the value is theirs, and the row says what failed."""
    suite = of_benchmarks("suite")
    found = {
        2: {"thunder_fx": [{"seconds": 1.0}] * 2, "dynamo alone": [{"seconds": 1.0}] * 2},
        12: {"thunder_fx": [{"seconds": 1.5}, {"failed": "killed"}], "dynamo alone": [{"seconds": 2.0}] * 2},
    }
    row = suite.growth(found)
    assert row.value == pytest.approx(0.5)
    assert (row.failed, row.is_met) == ("killed", False)


def test_contestants_take_turns_and_change_their_order(of_benchmarks, monkeypatch):
    """Else one would always find what the other has left in the caches."""
    suite, order = of_benchmarks("suite"), []
    monkeypatch.setattr(suite, "measured", lambda what, name: order.append(name) or {"name": name})
    found = suite.in_turns(2, "step", ["a", "b"])
    assert order == ["a", "b", "b", "a"]
    assert found == {name: [{"name": name}] * 2 for name in ("a", "b")}
    measure = of_benchmarks("measure")
    order.clear()
    calls = {name: functools.partial(order.append, name) for name in ("a", "b")}
    rounds = measure._in_rounds(calls, rounds=2, count=2, warm_up=0)
    assert order == ["a", "a", "b", "b", "b", "b", "a", "a"]
    assert {name: len(times) for name, times in rounds.items()} == {"a": 2, "b": 2}


def test_wrong_gradients_of_what_is_timed_are_found(of_benchmarks):
    """What is timed with a gradient is compared with it: d(2x)/dx is 2, and something detached has none."""
    measure = of_benchmarks("measure")
    x = torch.ones(2, requires_grad=True)
    eager = measure._outcome(lambda x: x * 2, x)
    assert [each.tolist() for each in eager] == [[2.0, 2.0], [2.0, 2.0]]
    for wrong in (lambda x: x.detach() * 2, lambda x: x.detach() + x):
        with pytest.raises(AssertionError, match="thunder_fx is not eager"):
            measure._must_agree("thunder_fx", measure._outcome(wrong, x), eager)


def test_wrong_numbers_are_not_timed(of_benchmarks):
    """A contestant that computes something else than eager is no contestant."""
    measure = of_benchmarks("measure")
    measure._must_agree("thunder_fx", [torch.ones(2)], [torch.ones(2)])
    with pytest.raises(AssertionError, match="thunder_fx is not eager"):
        measure._must_agree("thunder_fx", [torch.ones(2)], [torch.full((2,), 1.1)])


def test_what_compiled_nothing_is_not_timed(of_benchmarks):
    """Eager that goes by the name of a compiler is none; what was compiled says how much of it."""
    import thunder_fx

    contestants = of_benchmarks("contestants")
    before = contestants.graphs_so_far()
    with pytest.raises(RuntimeError, match="dynamo alone compiled nothing"):
        contestants.parts("dynamo alone", torch.sin, before)
    compiled = thunder_fx.thunderfx(lambda x: x.sin() + 1)
    compiled(torch.ones(2))
    assert contestants.parts("thunder_fx", compiled, before) == {"graphs": 1, "regions": 1}
    assert contestants.parts("eager", torch.sin, before) == {}


def test_what_thunder_did_not_compile_is_not_timed_as_its(of_benchmarks):
    """Inductor's region is none of thunder's, whatever it is called by."""
    import thunder_fx

    contestants = of_benchmarks("contestants")
    before = contestants.graphs_so_far()
    all_of_it = thunder_fx.thunderfx(torch.special.bessel_j0)
    all_of_it(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"1 regions, and thunder is not to run \['inductor_0'\]"):
        contestants.parts("thunder_fx", all_of_it, before)
    some = thunder_fx.thunderfx(lambda x: torch.special.bessel_j0(x.sin() + 1))
    some(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"2 regions, and thunder is not to run \['inductor_1'\]"):
        contestants.parts("thunder_fx", some, before)
    assert contestants.parts("thunder_fx", some, before, given_away=1) == {"graphs": 1, "regions": 2}
    assert contestants.parts("thunder_fx", all_of_it, before, given_away=None) == {"graphs": 1, "regions": 1}


def test_the_committed_results_are_what_the_benchmarks_write(of_benchmarks):
    """With the fields that a row has now, of code that was committed."""
    fields = {field.name for field in dataclasses.fields(of_benchmarks("suite").Row)} | {"is_met"}
    for path in FOLDER.glob("results*.json"):
        written = json.loads(path.read_text())
        assert written["commit"], path
        assert written["dirty"] is False, path
        assert all(set(row) == fields for row in written["rows"]), path


def test_each_contestant_runs_what_it_is_given_as_its_own(of_benchmarks):
    """A function and a Module's forward get code objects of their own, and compute what they did."""
    measure, models = of_benchmarks("measure"), of_benchmarks("models")
    for kind in ("tiny function", "MLP"):
        fn, x = models.steady(kind)
        expected = fn(x)
        own = measure._own(fn, "dynamo alone")
        torch.testing.assert_close(own(x), expected)
        codes = [getattr(each, "forward", each).__code__ for each in (models.steady(kind)[0], own)]
        assert codes[0] is not codes[1]


def test_the_profile_in_the_readme_runs():
    """The command that shows where a first call's seconds go."""
    (command,) = re.findall(r"^```sh\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    program = re.fullmatch(r'\.venv/bin/python -c "(.*)"\n', command, re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "transform_for_execution" in done.stdout
