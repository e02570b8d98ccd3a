"""Whether what is written shares memory with something else: more of it in tests/graph/test_inplace.py."""

import torch

from thunder_fx.portable.overlaps import overlap


def test_where_nothing_is_written_nothing_overlaps():
    """Though one of the inputs has no memory of which that could be told."""
    assert not overlap([torch.eye(3).to_sparse(), torch.ones(3)], ())
    assert overlap([torch.eye(3).to_sparse(), torch.ones(3)], [1])
