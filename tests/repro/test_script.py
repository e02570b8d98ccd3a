"""What scripts keep of what was compiled: each agrees with eager, and has the inputs, modes and options of then."""

import functools
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from thunder.core.transform_common import Transform
from torch import tensor
from torch.fx import Graph
from torch.utils.checkpoint import checkpoint

import thunder_fx
from tests.helpers import Block, needs_cxx, sine, splits
from tests.repro.running import assert_agree, loaded, run, run_here
from thunder_fx import save_reproducer, thunderfx

pytestmark = needs_cxx

BASE = torch.arange(12.0)
LINEAR = Block(4)
CONSTANT = torch.tensor([float("inf"), float("nan"), 1.0])


HALF = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.LayerNorm(64)).bfloat16()


class Double(torch.autograd.Function):
    """Two results, and a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x.sin()

    @staticmethod
    def backward(ctx, of_twice, of_sine):
        (x,) = ctx.saved_tensors
        return of_twice * 3 + of_sine * x.cos()


def scaled(x):
    return x * 3


torch._dynamo.allow_in_graph(scaled)


def under_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
    return y.float() + 1


def without_gradients_inside(x):
    with torch.no_grad():
        mask = torch.sinc(x) > 0
    return x * mask


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def halves():
    """Two tensors that another operator made, and that share memory."""
    base = leaf(4) * 1
    return base[:2], base[2:]


CASES = {
    "split": (splits, lambda: [leaf(4)]),
    "integers and a shape": (lambda x: (x.sum(0), x.shape[0]), lambda: [torch.arange(6).reshape(2, 3)]),
    "a number": (lambda x, n: x * n, lambda: [leaf(3), 2.5]),
    "writes, beside another name": (lambda a, b: (a.mul_(2), a + b), lambda: [BASE[:4].clone(), BASE[6:10]]),
    "three names of one memory": (lambda a, b, c: a + b.sum() + c.sum(), lambda: [BASE[:4], BASE[1:3], BASE[::4]]),
    "no leaves": (lambda a, b: a.sin() * b, halves),
    "writes to no leaf": (lambda x: x.mul_(2).sin(), lambda: [leaf(3) * 1]),
    "autograd.Function": (lambda x: sum(Double.apply(x)), lambda: [leaf(3)]),
    "checkpoint": (lambda x: checkpoint(LINEAR, x, use_reentrant=False).sin(), lambda: [leaf(2, 4)]),
    "checkpoint by Inductor": (lambda x: checkpoint(torch.sinc, x, use_reentrant=False).sin(), lambda: [leaf(4)]),
    "both branches": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), lambda: [torch.ones(3)]),
    "a function of the user's in the graph": (lambda x: scaled(x).sin(), lambda: [leaf(3)]),
    "einops": (lambda x: __import__("einops").rearrange(x, "a b -> b a") + 1, lambda: [leaf(2, 3)]),
    "a negative base": (lambda x: (-2) ** x, lambda: [torch.tensor([1, 2])]),
    "an item set": (lambda x: (torch.zeros(4).index_put((x,), torch.ones(())), x), lambda: [torch.tensor([1, 3])]),
    "a tensor of the program's": (lambda x: x + CONSTANT, lambda: [torch.ones(3)]),
    "constants": (lambda x: x + torch.tensor([1.0, float("-inf"), 2.0]), lambda: [leaf(3)]),
    "vmap": (lambda x: torch.vmap(lambda y: y.sin() + 1)(x), lambda: [leaf(3, 2)]),
    "autocast inside": (under_autocast, lambda: [torch.randn(3, 3)]),
    "no_grad inside": (without_gradients_inside, lambda: [leaf(3)]),
    "a comparison and an index": (lambda x: x[x.argmax()] * (x > 0), lambda: [leaf(3)]),
    "dropout": (lambda x: F.dropout(x, 0.5) + 1, lambda: [leaf(64)]),
    "random numbers": (lambda x: torch.rand(4) + x, lambda: [leaf(4)]),
    "a loss": (lambda x, y: F.cross_entropy(x, y), lambda: [leaf(4, 7), torch.tensor([1, 6, 0, 2])]),
    "an embedding of sums": (lambda w, i: F.embedding(i + 3, w), lambda: [leaf(5, 2), torch.tensor([1, 0])]),
    "probabilities": (lambda x, y: F.binary_cross_entropy(x, y), lambda: [torch.rand(4), torch.rand(4)]),
    "batch norm": (torch.nn.BatchNorm1d(4), lambda: [leaf(3, 4)]),
    "complex, conjugated": (lambda x: x * x, lambda: [torch.tensor([1 + 2j, 3 - 1j]).conj()]),
    "negated, in memory": (lambda x: x * 2, lambda: [torch.tensor([1 + 2j, 3 - 1j]).conj().imag]),
    "no elements": (lambda x, y: x.sum() + y, lambda: [torch.empty(0, 3), torch.tensor(2.0)]),
    "expanded": (lambda x: x * 2, lambda: [torch.ones(1, 3).expand(4, 3)]),
    "another dtype in the same memory": (lambda a, b: a.sum() + b.sum(), lambda: [BASE, BASE.view(torch.int32)]),
    "8 bits": (lambda x: x.float() * 2, lambda: [torch.randn(4).to(torch.float8_e4m3fn)]),
    "half precision": (lambda x: x.exp() + 1, lambda: [leaf(4).detach().bfloat16().requires_grad_()]),
    "dropout in a checkpoint": (
        lambda x: checkpoint(lambda y: F.dropout(y, 0.5).sin(), x, use_reentrant=False),
        lambda: [leaf(64)],
    ),
    "dropout in half precision": (HALF, lambda: [torch.randn(8, 64).bfloat16()]),
    "numpy": (lambda x: np.sin(x).astype(np.float32) * np.float32(2.5), lambda: [np.ones((2, 3))]),
    "bags": (torch.nn.EmbeddingBag(10, 3), lambda: [torch.tensor([1, 9, 3, 4]), torch.tensor([0, 3])]),
    "floats that become an index": (lambda t, x: t[(x * 255).long()], lambda: [torch.rand(256), torch.rand(5)]),
    "a definite matrix": (lambda x: torch.sinc(torch.linalg.cholesky(x)), lambda: [torch.eye(3) * 2]),
    "a graph break": (lambda x: (torch._dynamo.graph_break(), x.sin())[1] + x.cos(), lambda: [leaf(3)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inputs", ["synthetic", "real"])
def test_scripts_agree_with_eager(name, inputs, tmp_path):
    """Of the whole graph and of each region, with made-up and with recorded inputs."""
    fn, make = CASES[name]
    compiled = thunderfx(fn)
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled(*make())
    assert_agree(save_reproducer(compiled, tmp_path, inputs=inputs))


def test_a_graph_that_ran_eager_since_inputs_overlap_does_so_in_its_script(tmp_path):
    """Compiled code would be wrong for them, as the compiler knew; its regions never ran."""
    compiled = thunderfx(lambda a, b: torch.sinc(a.mul_(2)) + b)
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled(BASE[:4], BASE[2:6])
    assert_agree(save_reproducer(compiled, tmp_path / "synthetic"))
    with pytest.warns(thunder_fx.ThunderFXWarning, match="no inputs were recorded"):
        bundle = save_reproducer(compiled, tmp_path / "real", inputs="real")
    assert_agree(bundle)
    assert "so it ran eager, and does here" in run_here(bundle.scripts[0])[1]


def doubled_until_large(x):
    return torch.while_loop(lambda y: y.sum() < 100, lambda y: (y * 2,), (x,))[0].sin()


@pytest.mark.parametrize("fn", [lambda x: torch.sinc(x[x > 1]).sum(), doubled_until_large], ids=["mask", "while_loop"])
def test_sizes_that_only_the_data_tell(fn, tmp_path):
    """Inductor needs a ShapeEnv for them, which Dynamo has, and a script too."""
    compiled = thunderfx(fn)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled(torch.linspace(0.5, 2, 9))
    bundle = save_reproducer(compiled, tmp_path)
    assert any("inductor" in script.name for script in bundle.scripts)
    assert_agree(bundle)


@pytest.mark.parametrize("character", ["\x0c", "\x85", "\u2028", "\x1c"])
def test_what_may_end_a_line_elsewhere_ends_none_in_a_script(character, tmp_path):
    """str.splitlines() sees an end of line in characters that Python's own sources may have inside of one."""
    source = tmp_path / "source.py"
    source.write_text(f"def fn(x):\n    return x.sin() * 2  # a comment {character} raise\n", encoding="utf-8")
    compiled = thunderfx(runpy.run_path(str(source))["fn"])
    compiled(leaf(3))
    bundle = save_reproducer(compiled, tmp_path / "bundle")
    assert_agree(bundle)
    assert "# a comment" in bundle.scripts[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("how", [{"dynamic": True}, {"options": {"epilogue_fusion": False}}, {"executors": ["torch"]}])
def test_options_are_kept(how, tmp_path):
    """Symbolic sizes by the sizes that were seen; thunder's options and Inductor's as they were given."""
    compiled = thunderfx(lambda x: torch.sinc(x) + x.shape[0], **how)
    compiled(torch.rand(5, 3))
    bundle = save_reproducer(compiled, tmp_path)
    assert_agree(bundle)
    names = loaded(bundle.scripts[0])
    assert names["inductor_options"]() == {"fallback_random": True, **how.get("options", {})}
    thunders = names["thunder_options"]()
    assert (thunders["fusion_type"], thunders.get("executors")) == ("dataflow", how.get("executors"))
    if how.get("dynamic"):
        assert any("compiled for any s" in script.read_text() for script in bundle.scripts)


def test_a_script_runs_nothing_when_it_is_imported(tmp_path, capsys):
    """make_inputs() gives the inputs, always the same, and Graph is a Module."""
    compiled = thunderfx(sine)
    compiled(leaf(2, 3))
    (whole, region) = save_reproducer(compiled, tmp_path).scripts
    for script in (whole, region):
        names = loaded(script)
        (x,), (again,) = names["make_inputs"](), names["make_inputs"]()
        assert (x.shape, x.stride(), x.requires_grad, x.is_leaf) == ((2, 3), (3, 1), True, True)
        assert torch.equal(x, again)
        torch.testing.assert_close(names["Graph"]()(x), (sine(x),) if script is whole else sine(x))
    assert capsys.readouterr().out == ""


def test_the_state_of_torch_is_kept(tmp_path):
    """Grad mode, autocast, default dtype and seed of the moment of capture."""
    torch.manual_seed(7)
    compiled = thunderfx(lambda x: x @ x + torch.ones(()))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            result = compiled(leaf(3, 3).detach().float().requires_grad_())
    finally:
        torch.set_default_dtype(torch.float32)
    bundle = save_reproducer(compiled, tmp_path)
    for script in bundle.scripts:
        reproducer = loaded(script)["reproducer"]
        assert (reproducer.grad_enabled, reproducer.seed) == (False, 7)
        assert (reproducer.autocast, reproducer.default_dtype) == ([("cpu", torch.bfloat16)], torch.float64)
        (output,) = reproducer.run(reproducer.graph(), reproducer.make_inputs()).outputs
        assert (output.dtype, output.requires_grad) == (result.dtype, False)
    assert_agree(bundle)


def test_a_region_begins_in_the_state_that_the_one_before_left(tmp_path):
    """A no_grad that encloses a region of Inductor's is said in its script."""

    def fn(x):
        y = x.sin()
        torch._C._set_grad_enabled(False)
        z = torch.sinc(y)
        torch._C._set_grad_enabled(True)
        return z + y

    compiled = thunderfx(fn)
    compiled(leaf(3))
    bundle = save_reproducer(compiled, tmp_path)
    assert_agree(bundle)
    of_sinc = next(script for script in bundle.scripts if "inductor" in script.name)
    assert loaded(of_sinc)["reproducer"].grad_enabled is False
    assert loaded(bundle.scripts[0])["reproducer"].grad_enabled is True


class NamesOfAScript(Transform):
    """Reads names that the script has too, for other things."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        text = """two lines
of a string"""
        assert (tensor(1).item(), filled, len(text.splitlines()[1]), Graph.__module__) == (1, 5, 11, "torch.fx.graph")
        return prologue_trace, computation_trace, epilogue_trace


filled = 5


def test_names_of_an_option_and_of_the_script_do_not_meet(tmp_path):
    """What an option needs stands in a function of its own; its strings stay what they are."""
    compiled = thunderfx(sine, transforms=[NamesOfAScript()])
    compiled(leaf(3))
    assert_agree(save_reproducer(compiled, tmp_path))


def test_no_device_is_named_where_all_is_on_the_cpu(tmp_path):
    """And no backward is taken where nothing needs a gradient."""
    compiled = thunderfx(sine)
    compiled(torch.rand(3))
    for script in save_reproducer(compiled, tmp_path).scripts:
        assert "cuda" not in script.read_text().lower()
        status, out = run_here(script)
        assert (status, "outputs: 1, gradients: 0" in out) == (0, True)


def test_command_line(tmp_path):
    """As a person runs it, from anywhere: another compiler, no comparison, timing, help; 0 if it agrees."""
    compiled = thunderfx(splits)
    compiled(leaf(4))
    whole = save_reproducer(compiled, tmp_path / "bundle").scripts[0]
    out = run(whole, "--help", cwd=tmp_path).stdout
    assert "--compiler" in out
    assert "the whole of it" in out
    for arguments in (["--compiler", "inductor"], ["--compiler", "eager"], ["--no-check"], ["--benchmark"]):
        done = run(whole, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "us a call" in done.stdout
    assert run(whole, "--compiler", "nobody", cwd=tmp_path).returncode == 2


def test_a_difference_is_told_and_the_exit_status_not_0(tmp_path):
    """Which output and which gradient, and by how much."""
    compiled = thunderfx(lambda x: x.sin() * 2)
    compiled(leaf(4))
    script = next(s for s in save_reproducer(compiled, tmp_path).scripts if s.name == "graph0_repro.py")
    of_graph, of_split, rest = script.read_text().partition("class Thunder0")
    script.write_text(of_graph + of_split + rest.replace("sin * 2", "sin * 2.01", 1))
    status, out = run_here(script)
    assert status == 1
    assert "DIFFERS FROM EAGER: output 0: Tensor-likes are not close" in out
    assert "DIFFERS FROM EAGER: gradient 0: Tensor-likes are not close" in out


def test_only_dtypes_and_shapes_are_compared_where_random_numbers_differ(tmp_path):
    """thunder's dropout draws others than eager's where there are gradients: the script says what it compares."""
    compiled = thunderfx(lambda x: F.dropout(x, 0.5))
    compiled(leaf(64))
    for script in save_reproducer(compiled, tmp_path).scripts:
        status, out = run_here(script, "--compiler", "thunder")
        assert (status, "only dtypes and shapes are compared" in out) == (0, True)
        assert "only dtypes" not in run_here(script)[1]


def test_benchmarks_run_under_pytest_alone(tmp_path):
    """By pytest-benchmark: the graph as it was compiled, and by each compiler, forward and backward."""
    compiled = thunderfx(sine)
    compiled(leaf(4))
    bundle = save_reproducer(compiled, tmp_path, benchmark=True)
    names = sorted(script.name for script in bundle.scripts)
    assert names == [f"graph0_{part}.py" for part in ("benchmark", "repro", "thunder_0_benchmark", "thunder_0_repro")]
    script = next(s for s in bundle.scripts if s.name == "graph0_thunder_0_benchmark.py")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", str(script)]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_an_option_without_code_stops_the_script_with_what_to_supply(tmp_path):
    """It is said when the bundle is saved, too; other compilers run all the same."""
    captured = []
    compiled = thunderfx(sine, thunder_options={"my_option": functools.partial(lambda: captured)})
    compiled(torch.rand(3))
    with pytest.warns(thunder_fx.ThunderFXWarning, match=r"the option my_option= of thunder.jit is .*<lambda>"):
        bundle = save_reproducer(compiled, tmp_path)
    done = run(bundle.scripts[0], cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("the option my_option= of thunder.jit is")
    assert last.endswith("put values for `to be supplied`, and delete this line")
    assert run(bundle.scripts[0], "--compiler", "inductor", cwd=tmp_path).returncode == 0
