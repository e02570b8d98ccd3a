"""Which nodes draw random numbers, and where thunder would draw others than eager does under the same seed.

Measured against lightning-thunder 0.2.6 on the CPU: without gradients its random operators draw eager's numbers. In a
region that has gradients, dropout and what is built on it is decomposed into uniform numbers, which are not the ones
that eager's Bernoulli draws are made of; and multinomial, which has no gradient, fails there. Without gradients dropout
may change places with another random operator.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import structure

# By name, since each exists as a function, a method, in torch.nn.functional, and with a trailing underscore.
_DRAWING_NAMES = frozenset(
    {
        "alpha_dropout",
        "bernoulli",
        "cauchy",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "exponential",
        "feature_alpha_dropout",
        "feature_dropout",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "geometric",
        "gumbel_softmax",
        "log_normal",
        "multinomial",
        "native_dropout",
        "normal",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "rrelu",
        "uniform",
    }
)


def draws(node: Node) -> bool:
    """Whether a node draws random numbers, itself or in a body."""
    if overloads := structure.overloads_of(node):
        return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
    bodies = [_torch.attribute(operand) for operand in node.all_input_nodes if operand.op == "get_attr"]
    if any(draws(inner) for body in bodies if isinstance(body, GraphModule) for inner in structure.calls(body)):
        return True
    if node.target is F.scaled_dot_product_attention:
        return bool(structure.argument(node, 4, "dropout_p", 0.0) != 0.0)
    return structure.name_of(node).rstrip("_") in _DRAWING_NAMES and not _is_off(node)


def differing_from_eager(nodes: list[Node], *, with_gradients: bool) -> list[Node]:
    """The nodes that would not draw, in thunder, what they draw in eager (or would fail)."""
    differing = [node for node in nodes if node.target in _differing() and draws(node)]
    drawing = [node for node in nodes if draws(node)]
    if with_gradients or len(drawing) > len([node for node in drawing if node.target is F.dropout]):
        return differing
    return []


def differs_in_inductor(node: Node) -> bool:
    """Whether Inductor too, even in the mode in which it asks eager for random numbers, draws others.

    On torch 2.9 it leaves out a draw whose numbers nobody reads.
    """
    if draws(node) and not node.users:
        return True
    return not _torch.INDUCTOR_DRAWS_RRELU and structure.name_of(node).rstrip("_") == "rrelu"


@functools.cache
def _differing() -> frozenset[Any]:
    return frozenset(
        {
            F.dropout,
            F.rrelu,
            F.scaled_dot_product_attention,
            torch.Tensor.multinomial,
            torch.dropout,
            torch.multinomial,
            torch.rrelu,
            "multinomial",
        }
    )


def _is_off(node: Node) -> bool:
    """Whether a dropout is one that drops nothing: in evaluation, or with probability 0."""
    if node.target is F.dropout:
        return structure.argument(node, 1, "p", 0.5) == 0 or structure.argument(node, 2, "training", True) is False
    return False
