"""What the tests share: comparing with eager, small Modules, processes of their own."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Inductor compiles its regions for the CPU by a C++ compiler; without one they run eager, and say so.
needs_cxx = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="Inductor needs a C++ compiler, and finds none here"
)


class Block(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def sine(x):
    return x.sin() + 1


def splits(x):
    """Thunder has no sinc of its own: three regions."""
    return torch.sinc(x.sin()) + torch.cos(x)


def outcome(fn, *inputs, seed=1):
    """Outputs, gradients, inputs after the call, and the generator's state, of a call on copies of the inputs.

    The outputs are weighted before the backward, so that a gradient that goes to the wrong element shows.
    """
    torch.manual_seed(seed)
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    # A leaf that needs a gradient cannot be written to: what the function gets is no leaf.
    result = fn(*(x * 1 if x.requires_grad else x for x in inputs))
    outputs = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    loss = sum((x * torch.arange(1, x.numel() + 1).reshape(x.shape)).sum() for x in outputs if x.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return {
        "outputs": [x.detach() for x in outputs],
        "differentiable": [x.requires_grad for x in outputs],
        "gradients": [x.grad for x in inputs],
        "generator": torch.get_rng_state(),
    }


def assert_same_as_eager(compiled, eager, *inputs, **tolerance):
    """Outputs, gradients, dtypes and random stream of `compiled` equal those of `eager`."""
    compiled(*(x.detach().clone().requires_grad_(x.is_floating_point()) * 1 for x in inputs))
    torch.testing.assert_close(outcome(compiled, *inputs), outcome(eager, *inputs), **tolerance)


def run_python(code, *, env=None, check=True):
    """Run code in a process of its own; its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=300
    )
    if check:
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout
    return done
