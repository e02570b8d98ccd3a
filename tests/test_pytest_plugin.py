"""A failing test leaves reproducers, and its report says where."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest

pytest_plugins = ["pytester"]

SAMPLE = pathlib.Path(__file__).with_name("sample_suite.py")


def run(pytester, *arguments, text=None, env=None, ini=""):
    pytester.makepyfile(test_sample=text or SAMPLE.read_text())
    pytester.makeini(f"[pytest]\n{ini}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-p",
        "no:randomly",
        *arguments,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("THUNDER_FX")}
    environment |= {"PYTHONPATH": str(pytester.path), "PYTHONIOENCODING": "utf-8", **(env or {})}
    return subprocess.run(
        command, cwd=pytester.path, capture_output=True, text=True, env=environment, timeout=300, encoding="utf-8"
    )


def bundles(folder):
    """The manifests below a folder, by the folder of the test and of the callable."""
    return {
        tuple(path.parent.relative_to(folder).parts): json.loads(path.read_text())
        for path in sorted(pathlib.Path(folder).rglob("manifest.json"))
    }


def left_in(folder):
    return {(parts[0].rpartition("-")[0], *parts[1:]) for parts in bundles(folder)}


EXPECTED = {
    ("test_sample.py_test_fails_the_third_time", "cosine"),
    ("test_sample.py_test_compiles_and_fails", "sine"),
    ("test_sample.py_test_with_parameters_2", "sine"),
    ("test_sample.py_test_with_parameters_3", "sine"),
    ("test_sample.py_test_whose_setup_fails", "sine"),
    ("test_sample.py_test_whose_teardown_fails", "sine"),
    ("test_sample.py_TestOfUnittest_test_fails", "cosine"),
    ("test_sample.py_test_names_a_global", "cosine"),
    ("han_eighty_characters_which_no_file_system_should_have_to_take_as_it_is", "sine"),
}


def assert_expected(folder):
    found = left_in(folder)
    names = {name for name, *_ in found}
    assert len(found) == len(EXPECTED), found
    for name, callable_name in EXPECTED:
        (match,) = [each for each in found if each[0].endswith(name)]
        assert match[1] == callable_name, found
    assert all(len(name) <= 100 and re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in names)


def test_each_failure_leaves_what_belongs_to_it(pytester):
    """In setup, call or teardown; by fixture, global, parameter, unittest class; nothing where none is to be."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "--junitxml=junit.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    folder = pytester.path / "left"
    assert_expected(folder)
    # The paths are under the failures, in the junit file, and in an index.
    paths = {str(folder.joinpath(*parts)) for parts in bundles(folder)}
    shown = set(re.findall(rf"^{re.escape(str(folder))}\S+$", done.stdout, re.MULTILINE))
    assert shown == paths
    assert done.stdout.count("thunder_fx reproducers") == len(EXPECTED)
    properties = xml.etree.ElementTree.parse(pytester.path / "junit.xml").iter("property")
    assert {each.get("value") for each in properties if each.get("name") == "thunder_fx_reproducer"} == paths
    index = (folder / "index.md").read_text()
    assert all(f"({os.path.relpath(path, folder)}/index.md)" in index for path in paths)
    # The graph that a module's fixture compiled belongs to the third test, and both sizes to the second function.
    by_test = {parts[0]: manifest for parts, manifest in bundles(folder).items()}
    (third,) = [m for name, m in by_test.items() if "third_time" in name]
    assert (len(third["graphs"]), third["callable"]) == (1, "cosine")
    (two_sizes,) = [m for name, m in by_test.items() if "compiles_and_fails" in name]
    assert len(two_sizes["graphs"]) == 2
    assert two_sizes["about"].startswith(
        "Left by the test `test_sample.py::test_compiles_and_fails`, which failed in call"
    )
    # A script of it runs.
    script = next(folder.rglob("graph0_repro.py"))
    assert subprocess.run([sys.executable, str(script)], capture_output=True, timeout=300).returncode == 0


