"""thunderfx(): what it takes, what it returns, what it leaves alone."""

import functools

import pytest
import torch
from torch import nn

import thunder_fx
from tests.helpers import TORCH, Block, assert_same_as_eager, needs_cxx, outcome, run_python, sine, splits
from thunder_fx import UncompilableError, thunderfx


def test_a_module_stays_a_module():
    """What comes back is torch.compile's OptimizedModule: parameters, state_dict, train and eval, use as a child."""
    linear = nn.Linear(4, 4)
    compiled = thunderfx(linear)
    assert type(compiled) is type(torch.compile(linear, backend="eager"))
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in linear.parameters()]
    assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    whole = nn.Sequential(compiled, nn.ReLU())
    whole.eval()
    assert not compiled.training
    assert not linear.training
    x = torch.randn(2, 4)
    torch.testing.assert_close(whole(x), linear(x).relu())
    assert thunder_fx.get_subgraph_info(compiled)


def test_a_function_stays_a_function():
    """With name, docstring and signature, as torch.compile leaves them."""

    def documented(x, *, scale=2):
        """Twice."""
        return x.sin() * scale

    compiled = thunderfx(documented)
    assert compiled.__name__ == "documented"
    assert compiled.__doc__ == "Twice."
    torch.testing.assert_close(compiled(torch.ones(2), scale=3), documented(torch.ones(2), scale=3))


class Owner:
    def __init__(self, scale=1.0):
        self.scale = scale

    @thunderfx
    def decorated(self, x):
        return x.exp() * self.scale

    @thunderfx(fullgraph=True, dynamic=False)
    def optioned(self, x):
        return x.cos() * self.scale

    @staticmethod
    @thunderfx
    def static(x):
        return x.sin() - 1

    def plain(self, x):
        return x.tan() * self.scale

    def __call__(self, x):
        return x.sinh() * self.scale


x = torch.linspace(0, 1, 5)
OWNER = Owner(3.0)


@pytest.mark.parametrize(
    ("compiled", "eager"),
    [
        (thunderfx(sine), sine),
        (thunderfx(OWNER.plain), OWNER.plain),
        (thunderfx(functools.partial(Owner.plain, OWNER)), OWNER.plain),
        (thunderfx(OWNER), OWNER),
        (thunderfx(torch.sin), torch.sin),
        (OWNER.decorated, lambda v: v.exp() * 3),
        (OWNER.optioned, lambda v: v.cos() * 3),
        (Owner.static, lambda v: v.sin() - 1),
    ],
    ids=["function", "bound method", "partial", "object", "builtin", "@thunderfx", "@thunderfx(...)", "static"],
)
def test_everything_callable_compiles(compiled, eager):
    """Values and gradients are eager's, and lookups know each of them."""
    assert_same_as_eager(compiled, eager, x)
    (info,) = thunder_fx.get_subgraph_info(compiled)[:1]
    assert info.regions[0].compiler is thunder_fx.CompilerType.THUNDER


def test_decorated_methods_are_found_from_class_and_instance():
    """A bound method is made anew at each access; its function is what was compiled."""
    backend = thunder_fx.last_backend(Owner.decorated)
    assert thunder_fx.last_backend(Owner().decorated) is backend
    assert thunder_fx.last_backend(functools.partial(Owner().decorated, x)) is backend


def test_options_reach_torch_compile():
    """fullgraph does what it does there, and the record has the user's keys and no others."""

    def breaks(v):
        v = v.sin()
        torch._dynamo.graph_break()
        return v + 1

    compiled = thunderfx(breaks, fullgraph=True)
    assert thunder_fx.last_backend(compiled).torch_compile_options == {"fullgraph": True}
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(x)


def test_one_decorator_serves_several_functions():
    """Each gets a ThunderCompiler of its own, with the same options, from a generator of transforms too."""
    from thunder.transforms import ConstantFolding

    decorate = thunderfx(transforms=(t for t in [ConstantFolding()]))
    first, second = decorate(sine), decorate(Block())
    assert thunder_fx.last_backend(first) is not thunder_fx.last_backend(second)
    for compiled in (first, second):
        assert len(thunder_fx.last_backend(compiled).thunder_options["transforms"]) == 1


