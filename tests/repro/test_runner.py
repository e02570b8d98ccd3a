"""Comparing with eager: what is equal, what is rounding, and what is a difference; and reading a graph back."""

import math

import pytest
import torch

from thunder_fx.repro import runner
from thunder_fx.repro.runner import Reproducer, Run

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


def differences(got, wanted, kind="outputs", **changes):
    runs = [Run([], [], []), Run([], [], [])]
    for run, value in zip(runs, (got, wanted), strict=True):
        setattr(run, kind, [value])
    return reproducer(**changes).differences(*runs, inputs(), values=True)


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
    assert len(differences(got, wanted, draws_random_numbers=True)) == 1


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
    assert differences(near, eager) == []
    assert len(differences(far, eager)) == 1


class Statements(torch.nn.Module):
    """Each form of statement that torch.fx prints."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    # fmt: off
    def forward(self, x, n):
        table = self.table
        minus = -x
        power = x ** 2;  x = None  # noqa: E702
        smaller = minus < power
        picked = power[(slice(None, n, None), 0)]
        shape = power.shape
        size = shape[0];  shape = None  # noqa: E702
        clone = minus.clone()
        clone[0] = 1.5;  setitem = clone;  setitem = None  # noqa: E702, F841
        clone += power;  iadd = clone  # noqa: E702
        total = torch.add(iadd, table, alpha=math.e)
        pieces = torch.cat([total, power], dim=-1)
        return (pieces, smaller, picked, size, iadd)
    # fmt: on


def test_a_forward_is_read_back_as_the_graph_that_it_was_printed_from():
    """In-place statements too, and what is passed by name."""
    module, x = Statements(), torch.linspace(0.5, 2, 16).reshape(4, 4)
    graph_module = runner.as_graph(Statements())
    for got, wanted in zip(graph_module(x.clone(), 2), module(x.clone(), 2), strict=True):
        torch.testing.assert_close(got, wanted)
    targets = [node.target for node in graph_module.graph.nodes if node.op == "call_function"]
    names = [target.__name__ for target in targets]
    assert [name for name in names if name in ("setitem", "iadd")] == ["setitem", "iadd"]
    assert runner.as_graph(graph_module) is graph_module
