"""A forward that torch.fx printed, read back."""

import math

import torch

from thunder_fx.portable.reading import as_graph


class Statements(torch.nn.Module):
    """Each form of statement that torch.fx prints."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    # fmt: off
    def forward(self, x, n):
        table = self.table
        # File: model.py:3 in forward, code: minus = -x
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
    graph_module = as_graph(Statements())
    for got, wanted in zip(graph_module(x.clone(), 2), module(x.clone(), 2), strict=True):
        torch.testing.assert_close(got, wanted)
    targets = [node.target for node in graph_module.graph.nodes if node.op == "call_function"]
    names = [target.__name__ for target in targets]
    assert [name for name in names if name in ("setitem", "iadd")] == ["setitem", "iadd"]
    assert as_graph(graph_module) is graph_module


def test_comments_are_read_back_as_places_in_the_program():
    """So that what is made of the graph says them again: a shrunk script, and an error of Inductor's."""
    nodes = {node.name: node for node in as_graph(Statements()).graph.nodes}
    assert nodes["table"].stack_trace is None
    assert nodes["minus"].stack_trace == '  File "model.py", line 3, in forward\n    minus = -x'
    assert "# File: model.py:3 in forward, code: minus = -x" in as_graph(Statements()).print_readable(False)