@needs_cxx
def test_options_reach_the_regions_of_inductor():
    """options= and mode= are Inductor's, and never an error of the backend's signature."""
    seen = []
    options = {"post_grad_custom_pre_pass": seen.append, "fx_graph_cache": False}
    assert_same_as_eager(thunderfx(splits, options=options), splits, torch.randn(8))
    assert seen
    torch._dynamo.reset()
    assert_same_as_eager(thunderfx(splits, mode="reduce-overhead"), splits, torch.randn(8))


def test_disabled_is_the_function_itself():
    """torch.compile returns its argument; nothing is recorded, and a lookup says why."""
    before = thunder_fx.compiled_callables()
    assert thunderfx(sine, disable=True) is sine
    assert thunder_fx.compiled_callables() == before
    with pytest.raises(thunder_fx.NotCompiledError, match=r"torch.compile returned it unchanged \(disable=True"):
        thunder_fx.last_backend(sine)


def test_disabled_by_the_environment_is_the_function_itself():
    """TORCHDYNAMO_DISABLE=1 has the same effect, for a Module too."""
    out = run_python(
        "import torch, thunder_fx; m = torch.nn.Linear(2, 2); print(thunder_fx.thunderfx(m) is m)\n"
        "try: thunder_fx.get_subgraph_info(m)\nexcept TypeError as error: print(error)",
        env={"TORCHDYNAMO_DISABLE": "1"},
    )
    assert out.startswith("True\n")
    assert "returned it unchanged" in out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, r"thunderfx\(3\): expected a function, Module or other callable, found an object of <class 'int'>"),
        (nn.Linear, r"thunderfx\(Linear\): .* found a class; compile an instance"),
        (staticmethod(sine), "found a staticmethod; put @staticmethod above @thunderfx"),
        (classmethod(sine), "found a classmethod"),
    ],
    ids=["number", "class", "staticmethod", "classmethod"],
)
def test_what_cannot_be_compiled_is_refused(wrong, message):
    """With what was expected, what was found and what to do; nothing is registered, and a class is not touched."""
    before, call = thunder_fx.compiled_callables(), nn.Linear.__call__
    with pytest.raises(UncompilableError, match=message):
        thunderfx(wrong)
    assert thunder_fx.compiled_callables() == before
    assert nn.Linear.__call__ is call


def test_a_wrong_option_of_a_decorator_is_told_where_it_stands():
    """Not first when the decorator meets its function."""
    with pytest.raises(thunder_fx.OptionError, match="did you mean 'fullgraph'"):
        thunderfx(fullgrph=True)


@pytest.mark.skipif(TORCH < (2, 13), reason="isolate_recompiles came with torch 2.13")
def test_recompiles_are_isolated_unless_the_user_says_otherwise():
    """Twelve instances of one class all get their graph; with isolate_recompiles=False the ninth gets none."""
    compiled = [thunderfx(Block()) for _ in range(12)]
    assert [len(thunder_fx.get_subgraph_info(c)) for c in compiled if c(torch.randn(2, 8)) is not None] == [1] * 12
    torch._dynamo.reset()
    shared = [thunderfx(Block(), isolate_recompiles=False) for _ in range(9)]
    for c in shared[:7]:
        c(torch.randn(2, 8))
    with pytest.warns(thunder_fx.ThunderFXWarning, match="recompile_limit"):
        shared[7](torch.randn(2, 8))
    shared[8](torch.randn(2, 8))
    with pytest.warns(thunder_fx.ThunderFXWarning, match="recompile"):
        assert [len(thunder_fx.get_subgraph_info(c)) for c in shared] == [1] * 8 + [0]


def test_the_compiled_callable_is_torch_compiles_own():
    """No wrapper of ours around it: what is called is torch.compile's wrapper, as for any backend."""
    compiled = thunderfx(sine)
    torch_own = torch.compile(sine, backend="eager")
    assert compiled.__code__ is torch_own.__code__


def test_outcome_sees_a_wrong_gradient():
    """The comparison that all numerics tests rest on tells functions apart that differ in gradients alone."""

    def other(v):
        return v.sin().detach() + v - v.detach() + 1

    torch.testing.assert_close(other(x), sine(x))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(outcome(other, x), outcome(sine, x))
