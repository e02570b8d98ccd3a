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


@pytest.fixture
def peer():
    """thunder.dynamo, made to run on torch 2.12 and later, where its lazy split graphs cannot be traced."""
    import thunder.dynamo.compiler as compiler
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    real = compiler._splitter

    def eager_split(*args, **kwargs):
        with _use_lazy_graph_module(False):
            return real(*args, **kwargs)

    compiler._splitter = eager_split
    yield compiler
    compiler._splitter = real
