"""Copies of what a call is given: the same layout, values and sharing, in other memory."""

import pytest
import torch

from thunder_fx.portable.copies import copied


def conjugated():
    return torch.randn(4, dtype=torch.complex64).conj()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4).t()[1:, ::2],
        lambda: torch.randn(3, 1).expand(3, 5),
        lambda: conjugated(),
        lambda: conjugated().imag,
        lambda: torch.randn(2, 0, 3),
        lambda: torch.randn(3).to(torch.float8_e4m3fn),
        lambda: torch.randn(3).requires_grad_(),
        lambda: torch.eye(3).to_sparse(),
    ],
    ids=["strided", "expanded", "conjugate", "negative", "empty", "float8", "leaf", "sparse"],
)
def test_a_copy_is_laid_out_as_the_original(make):
    """Lazily conjugated and negated views stay such views."""
    value = make()
    (copy,) = copied([value])
    for name in ("dtype", "shape", "layout", "requires_grad", "is_leaf"):
        assert getattr(copy, name) == getattr(value, name)
    assert (copy.is_conj(), copy.is_neg()) == (value.is_conj(), value.is_neg())
    if value.layout is torch.strided:
        assert (copy.stride(), copy.storage_offset()) == (value.stride(), value.storage_offset())
    assert torch.equal(copy.to_dense().detach().float(), value.to_dense().detach().float())


def test_copies_share_memory_where_the_originals_do():
    """A write into one shows in the other, and not in the originals; lazily conjugated ones too."""
    value = torch.ones(4, dtype=torch.complex64) * 1j
    a, b, number = copied([value, value.conj()[1:], 3])
    a[2] = 5j
    assert number == 3
    assert b.tolist() == [-1j, -5j, -1j]
    assert value.tolist() == [1j] * 4


def test_a_detached_copy_needs_no_gradient():
    """Whatever the original was made of."""
    leaf = torch.ones(2, requires_grad=True)
    assert [copy.requires_grad for copy in copied([leaf, leaf * 2], detached=True)] == [False, False]
