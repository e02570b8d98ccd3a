"""Which nodes write, and into what."""

import operator

import pytest
import torch
import torch.nn.functional as F

from tests.graph.test_structure import captured
from thunder_fx.graph import structure, writes


def writers(fn, *inputs):
    """The names of the nodes that write, with the names of what they write into."""
    graph = captured(fn, *(inputs or (torch.randn(4, 4),)))
    return [[node.name for node in writes.written(n)] for n in structure.calls(graph) if list(writes.written(n))]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.add_(1),
        lambda x: operator.iadd(x, 1),
        lambda x: F.relu(x, inplace=True),
        lambda x: F.relu(x, True),
        lambda x: F.relu_(x),
        lambda x: F.dropout(x, 0.5, True, True),
        lambda x: torch.sin(x, out=x),
        lambda x: torch.ops.aten.mul_.Tensor(x, x),
        lambda x: torch.sigmoid_(x),
    ],
)
def test_writes_into_the_first_argument(fn):
    """By name, operator, keyword, positional flag, out=, and an operator's own schema."""
    assert writers(fn) == [["l_x_"]]


def test_setitem_writes_into_its_container():
    """x[i] = y."""

    def fn(x, y):
        x[0] = y[1]
        return x

    assert writers(fn, torch.randn(2, 2), torch.randn(2, 2)) == [["l_x_"]]


def test_foreach_writes_into_its_lists():
    """An optimiser's step."""
    assert writers(lambda x, y: torch._foreach_add_([x, y], 1), torch.ones(2), torch.ones(2)) == [["l_x_", "l_y_"]]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.add(1),
        lambda x: F.relu(x, inplace=False),
        lambda x: F.dropout(x, 0.5, True, False),
        lambda x: x.__add__(1),
        lambda x: x.int() * 2 + x.index_select(0, torch.tensor([1])).int(),
        lambda x: torch.ops.aten.mul.Tensor(x, x),
        lambda x: ~(x > 0),
    ],
)
def test_what_only_reads_is_no_write(fn):
    """Nor is a name that merely begins with i."""
    assert writers(fn) == []


@pytest.mark.parametrize("fn", [lambda x, y: x & y, lambda x, y: x | y, lambda x, y: ~(x ^ y)])
def test_operators_named_after_keywords_are_no_writes(fn):
    """operator.and_ ends in an underscore because Python has a keyword of that name."""
    assert writers(fn, torch.ones(2).bool(), torch.ones(2).bool()) == []
