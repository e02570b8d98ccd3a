"""Comparing with eager: what is equal, what is rounding, what is a difference, and what is only to be told."""

import pytest
import torch

from thunder_fx.portable import comparison
from thunder_fx.portable.comparison import Run
from thunder_fx.repro import runner
from thunder_fx.repro.runner import Reproducer

NAN, INF = float("nan"), float("inf")


class Product(torch.nn.Module):
    """A sum that cancels: float32 keeps few digits of it."""

    def forward(self, x, y):
        product = x * y
        total = product.sum()
        return (total,)


def inputs():
    x = torch.linspace(-1, 1, 1001)
    return [x, x.abs() + 1]


def reproducer(**changes):
    settings = {"graph": Product, "make_inputs": inputs, "compiler": "eager"}
    return Reproducer(**{**settings, "thunder_options": dict, "inductor_options": dict, **changes})


def differences(got, wanted, kind="outputs", exact=None):
    """Of two results; `exact` is the same in float64, where there is one."""
    runs = [Run([], inputs(), []), Run([], inputs(), [])]
    for run, value in zip(runs, (got, wanted), strict=True):
        setattr(run, kind, [value])
    return comparison.differences(*runs, lambda: None if exact is None else Run([exact], []))


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (torch.tensor([NAN, 1.0]), torch.tensor([0.0, 1.0])),
        (torch.tensor([0.0, 1.0]), torch.tensor([NAN, 1.0])),
        (torch.tensor([INF]), torch.tensor([-INF])),
        (torch.tensor(0.1), torch.tensor(0.2)),
        (None, torch.zeros(2)),
        (torch.zeros(2), None),
        (NAN, 1.0),
        (1, 1.0),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(()).requires_grad_(), torch.ones(())),
    ],
)
def test_differences_are_seen(got, wanted):
    """Of values, NaN and infinity, of dtype, shape and requires_grad, and of what is no tensor."""
    assert len(differences(got, wanted)) == 1


@pytest.mark.parametrize(
    "value", [torch.tensor([NAN, INF, 1.0]), NAN, None, 3, "text", torch.tensor([1, 2]), torch.tensor(True)], ids=str
)
def test_equal_things_are_equal(value):
    """NaN too."""
    assert differences(value, value) == []


def test_a_gradient_of_zero_may_be_left_out():
    """And only a gradient."""
    assert differences(None, torch.zeros(2), "gradients") == []
    assert len(differences(None, torch.ones(2), "gradients")) == 1
    assert len(differences(None, torch.zeros(2), "inputs")) == 1


def test_rounding_is_no_difference_and_more_is():
    """As near to float64's result as eager's own, or farther."""
    (exact,) = reproducer()._in_float64(inputs()).outputs
    eager = exact.float() + 1e-4
    near, far = (exact - 3e-4).float(), (exact - 3e-2).float()
    assert differences(near, eager, exact=exact) == []
    assert len(differences(far, eager, exact=exact)) == 1
    assert len(differences(near, eager)) == 1


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 0.02), (torch.bfloat16, 2.0)], ids=str)
def test_one_wrong_element_of_many_is_a_difference(dtype, error):
    """Though it is little beside the norm of them all."""
    exact = torch.linspace(-1, 1, 1_000_000, dtype=torch.float64)
    eager, ours = exact.to(dtype), exact.to(dtype)
    ours[500_000] += error
    assert len(differences(ours, eager, exact=exact)) == 1


def test_a_reference_that_computed_something_else_excuses_nothing():
    """Rounded to another whole number in float64: where eager is that far from it, the two are compared as they are."""
    x = torch.arange(1000) * 0.1
    eager, exact = torch.floor(x * 10), torch.floor(x.double() * 10)
    assert (eager.double() - exact).abs().max() == 1
    ours = eager.clone()
    ours[::20] += 1
    assert len(differences(ours, eager, exact=exact)) == 1


def test_a_run_whose_inputs_share_what_is_written_has_no_reference():
    """In float64 each would have memory of its own."""
    x = torch.ones(4)
    assert reproducer(written=[0])._in_float64([x[:3], x[1:]]) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda values: torch.tensor(values).to_sparse(),
        lambda values: torch.tensor(values).to(torch.float8_e4m3fn),
        lambda values: torch.quantize_per_tensor(torch.tensor(values), 0.1, 0, torch.quint8),
    ],
    ids=["sparse", "float8", "quantized"],
)
def test_results_of_any_kind_are_compared(make):
    """Those too for which few operators exist."""
    same, other = [0.0, 1.0, 2.0], [0.0, 1.0, 3.0]
    assert comparison.remarks(Run([make(same)], []), Run([make(same)], [])) == []
    assert differences(make(same), make(same), exact=torch.tensor(same).double()) == []
    assert len(differences(make(other), make(same), exact=torch.tensor(same).double())) == 1


class Dropping(torch.nn.Module):
    """Random numbers of several kinds, and of a checkpoint, whose backward draws them again."""

    def __init__(self):
        super().__init__()
        self.body = runner.as_graph(Body())

    def forward(self, x):
        noise = torch.randn_like(x)
        body = self.body
        checkpointed = torch.ops.higher_order.tag_activation_checkpoint(body, x, use_reentrant=False)
        noisy = checkpointed + noise
        return (noisy,)


class Body(torch.nn.Module):
    def forward(self, x):
        dropped = torch.nn.functional.dropout(x, 0.5)
        result = dropped.sin()
        return result


def test_float64_draws_the_same_random_numbers():
    """So that half precision, which compilers round otherwise than eager, can be judged where there is dropout."""
    made = [torch.linspace(-2, 2, 1000).bfloat16().requires_grad_()]
    ours = reproducer(graph=Dropping, draws_random_numbers=True)
    eager, exact = ours.run(ours.compiled("eager"), made), ours._in_float64(made)
    assert exact.outputs[0].dtype is torch.float64
    for got, wanted in zip((*exact.outputs, *exact.gradients), (*eager.outputs, *eager.gradients), strict=True):
        torch.testing.assert_close(got.bfloat16(), wanted, rtol=2e-2, atol=2e-2)
    assert 0.4 < (exact.gradients[0] == 0).double().mean() < 0.6


def test_what_agrees_but_tells_little_is_remarked():
    """NaN everywhere, other strides, and other memory; thunder_fx puts strides right outside of its regions."""
    ours, eager = torch.ones(2, 3), torch.ones(3, 2).t()
    (remark,) = comparison.remarks(Run([ours], []), Run([eager], []))
    assert remark == "output 0 has strides (3, 1), where eager has (1, 2)"
    (remark,) = comparison.remarks(Run([ours * NAN], []), Run([ours * NAN], []))
    assert remark.startswith("output 0 is NaN everywhere")
    shared = [comparison.memory_of([ours, ours.t()]), comparison.memory_of([ours, ours + 1])]
    assert shared == [[0, 0], [0, 1]]
    (remark,) = comparison.remarks(*(Run([ours], [], memory=memory) for memory in shared))
    assert "share memory" in remark
    assert comparison.remarks(Run([ours], []), Run([ours], [])) == []
