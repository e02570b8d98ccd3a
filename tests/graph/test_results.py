"""What a region returns is laid out, and shares memory, as in eager, whoever compiled it."""

import torch

from tests.helpers import needs_cxx
from thunder_fx import thunderfx
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
