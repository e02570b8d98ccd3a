"""Inputs as code: what a script makes has the metadata of what was captured, whatever that is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from thunder_fx.graph import capture
from thunder_fx.repro import inputs, runner
from thunder_fx.repro.values import Writer

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.bool]
DTYPES += [torch.uint8]


@st.composite
def views(draw):
    """A dtype, a shape, strides (0 and overlapping ones too), an offset, and whether a gradient is required."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = tuple(draw(st.integers(0, 5)) for _ in shape)
    requires_grad = draw(st.booleans()) and (dtype.is_floating_point or dtype.is_complex)
    return dtype, shape, strides, draw(st.integers(0, 3)), requires_grad


@st.composite
def tensors(draw):
    """Tensors in one, two or three pieces of memory, so that some share theirs."""
    memories = [
        torch.zeros(draw(st.sampled_from([1021, 1024])), dtype=torch.uint8).untyped_storage()
        for _ in range(draw(st.integers(1, 3)))
    ]
    made = []
    for dtype, shape, strides, offset, requires_grad in draw(st.lists(views(), min_size=1, max_size=5)):
        memory = memories[draw(st.integers(0, len(memories) - 1))]
        tensor = torch.empty(0, dtype=dtype).set_(memory, offset, shape, strides)
        made.append(tensor.requires_grad_(requires_grad))
    return made


def captured(values):
    """A graph that was captured with these inputs, which it does nothing with."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    for index, value in enumerate(values):
        graph.placeholder(f"x{index}").meta["example_value"] = mode.from_tensor(value)
    graph.output(())
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def made_by(found, folder="."):
    names = {**vars(runner), "__file__": f"{folder}/script.py"}
    names["loaded"] = lambda file, device="cpu": found.files[file]
    exec(found.source(), names)
    return names["make_inputs"]()


def metadata(values):
    first = {}
    return [
        (
            *(x.dtype, x.shape, x.stride(), x.storage_offset(), x.requires_grad, x.is_leaf),
            first.setdefault(x.untyped_storage().data_ptr() if x.numel() else ("empty", index), index),
        )
        for index, x in enumerate(values)
    ]


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_made_up_inputs_have_the_same_metadata(values):
    """dtype, shape, strides, offset, which share memory, and requires_grad."""
    found = inputs.of_graph(captured(values), None, Writer())
    assert metadata(made_by(found)) == metadata(values)
    assert not found.problems


@settings(max_examples=100, deadline=None)
@given(tensors(), st.randoms(use_true_random=False))
def test_recorded_inputs_have_the_same_metadata_and_values(values, random):
    """Also where two dtypes lie in one piece of memory."""
    for value in values:
        memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        # Bytes that are a number in every dtype, and no NaN.
        memory.copy_(torch.tensor([random.randint(0, 1) for _ in range(len(memory))]))
    recorded = capture.before_call(values)
    found = inputs.of_graph(captured(values), recorded.values, Writer())
    made = made_by(found)
    assert metadata(made) == metadata(values)
    assert all(torch.equal(a.detach(), b.detach()) for a, b in zip(made, values, strict=True))


_BOUNDS = {"probability": (0, 1), "positive": (0.5, 1.5), "above one": (1, 2), "zero": (0, 0), "index": (0, 6)}


@pytest.mark.parametrize("kind", ["normal", "weight", "probability", "positive", "above one", "index", "zero"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.float8_e4m3fn, torch.int8])
def test_what_is_made_up_is_what_it_is_called(kind, dtype):
    """Always the same for a seed, and within its bounds."""
    x = runner.filled(100, dtype, kind, seed=3, below=7)
    assert x.dtype is dtype
    assert torch.equal(x.float() if not x.is_complex() else x, runner.filled(100, dtype, kind, seed=3, below=7).to(
        torch.complex64 if x.is_complex() else torch.float32))  # fmt: skip
    if dtype.is_complex or dtype is torch.bool:
        return
    low, high = x.float().min().item(), x.float().max().item()
    if not dtype.is_floating_point:
        assert {"zero": (0, 0)}.get(kind, (0, 6)) == (low, high)
    elif kind in _BOUNDS:
        assert _BOUNDS[kind][0] <= low <= high <= _BOUNDS[kind][1]
    else:
        assert low < 0 < high


def test_what_is_no_strided_tensor_is_to_be_supplied():
    """A sparse tensor is named, and the person is told where to make one."""
    sparse = torch.eye(3).to_sparse()
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["example_value"] = sparse
    graph.output(())
    found = inputs.of_graph(torch.fx.GraphModule(torch.nn.Module(), graph), None, Writer())
    what = "the input x is a torch.sparse_coo tensor, which is not written: make one in make_inputs()"
    assert found.problems == [what]
    with pytest.raises(SystemExit, match="make one in make_inputs"):
        made_by(found)


def test_names_of_one_memory_have_values_that_all_of_them_may_have():
    """An index into 1000 rows and one into 3, in one piece of memory: both are less than 3."""
    memory = torch.zeros(8, dtype=torch.int64)
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    nodes = [graph.placeholder(f"x{n}") for n in range(4)]
    for node, value in zip(nodes, (torch.rand(1000, 2), torch.rand(3, 2), memory[:4], memory[4:]), strict=True):
        node.meta["example_value"] = mode.from_tensor(value)
    rows = [graph.call_function(torch.nn.functional.embedding, (nodes[n + 2], nodes[n])) for n in range(2)]
    graph.output(tuple(rows))
    made = made_by(inputs.of_graph(torch.fx.GraphModule(torch.nn.Module(), graph), None, Writer()))
    assert made[2].untyped_storage().data_ptr() == made[3].untyped_storage().data_ptr()
    assert max(made[2].max(), made[3].max()) < 3
