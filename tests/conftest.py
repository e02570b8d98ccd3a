"""What every test starts from: fresh Dynamo caches, and a seed."""

import pytest
import torch

import thunder_fx  # noqa: F401  # first: from here on, `import thunder` works on every torch


@pytest.fixture(autouse=True)
def fresh():
    """Each test compiles anew and draws the same numbers, whatever ran before it in this process."""
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def grad_mode_is_left_as_it_was():
    """A region that sets a mode and does not set it back would turn autograd off for all that follows."""
    yield
    was_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert was_enabled
