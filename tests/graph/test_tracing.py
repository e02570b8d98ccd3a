"""Regions traced straight from their graph, and what thunder's interpreter is left with."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.graph.test_structure import captured
from tests.helpers import assert_same_as_eager
from thunder_fx import get_subgraph_info, thunderfx
from thunder_fx.graph import modes, structure, support, tracing

CONSTANT = torch.tensor([1.0, 2.0, 3.0])


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 3


def constants(x):
    return x * CONSTANT + torch.tensor([4.0, 5.0, 6.0]) * CONSTANT


def checkpointed(x):
    return checkpoint(lambda y: (y.sin() * torch.cos(y)).exp(), x * 2, use_reentrant=False) + 1


def custom_gradient(x):
    return Tripled.apply(x * 2) + 1


def under_modes(x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", torch.bfloat16):
        z = x.expand(3, 3) @ x.expand(3, 3)
    return y * x + z.float().sum(0)


def tuples(x):
    values, indices = x.topk(2)
    a, b, c = x.unbind(0)
    return values * indices, a + b * c, torch.cat(x.split(1))


def shapes(x):
    return x.view(x.shape[0], -1).sum(x.dim() - 1) / x.numel()


@pytest.mark.parametrize(
    "fn", [constants, checkpointed, custom_gradient, under_modes, tuples, shapes], ids=lambda fn: fn.__name__
)
def test_the_interpreter_is_not_asked(fn):
    """Constants, nested graphs, modes, tuples and sizes are traced straight; numbers are eager's."""
    before = tracing.interpreter_uses
    compiled = thunderfx(fn)
    assert_same_as_eager(compiled, fn, torch.tensor([0.3, 0.1, 0.2]), rtol=1e-2, atol=1e-2)
    assert tracing.interpreter_uses == before
    (info,) = get_subgraph_info(compiled)
    assert not any(region.interpreted for region in info.regions)


def test_traces_show_the_programs_lines_and_the_graphs_names():
    """Not the lines of code that torch.fx generated, and no numbered names."""

    def fn(x):
        scaled = x * 2
        return scaled.sin()

    compiled = thunderfx(fn)
    compiled(torch.ones(3))
    (info,) = get_subgraph_info(compiled)
    trace = str(info.regions[0].traces[0])
    assert f"{__file__}:{fn.__code__.co_firstlineno + 1}" in trace
    assert "scaled = ltorch.mul(l_x_, 2)" in trace


def test_symbolic_values_are_the_interpreters():
    """thunder.jit's own option for sizes as symbols: the record and the counter say that the interpreter was used."""
    before = tracing.interpreter_uses
    compiled = thunderfx(lambda x: x.sin() + 1, cache="symbolic values")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    (info,) = get_subgraph_info(compiled)
    assert info.regions[0].interpreted
    assert tracing.interpreter_uses == before + 1


def test_what_cannot_be_traced_straight_is_interpreted(monkeypatch):
    """The interpreter is asked when the straight way fails, before the region is given away."""

    monkeypatch.setattr(tracing.Tracer, "run_node", [].pop)  # a TypeError that no code of ours raises
    compiled = thunderfx(lambda x: x.sin() * 2)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() * 2)
    (info,) = get_subgraph_info(compiled)
    (region,) = info.regions
    assert (region.compiler.name, region.interpreted) == ("THUNDER", True)
    assert info.thunder_compiled_fns == [region._compiled]
    assert info.split_reasons == []
    assert region.traces


def refusal(fn, *inputs, options=None):
    """What thunder says to the last call of a captured function."""
    node = structure.calls(captured(fn, *inputs))[-1]
    return tracing.refusal(node, options or {}, modes.ambient())


def test_a_refusal_says_why():
    """An argument that it does not take, a derivative that it lacks, a result of another shape or dtype."""
    x = torch.rand(3, requires_grad=True)
    assert refusal(lambda x: x.sin(), x) is None
    assert "unexpected keyword" in refusal(lambda x: torch.nn.functional.relu(input=x), x).exception
    torch._dynamo.reset()
    assert "has no gradient" in refusal(lambda x: x.floor(), x).why
    torch._dynamo.reset()
    # Without gradients there is nothing to lack.
    assert refusal(lambda x: x.floor(), x.detach()) is None
    torch._dynamo.reset()
    assert refusal(lambda x: x.floor(), x, options={"disable_torch_autograd": True}) is None


def test_a_result_of_another_dtype_is_a_refusal():
    """As far as the captured graph tells what eager gives."""
    graph = captured(lambda x: x.sin(), torch.ones(3))
    (node,) = structure.calls(graph)
    node.meta["example_value"] = node.meta["example_value"].double()
    assert "float64" in tracing.refusal(node, {}, modes.ambient()).why


def test_thunder_is_asked_once_per_signature(monkeypatch):
    """Equal calls share an answer; one that differs in shape, dtype, an argument or a mode has its own."""
    asked = []
    real = tracing.refusal
    monkeypatch.setattr(tracing, "refusal", lambda node, *rest: asked.append(node.name) or real(node, *rest))
    monkeypatch.setattr(support, "_answers", {})

    def fn(x, y):
        a = x.sin()
        b = a.sin()  # the same again, but for the name
        c = y.sin()  # another shape
        d = b.sum(0) + b.sum(1)  # another argument
        with torch.no_grad():
            e = a.sin()  # another mode
        return d.sum() + c.sum() + e.sum(0).sum()

    graph = captured(fn, torch.ones(3, 3, requires_grad=True), torch.ones(3))
    support.reasons_against(graph, {})
    assert "b" not in asked
    assert {"a", "c", "e"} <= set(asked)
    count = len(asked)
    support.reasons_against(graph, {})
    assert len(asked) == count


def test_a_symbolic_size_is_not_specialised():
    """Asking thunder leaves Dynamo free to reuse the graph for other sizes."""
    compiled = thunderfx(lambda x: (x.sin() + x.shape[0]).sum(), dynamic=True)
    for n in (3, 5, 7):
        torch.testing.assert_close(compiled(torch.ones(n)), (torch.ones(n).sin() + n).sum())
    assert len(get_subgraph_info(compiled)) == 1
