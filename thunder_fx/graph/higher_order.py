"""Higher-order operators that thunder can take (checkpoint, autograd.Function), in the form in which it takes them.

What they contain is judged like any other graph, in support.py; here is their calling convention alone.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import autograd_functions, randomness

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
AUTOGRAD_FUNCTION = autograd_functions.AUTOGRAD_FUNCTION

_OPERANDS = (torch.Tensor, torch.SymInt)


def obstacle(node: Node) -> str | None:
    """What in the call itself keeps thunder from one of the two operators above; None if nothing does."""
    if not all(isinstance(argument, Node) for argument in node.args):
        return "has an argument that is no value of the graph"
    if not all(isinstance(body, GraphModule) for body in bodies(node)):
        return "has a body that is no graph"
    if any(_has_constant(body) for body in bodies(node)):
        return "reads a constant in its body"  # which would have to be an input, to be a proxy
    if node.target is CHECKPOINT:
        # thunder computes the body again without restoring the generator: dropout would drop others in backward.
        return "draws random numbers in a checkpoint" if randomness.draws(node) else None
    if node.kwargs.get("non_differentiable_idx") or node.kwargs.get("dirty_idx"):
        return "marks outputs as dirty or as not differentiable"
    operands = node.args[2:]
    if not all(isinstance(operand.meta.get("example_value"), _OPERANDS) for operand in operands):  # type: ignore[union-attr]
        return "has an argument that is neither a tensor nor a symbolic size"
    if autograd_functions.is_new_form(node) and len(autograd_functions.returned(bodies(node)[1])) != len(operands):
        return "returns another number of gradients than it has inputs"
    return None


def _has_constant(body: GraphModule) -> bool:
    attributes = [_torch.attribute(node) for node in body.graph.find_nodes(op="get_attr")]
    return any(isinstance(attribute, torch.Tensor) for attribute in attributes)


def adapt(graph_module: GraphModule) -> None:
    """Write each autograd.Function of a graph as thunder reads it, in place; its bodies must not be shared."""
    for body in autograd_functions.to_old_form(graph_module):
        _torch.generate_code(body)
    _torch.generate_code(graph_module)


def bodies(node: Node) -> list[GraphModule]:
    """The graphs that a call of one of the two operators contains."""
    count = 1 if node.target is CHECKPOINT else 2
    return [_torch.attribute(argument) for argument in node.args[:count]]  # type: ignore[arg-type]