def test_workers_of_xdist_share_one_index(pytester):
    """Each saves its own, and one process writes."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "-n2")
    assert done.returncode == 1, done.stdout + done.stderr
    folder = pytester.path / "left"
    assert_expected(folder)
    assert (folder / "index.md").read_text().count("\n- ") == len(EXPECTED)
    assert done.stdout.count("thunder_fx reproducers") == len(EXPECTED)


ONE = """
import torch, thunder_fx

def sine(x):
    return x.sin() + 1

def test_one():
    thunder_fx.thunderfx(sine)(torch.ones(3))
    assert 0
"""


def test_every_attempt_of_a_rerun_is_kept(pytester):
    """By pytest-rerunfailures: the first in the test's folder, the next beside."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "--reruns=2", text=ONE)
    assert "2 rerun" in done.stdout
    found = left_in(pytester.path / "left")
    assert {parts[1:] for parts in found} == {("sine",), ("attempt2", "sine"), ("attempt3", "sine")}
    assert (pytester.path / "left" / "index.md").read_text().count("\n- ") == 3


def test_attempts_of_reruns_on_workers_of_xdist(pytester):
    """Both plugins at once: the paths of all attempts reach the report and the index."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "--reruns=1", "-n2", "-rR", text=ONE)
    assert "1 failed" in done.stdout
    assert "1 rerun" in done.stdout
    folder = pytester.path / "left"
    assert {parts[1:] for parts in left_in(folder)} == {("sine",), ("attempt2", "sine")}
    assert (folder / "index.md").read_text().count("\n- ") == 2
    assert str(folder) in done.stdout


BOTH = """
import pytest, torch, thunder_fx

def sine(x):
    return x.sin() + 1

@pytest.fixture
def compiled():
    yield thunder_fx.thunderfx(sine)
    raise RuntimeError("in teardown")

def test_both(compiled):
    compiled(torch.ones(3))
    assert 0
"""


def test_a_test_that_fails_in_call_and_teardown(pytester):
    """One bundle, whose path stands under both failures, and once in the index."""
    done = run(pytester, "--thunder-fx-repro-dir=left", text=BOTH)
    assert "1 failed, 1 error" in done.stdout
    folder = pytester.path / "left"
    ((test, name),) = bundles(folder)
    assert re.findall(rf"^{re.escape(str(folder / test / name))}$", done.stdout, re.MULTILINE).__len__() == 2
    assert (folder / "index.md").read_text().count("\n- ") == 1


REACHED = """
import pytest, torch, thunder_fx

def compiled(fn):
    made = thunder_fx.thunderfx(fn)
    made(torch.ones(3))
    return made

def on_three(x): return x.sin() + 1
def on_four(x): return x.cos() + 1
def in_closure(x): return x.tan() + 1
def by_name(x): return x.exp() + 1
def in_lambda(x): return x.exp() - 1

class Holder:
    def __init__(self, held):
        self.held = held

@pytest.fixture(scope="module")
def fixture():
    return [Holder({"three": compiled(on_three), "four": [compiled(on_four)]})]

def outer():
    hidden = compiled(in_closure)
    def test(fixture):
        assert hidden is None
    return test

named, also_named = compiled(by_name), compiled(in_lambda)

class Other:
    named = None

@pytest.fixture(scope="module")
def model():
    child = thunder_fx.thunderfx(torch.nn.Linear(3, 3))
    child(torch.ones(2, 3))
    return torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(child))))

def test_warms_up(fixture, model):
    pass

def test_children(model):
    assert model is None

test_closure = outer()

def test_attribute_of_that_name():
    assert Other.named is not None

def test_lambda():
    assert (lambda: also_named)() is None
"""


def test_what_a_test_reaches(pytester):
    """Fixtures to a depth of three, and all children of Modules; closures; globals, no attributes of their names."""
    run(pytester, "--thunder-fx-repro-dir=left", text=REACHED)
    assert left_in(pytester.path / "left") == {
        ("test_sample.py_test_children", "Linear_Module"),
        ("test_sample.py_test_closure", "on_three"),
        ("test_sample.py_test_closure", "in_closure"),
        ("test_sample.py_test_lambda", "in_lambda"),
    }


RAISED_FROM = """
import torch, thunder_fx

