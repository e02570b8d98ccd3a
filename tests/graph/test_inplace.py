"""What becomes of in-place writes: out-of-place twins, groups for Inductor, and the check for overlapping inputs."""

import pytest
import torch
import torch.nn.functional as F

from tests.differential.compare import assert_same
from tests.graph.test_numerics import flat_view, row, scale
from tests.graph.test_structure import captured
from tests.helpers import needs_cxx
from thunder_fx import CompilerType, get_subgraph_info, thunderfx
from thunder_fx.graph import inplace, modes, structure, writes


def out_of_place(fn, *inputs):
    """The captured graph after the rewrite; the names of its nodes that still write."""
    graph = captured(fn, *(inputs or (torch.randn(4, 4, requires_grad=True),)))
    inplace.make_out_of_place(graph, modes.ambient())
    graph.recompile()
    return graph, [node.name for node in structure.calls(graph) if list(writes.written(node))]


def relu(x):
    return F.relu(x * 2, inplace=True) + F.relu_(x * 3) + torch.relu_(x + 1)


def methods(x):
    y = x.cos()
    y.add_(1).mul_(x)
    y.clamp_(-1, 1)
    return y.sin()


def items(x):
    y = torch.zeros(4, 4)
    y[1:3] = x[:2]
    y[0, 0] = 5
    return y * x


def filled(x):
    y = torch.empty(4)
    y.fill_(2)
    z = torch.ones(4)
    z.zero_()
    return x * y + z


def cast(x):
    y = torch.zeros(4, 4, dtype=torch.int64)
    y += x.long()
    z = torch.zeros(4, 4)
    z += x.double()
    return z + y


def masked(x):
    y = x * 1
    y[y > 0] = 0
    y.masked_fill_(y < -1, -1)
    return y


def of_a_view_alone(x):
    v = (x * 2)[0]
    v.mul_(3)
    return v + 1


@pytest.mark.parametrize("fn", [scale, relu, methods, items, filled, cast, masked, of_a_view_alone])
def test_a_write_that_nobody_else_sees_becomes_its_twin(fn):
    """In the graph no write is left, and thunder runs all of it; everything is as in eager."""
    _, left = out_of_place(fn)
    assert left == []
    torch._dynamo.reset()
    compiled = thunderfx(fn)
    assert_same(fn, compiled, [torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()])
    (info,) = get_subgraph_info(compiled)
    assert [region.compiler for region in info.regions] == [CompilerType.THUNDER]


def view_of_view(x):
    y = x.sin()
    v = y.t()[1:]
    y.mul_(2)
    return v.cos()


def transposed(x):
    y = x.t() * 1  # as transposed as x is; the twin too
    w = (x * 2)[:, 1]  # strides 4; a new tensor has 1
    w += 1
    return y, w


def behind_no_grad(x):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)  # the gradient passes as if it had not been
    return y


def copied(x):
    y = torch.empty(4, 4)
    y.copy_(x)
    return y * 2


def out(x):
    y = torch.empty(4, 4)
    torch.sin(x.detach(), out=y)
    return y * x


def random(x):
    y = torch.empty(4, 4)
    y.uniform_()
    return y * x


def shape(x):
    y = x * 2
    y.unsqueeze_(0)
    return y


def part_of_a_storage(x):
    v = (x * 2)[1]  # as a result it has an offset
    v.mul_(2)
    return v


@needs_cxx
@pytest.mark.parametrize(
    "fn", [row, flat_view, view_of_view, transposed, behind_no_grad, copied, out, random, shape, part_of_a_storage]
)
def test_any_other_write_to_a_value_of_the_graph_is_not_thunders(fn):
    """Another name is read, strides differ, autograd is off, or a copy has no meaning: and it is right."""
    _, left = out_of_place(fn)
    assert left != []
    torch._dynamo.reset()
    compiled = thunderfx(fn)
    assert_same(fn, compiled, [torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()])
    (info,) = get_subgraph_info(compiled)
    assert any(region.compiler is not CompilerType.THUNDER for region in info.regions)
    assert any("in-place write" in reason.info for reason in info.split_reasons)


def test_views_of_a_twin_are_known_as_views_of_what_was_written():
    """A second write, into a view of what the first one wrote, is seen by whoever reads the first."""

    def fn(x):
        z = torch.zeros(4, 4)
        z[1:3] = x[:2]
        z[0].add_(x[0])
        return z.exp()

    _, left = out_of_place(fn)
    assert left == ["add_"]


def group_names(fn, *inputs):
    graph = captured(fn, *inputs)
    return [[node.name for node in group.nodes] for group in inplace.groups(graph)]


def test_a_group_is_what_uses_the_storage_up_to_the_last_write():
    """What makes it, reads it, views it and writes it; not what stands between, nor what reads it after."""

    def fn(x):
        a = x.sin()
        y = a * 2
        v = y[0]
        b = a.cos()
        v.mul_(3)
        return y + b

    assert group_names(fn, torch.randn(3, 3)) == [["y", "v", "mul_"]]


