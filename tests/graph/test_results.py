"""What a region returns is laid out, and shares memory, as in eager, whoever compiled it."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers import needs_cxx
from thunder_fx import CompilerType, get_subgraph_info, thunderfx
from thunder_fx.graph import results


@needs_cxx
def test_what_a_compiler_lays_out_otherwise_is_laid_out_as_in_eager():
    """A transposed tensor and a broadcast one of another dtype, in thunder; a cumsum of equal numbers, in Inductor."""

    def sums(x):
        return torch.arange(4.0) + x.t()

    def cumsum(x):
        y = torch.ones(4, 4, dtype=torch.int64)
        v = y.t()
        v.masked_fill_(v > 0, -1)
        return torch.ones(4, 4, dtype=torch.int64).cumsum(0) + torch.sinc(x).long() * 0, y

    for fn in (sums, cumsum):
        torch._dynamo.reset()
        compiled = thunderfx(fn)
        x = torch.rand(4, 4, dtype=torch.float64)
        for _ in range(2):
            for ours, eagers in zip(*(torch.utils._pytree.tree_leaves(f(x)) for f in (compiled, fn)), strict=True):
                torch.testing.assert_close(ours, eagers, check_stride=True)


def test_strides_that_mean_nothing_are_not_mended():
    """How far it is to the next of a single element, or of none: a copy would no longer be a view of the input."""
    view = torch.rand(4, 10)[:, :1]
    assert results.mending(view, (results.InEager((10, 7)),)) is None
    assert results.mending((view[:0],), (results.InEager((1, 1)),)) is None
    mended = results.mending(view, (results.InEager((1, 1)),))(view)
    assert mended.stride() == (1, 1)
    torch.testing.assert_close(mended, view)


def storages(*values):
    """For each tensor the place of the first that shares its storage."""
    tensors = torch.utils._pytree.tree_leaves(values)
    pointers = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [pointers.index(pointer) for pointer in pointers]


def assert_shown_as_in_eager(fn, x, **options):
    """Values, strides, and who shares memory with whom, of the first call and of the next."""
    torch._dynamo.reset()
    compiled, expected = thunderfx(fn, **options), fn(x)
    for _ in range(2):
        ours = compiled(x)
        torch.testing.assert_close(ours, expected, check_stride=True)
        assert storages(x, ours) == storages(x, expected)
    return compiled


with_gaps = torch.rand(6, 8)[::2, ::2]
by_column = torch.rand(4, 3).t()


@needs_cxx
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("needs_gradients", [True, False])
@pytest.mark.parametrize("x", [with_gaps, by_column, torch.rand(3, 4)], ids=["with gaps", "by column", "by row"])
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.flip(()),
        lambda x: x.repeat(1, 1),
        lambda x: x[:1].repeat(3, 1),
        lambda x: x[:1].tile((3, 1)),
        lambda x: x[:1].repeat_interleave(3, 0),
        lambda x: x[:1].repeat(x.shape[0], 1),
    ],
    ids=["flip nothing", "repeat once", "repeat a row", "tile", "repeat_interleave", "as often as there are rows"],
)
def test_what_eager_copies_is_a_copy(copy, x, needs_gradients, dynamic):
    """And so is a view of it: to thunder these are the operand itself, or a row of it expanded."""
    x = x.detach().requires_grad_(needs_gradients)
    for view in (lambda y: y, lambda y: y[0], lambda y: (y.t(), y[1:])):
        assert_shown_as_in_eager(lambda x, view=view: view(copy(x)), x, dynamic=dynamic)


@needs_cxx
def test_a_parameter_is_not_written_through_what_was_repeated_of_it():
    """A learned token for batches of several sizes: by default the second size makes the batch symbolic."""
    token = torch.nn.Parameter(torch.ones(1, 3))
    compiled = thunderfx(lambda n: token.repeat(n, 1))
    for n in (2, 3, 4):
        compiled(n).detach()[0] = 7
        assert token.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "by_row",
    [
        lambda x: F.layer_norm(x.t(), (4,)),
        lambda x: x.t().masked_fill(x.t() > 0, 1.0),
        lambda x: x.masked_fill((x.t() > 0).t(), 1.0),
    ],
    ids=["layer_norm", "masked_fill", "masked_fill by a transposed mask"],
)
def test_what_eager_lays_out_by_row_is_laid_out_so_by_thunder(by_row, dynamic):
    """At the operator itself: what is computed of it is laid out as in eager too, and two results share one memory."""
    x = torch.randn(4, 5, requires_grad=True)
    for rest in (lambda y: y, lambda y: (y, y[0]), lambda y: (y.sin(), y[0])):
        compiled = assert_shown_as_in_eager(lambda x, rest=rest: rest(by_row(x)), x, dynamic=dynamic)
        (region,) = get_subgraph_info(compiled)[0].regions
        assert region.compiler is CompilerType.THUNDER


@needs_cxx
def test_what_a_region_lays_out_otherwise_and_shows_twice_is_not_thunders():
    """Mended one by one, two results would share no memory: so such an einsum is Inductor's."""

    def fn(x):
        y = torch.einsum("ij,kj->ki", x, x).sin()
        return y, y[0]

    assert_shown_as_in_eager(fn, torch.randn(4, 5, requires_grad=True))


@pytest.mark.parametrize("shape", [(3, 5), (4, 2)])
def test_symbolic_sizes_are_mended_in_each_call(shape):
    """By row, and in another order: whatever call is the first in which a compiler lays a result out otherwise."""

    def layouts(x):
        return x.t() + 1, x + 1, x.new_zeros(2, *x.shape).permute(1, 2, 0)

    x = torch.rand(2, 3).t().contiguous().t()  # by column
    infos = []
    compiled = torch.compile(layouts, backend=lambda graph, inputs: infos.append(results.in_eager(graph)) or graph)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    compiled(x)
    assert [(eager.strides, eager.order) for eager in infos[0]] == [(None, (0, 1)), (None, (1, 0)), (None, (2, 0, 1))]
    value = torch.rand(2, *shape)
    for order, given in (((0, 1), value[0].t()), ((1, 0), value[0]), ((2, 0, 1), value.permute(1, 2, 0).contiguous())):
        mend = results.mending(given, (results.InEager(order=order),))
        mended = mend(given)
        assert mended.permute(order).is_contiguous()
        torch.testing.assert_close(mended, given)
        assert mend(mended) is mended


def test_a_symbolic_result_with_gaps_has_no_order():
    """Its strides hang on its operand's, and views are views in thunder too."""
    infos = []
    fn = torch.compile(
        lambda x: (x[::2], x[:, 1:]), backend=lambda graph, _: infos.append(results.in_eager(graph)) or graph
    )
    x = torch.rand(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    fn(x)
    assert [(eager.strides, eager.order) for eager in infos[0]] == [(None, None), (None, None)]
