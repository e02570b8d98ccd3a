"""Reading and copying GraphModules."""

import torch
from torch import nn

from tests.helpers import sine
from thunder_fx.graph import structure


def captured(fn, *inputs, **options):
    """The graph that Dynamo captures of a function, as a backend gets it."""
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    torch.compile(fn, backend=backend, **options)(*inputs)
    (graph,) = graphs
    return graph


def test_a_copy_shares_tensors_and_has_its_own_graph():
    """Nested graphs are copied too; parameters and constants are the very same tensors."""
    constant = torch.arange(3.0)
    inner = torch.fx.symbolic_trace(nn.Linear(3, 3))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.constant = inner, constant

        def forward(self, x):
            return self.inner(x) + self.constant

    class LeafTracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return True

    outer = Outer()
    graph_module = torch.fx.GraphModule(outer, LeafTracer().trace(outer))
    twin = structure.copy_structure(graph_module)
    assert str(twin.graph) == str(graph_module.graph)
    assert twin.graph is not graph_module.graph
    assert twin.inner is not graph_module.inner
    assert twin.inner.weight is inner.weight
    assert twin.constant is constant
    x = torch.randn(2, 3)
    torch.testing.assert_close(twin(x), graph_module(x))
    twin.inner.graph.erase_node(next(iter(twin.inner.graph.find_nodes(op="output"))))
    assert graph_module.inner.graph.find_nodes(op="output")


def test_a_copy_leaves_out_what_reaches_the_users_inputs():
    """Dynamo's grapharg stays with Dynamo's graph."""
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(structure.copy_structure(graph_module))
        assert any("grapharg" in node.meta for node in graph_module.graph.nodes)
        return graph_module.forward

    torch.compile(sine, backend=backend)(torch.ones(3))
    assert not any("grapharg" in node.meta for node in graphs[0].graph.nodes)


def test_example_inputs_of_a_static_graph():
    """Shape, strides, offset, dtype and requires_grad of a strided input; a number beside it is part of the code."""
    x = torch.randn(4, 6, dtype=torch.bfloat16)[:, 1::2].requires_grad_()
    (seen,) = structure.example_inputs(captured(lambda v: v.sin() + 1, x))
    assert seen.is_tensor
    assert (seen.shape, seen.strides, seen.storage_offset) == ((4, 3), (6, 2), 1)
    assert (seen.dtype, seen.device.type, seen.requires_grad) == (torch.bfloat16, "cpu", True)
    assert seen.symbolic_shape is None


def test_example_inputs_of_a_dynamic_graph():
    """Symbolic sizes by their hint and as text, and a symbolic number by its hint, without specialising."""
    graph = captured(lambda v, n: (v * n).sin(), torch.randn(5, 4), 7, dynamic=True)
    inputs = structure.example_inputs(graph)
    (tensor,) = (i for i in inputs if i.is_tensor)
    assert tensor.shape == (5, 4)
    assert [s.startswith("s") for s in tensor.symbolic_shape] == [True, True]
    assert sorted(i.value for i in inputs if not i.is_tensor) == [4, 5, 7]
    placeholders = graph.graph.find_nodes(op="placeholder")
    assert all(isinstance(s, torch.SymInt) for p in placeholders for t in structure.tensors_of(p) for s in t.shape)


def test_source_line_is_the_users():
    """The innermost line of the program, and the function that it stands in."""
    graph = captured(sine, torch.ones(3))
    (node,) = graph.graph.find_nodes(op="call_method", target="sin")
    line = sine.__code__.co_firstlineno + 1
    assert structure.source_line(node) == f"{sine.__code__.co_filename}:{line}, in sine"
    assert structure.source_line(graph.graph.find_nodes(op="output")[0]) is None


def test_outputs_are_flat_and_in_order():
    """What a region returns, one by one."""
    graph = captured(lambda x: (x.sin(), [x.cos(), x.tan()]), torch.ones(3))
    assert [node.name for node in structure.outputs(graph)] == ["sin", "cos", "tan"]