def pick(x, i):
    return x[i] * 2

def hidden():
    fails = thunder_fx.thunderfx(pick)
    fails(torch.ones(3), torch.tensor([1]))
    def call():
        try:
            fails(torch.ones(3), torch.tensor([9]))
        except IndexError as error:
            raise ValueError("bad input") from error
    return [call]

holder = iter(hidden())

def test_raised_from():
    next(globals()["holder"])()

def double(x):
    return x.sin() * 2

def test_backward():
    from tests.repro import faults
    compiled, inputs = faults.fails_in_backward_of_thunder()
    compiled(*inputs).sum().backward()
"""


def test_failures_that_others_were_raised_from(pytester):
    """The compiled callable is on the first one's traceback; and a backward's failure is in the bundle."""
    root = str(pathlib.Path(__file__).parents[1])
    done = run(pytester, "--thunder-fx-repro-dir=left", "-rA", text=RAISED_FROM, env={"PYTHONPATH": root})
    found = {parts[0].rpartition("-")[0]: manifest for parts, manifest in bundles(pytester.path / "left").items()}
    assert set(found) == {"test_sample.py_test_raised_from", "test_sample.py_test_backward"}, done.stdout
    (graph,) = found["test_sample.py_test_backward"]["graphs"]
    assert [region["error"] for region in graph["regions"]] == ["RuntimeError: boom in backward"]


KILLED = (
    ONE
    + """
def test_killed():
    import os
    os._exit(9)
"""
)


def test_a_run_that_is_killed_has_an_index(pytester):
    """As one is that reaches its time limit."""
    assert run(pytester, "--thunder-fx-repro-dir=left", text=KILLED).returncode == 9
    assert (pytester.path / "left" / "index.md").read_text().count("\n- ") == 1


def test_a_limit_is_a_number(pytester):
    """Anything else is bad usage."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "--thunder-fx-repro-max=-1", text=ONE)
    assert done.returncode == 4
    assert "takes a number, 0 or more; found '-1'" in done.stderr


def test_the_environments_folder_is_given_back(pytester):
    """To a program that calls pytest: outside of a test, the environment's word holds."""
    code = (
        "import pytest, thunder_fx\nbefore = thunder_fx.config.repro_dir\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', 'test_sample.py'])\n"
        "assert before == thunder_fx.config.repro_dir and before.endswith('by_environment')\n"
    )
    pytester.makepyfile(
        test_sample="def test_it():\n    import thunder_fx\n    assert not thunder_fx.config.repro_dir\n"
    )
    env = {**os.environ, "THUNDER_FX_REPRO_DIR": "by_environment"}
    done = subprocess.run([sys.executable, "-c", code], cwd=pytester.path, env=env, capture_output=True, text=True)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "ini", "environment", "where"),
    [
        ("by_option", "by_ini", "by_environment", "by_option"),
        (None, "by_ini", "by_environment", "by_ini"),
        (None, None, "by_environment", "by_environment"),
        (None, None, None, None),
    ],
)
def test_order_of_precedence(pytester, option, ini, environment, where):
    """The option, the ini file, the environment; off where none says."""
    arguments = [f"--thunder-fx-repro-dir={option}"] if option else []
    env = {"THUNDER_FX_REPRO_DIR": environment} if environment else {}
    done = run(pytester, *arguments, text=ONE, env=env, ini=f"thunder_fx_repro_dir = {ini}\n" if ini else "")
    assert done.returncode == 1
    made = {path.name for path in pytester.path.iterdir() if path.name.startswith("by_")}
    assert made == ({where} if where else set())
    assert ("thunder_fx reproducers" in done.stdout) is bool(where)


def test_trouble_in_saving_is_one_line_and_hides_nothing(pytester):
    """The test fails as it would have failed."""
    (pytester.path / "left").write_text("a file")
    done = run(pytester, "--thunder-fx-repro-dir=left", text=ONE)
    assert "1 failed" in done.stdout
    assert "E       assert 0" in done.stdout
    assert "none could be saved: ReproducerError: " in done.stdout
    assert (pytester.path / "left").read_text() == "a file"


