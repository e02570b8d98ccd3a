"""What every test starts from: fresh Dynamo caches, and a seed."""

import pytest
import torch

import thunder_fx  # noqa: F401  # first: from here on, `import thunder` works on every torch


@pytest.fixture(autouse=True)
def fresh():
    """Each test compiles anew and draws the same numbers, whatever ran before it in this process."""
    torch._dynamo.reset()
    torch.manual_seed(0)