def test_a_group_of_an_input_begins_at_its_first_reader():
    """Also where that reads it under another name: two inputs may be views of one storage."""

    def fn(x, y):
        a = y.sin()
        b = a.cos()
        x.mul_(2)
        return b + x

    base = torch.randn(4)
    assert group_names(fn, base, base[:]) == [["a", "mul_"]]
    torch._dynamo.reset()
    assert group_names(fn, base, base.clone()) == [["mul_"]]


def test_a_graph_without_writes_has_no_group():
    """And costs no look at storages."""
    assert group_names(lambda x: x.sin() + 1, torch.ones(2)) == []


def test_a_tensor_without_a_storage_takes_the_whole_graph():
    """It may share one with any other."""
    graph = captured(lambda x: (x.cos(), x.mul_(2)), torch.ones(2))
    for node in structure.calls(graph):
        if node.name == "mul_":
            node.args[0].meta["example_value"] = torch.ones(2).to_sparse()
    (group,) = inplace.groups(graph)
    assert group.nodes == structure.calls(graph)


# Inputs that overlap


def scaled_sum(a, b):
    a.mul_(2)
    return a + b


def apart():
    return torch.arange(4.0), torch.ones(4)


def same_storage():
    a = torch.arange(4.0)
    return a, a[:]


def overlapping():
    base = torch.arange(6.0)
    return base[:4], base[2:]


def beside():
    base = torch.arange(8.0)
    return base[:4], base[4:]


def the_same():
    a = torch.arange(4.0)
    return a, a


@needs_cxx
@pytest.mark.parametrize("fn", [scaled_sum, lambda a, b: scaled_sum(b, a)], ids=["first written", "second written"])
@pytest.mark.parametrize(
    "order",
    [
        (apart, same_storage, apart),
        (same_storage, apart, overlapping),
        (overlapping, beside, the_same, apart),
        (the_same, apart, same_storage),
    ],
    ids=lambda order: "-".join(make.__name__ for make in order),
)
def test_a_call_whose_inputs_overlap_is_right_in_any_order(fn, order):
    """Dynamo does not guard on overlap, and Inductor is silently wrong; the results and the inputs are eager's."""
    compiled = thunderfx(fn)
    for make in order:
        ours, eagers = make(), make()
        torch.testing.assert_close(compiled(*ours), fn(*eagers))
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize(
    ("make", "overlap"), [(apart, False), (same_storage, True), (overlapping, True), (beside, False), (the_same, True)]
)
def test_overlap_is_of_memory(make, overlap):
    """Two parts of one storage that share no byte do not overlap."""
    guard = inplace.OverlapGuard(lambda *args: "compiled", lambda *args: "eager", [0])
    assert guard(*make(), 3, torch.empty(0)) == ("eager" if overlap else "compiled")


def test_overlap_of_what_is_only_read_does_not_matter():
    """Nobody writes into either."""
    guard = inplace.OverlapGuard(lambda *args: "compiled", lambda *args: "eager", [2])
    assert guard(*same_storage(), torch.ones(2)) == "compiled"
    assert guard(torch.ones(2), *same_storage()) == "eager"


def test_a_tensor_without_memory_overlaps_any():
    """A sparse one has several, and a wrapper none that can be asked for."""
    guard = inplace.OverlapGuard(lambda *args: "compiled", lambda *args: "eager", [0])
    assert guard(torch.ones(2), torch.ones(2).to_sparse()) == "eager"


def test_a_graph_that_writes_to_no_input_is_not_checked():
    """Only such a graph pays for the check."""
    assert inplace.inputs_written(captured(scale, torch.randn(4, 4))) == []
    torch._dynamo.reset()
    assert inplace.inputs_written(captured(scaled_sum, *apart())) == [0]


def test_running_statistics_are_written():
    """By the norm itself, which no underscore tells."""
    norm = torch.nn.BatchNorm1d(3)
    norm.num_batches_tracked = None
    norm.momentum = 0.1
    graph = captured(lambda x: norm(x), torch.randn(4, 3))
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    assert {name.rpartition("running_")[2] for name in (names[i] for i in inplace.inputs_written(graph))} == {
        "mean_",
        "var_",
    }


@needs_cxx
def test_inductor_is_not_asked_for_writes_that_it_gets_wrong():
    """A written input whose view is kept for the backward; a write through an expanded view (torch 2.13)."""

    def kept(x):
        v = x[:, 1]
        y = torch.sinc(v - 1)
        v.fill_(1)
        return y

    def expanded(x):
        v = x.detach().expand(2, 4, 4)
        v.zero_()
        return v.clamp(-1, 1)

    for fn in (kept, expanded):
        torch._dynamo.reset()
        assert_same(fn, thunderfx(fn), [torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()])