THREE = """
import torch, thunder_fx

def sine(x):
    return x.sin() + 1

def test_three():
    for size in (2, 3, 4):
        globals()[f"kept_{size}"] = compiled = thunder_fx.thunderfx(sine)
        compiled(torch.ones(size))
    assert 0
"""


def test_number_and_size_are_capped_and_it_says_so(pytester):
    """Those left out are counted under the failure."""
    done = run(pytester, "--thunder-fx-repro-dir=left", "--thunder-fx-repro-max=2", text=THREE)
    assert {parts[1] for parts in left_in(pytester.path / "left")} == {"sine", "sine_2"}
    assert "1 more were left out: --thunder-fx-repro-max is reached" in done.stdout
    done = run(pytester, "--thunder-fx-repro-dir=none", "--thunder-fx-repro-max-size=0", text=THREE)
    assert "3 more were left out: --thunder-fx-repro-max-size is reached" in done.stdout
    assert list((pytester.path / "none").iterdir()) == []


GROWS = """
import pytest, torch, thunder_fx

@pytest.fixture
def compiled():
    made = thunder_fx.thunderfx(lambda x: x + torch.ones(x.shape[0], 200_000)[0] * torch.tensor(range(200_000)))
    yield made

@pytest.fixture
def more(compiled):
    yield
    compiled(torch.ones(2, 200_000))
    raise RuntimeError("in teardown")

def test_grows(compiled, more):
    compiled(torch.ones(1, 200_000))
    assert 0
"""


def test_what_was_saved_stays_when_a_limit_is_reached(pytester):
    """The same test's second failure brings its bundle up to date; and no folder of the user's is taken away."""
    folder = pytester.path / "artifacts" / "left"
    done = run(pytester, f"--thunder-fx-repro-dir={folder}", "--thunder-fx-repro-max-size=4", text=GROWS)
    assert "1 failed, 1 error" in done.stdout
    assert len(bundles(folder)) == 1, done.stdout
    none = pytester.path / "mine" / "none"
    run(pytester, f"--thunder-fx-repro-dir={none}", "--thunder-fx-repro-max-size=0", text=ONE)
    assert none.parent.exists()


EARLIER = """
import torch, thunder_fx

def sine(x):
    return x.sin() + 1

def test_first():
    kept = thunder_fx.thunderfx(sine)
    kept(torch.ones(3))
    assert 0

def test_second():
    assert 1 == 2
"""


def test_locals_of_an_earlier_failure_do_not_count(pytester):
    """They live on in pytest's report of it."""
    run(pytester, "--thunder-fx-repro-dir=left", text=EARLIER)
    assert {parts[0] for parts in left_in(pytester.path / "left")} == {"test_sample.py_test_first"}


PLAIN = "\n".join(f"def test_{n}():\n    assert sum(range({n})) >= 0\n" for n in range(400))


def test_a_run_that_uses_neither_imports_neither(pytester):
    """Loading the plugin, switched on, brings neither torch nor thunder."""
    text = (
        "import sys\n\ndef test_it():\n    assert not {'torch', 'thunder', 'thunder_fx.compiler'} & set(sys.modules)\n"
    )
    done = run(pytester, "--thunder-fx-repro-dir=left", "-p", "no:benchmark", text=text)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_run_that_uses_neither_is_not_slower(pytester):
    """By no more than 5 percent; each way alternating, and the least of several runs, which noise only lengthens."""
    seconds = {"on": [], "off": []}
    for _ in range(8):
        for how, arguments in (("on", ["--thunder-fx-repro-dir=left"]), ("off", ["-p", "no:thunder_fx"])):
            start = time.perf_counter()
            assert run(pytester, *arguments, text=PLAIN).returncode == 0
            seconds[how].append(time.perf_counter() - start)
    assert min(seconds["on"]) <= 1.05 * min(seconds["off"]), seconds
