"""Which nodes write, into what, and what must stay together because of it."""

import operator

import pytest
import torch
import torch.nn.functional as F

from tests.graph.test_structure import captured
from thunder_fx.graph import inplace, structure


def writers(fn, *inputs):
    """The names of the nodes that write, with the names of what they write into."""
    graph = captured(fn, *(inputs or (torch.randn(4, 4),)))
    return [[node.name for node in inplace.written(n)] for n in structure.calls(graph) if list(inplace.written(n))]


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


def stretch_names(fn, *inputs):
    graph = captured(fn, *inputs)
    names = [node.name for node in structure.calls(graph)]
    return [names[s.first : s.last + 1] for s in inplace.stretches(graph)]


def test_a_stretch_reaches_from_the_storages_making_to_the_last_write():
    """What comes before and after is free."""

    def fn(x):
        a = x.sin()
        y = a * 2
        v = y[0]
        b = a.cos()
        v.mul_(3)
        return y + b

    (stretch,) = stretch_names(fn, torch.randn(3, 3))
    assert stretch[0] == "y"
    assert stretch[-1] == "mul_"
    assert "b" in stretch
    assert "a" not in stretch


def test_a_stretch_of_a_written_input_begins_at_its_first_reader():
    """Also where that reads it under another name: two inputs may be views of one storage."""

    def fn(x, y):
        a = y.sin()
        b = a.cos()
        x.mul_(2)
        return b + x

    base = torch.randn(4)
    (stretch,) = stretch_names(fn, base, base[:])
    assert stretch == ["a", "b", "mul_"]
    torch._dynamo.reset()
    (alone,) = stretch_names(fn, base, base.clone())
    assert alone == ["mul_"]


def test_a_graph_without_writes_has_no_stretch():
    """And costs no look at storages."""
    assert stretch_names(lambda x: x.sin() + 1, torch.ones(2)) == []


def test_a_tensor_without_a_storage_takes_the_whole_graph():
    """It may share one with any other."""

    def fn(x):
        y = x.cos()
        s = x.to_sparse()
        s.mul_(2)
        return y + s.to_dense()

    graph = captured(lambda x: (x.cos(), x.mul_(2)), torch.ones(2))
    for node in structure.calls(graph):
        if node.name == "mul_":
            node.args[0].meta["example_value"] = torch.ones(2).to_sparse()
    (stretch,) = inplace.stretches(graph)
    assert (stretch.first, stretch.last) == (0, len(structure.calls(graph)) - 1)
