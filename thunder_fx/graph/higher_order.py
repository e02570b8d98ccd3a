"""Higher-order operators that thunder can take (checkpoint, autograd.Function), in the form in which it takes them.

And the form in which eager takes a checkpoint. What they contain is judged like any other graph, in support.py; here is
their calling convention alone.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import randomness, structure
from thunder_fx.portable import autograd_functions, checkpoints

CHECKPOINT = checkpoints.CHECKPOINT
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


def runs_in_eager(graph_module: GraphModule) -> GraphModule:
    """The graph, or a copy of it where its checkpoints would not run eager as eager's own do."""
    if not any(_contains_checkpoint(node) for node in structure.calls(graph_module)):
        return graph_module
    own = structure.copy_structure(graph_module)
    checkpoints.to_eager_form(own)
    _torch.generate_code(own)
    return own


def _contains_checkpoint(node: Node) -> bool:
    if node.target is CHECKPOINT:
        return True
    operands = [_torch.attribute(operand) for operand in node.all_input_nodes if operand.op == "get_attr"]
    graphs = [operand for operand in operands if isinstance(operand, GraphModule)]
    return any(_contains_checkpoint(inner) for graph in graphs for inner in structure.calls(graph))


def bodies(node: Node) -> list[GraphModule]:
    """The graphs that a call of one of the two operators contains."""
    count = 1 if node.target is CHECKPOINT else 2
    return [_torch.attribute(argument) for argument in node.args[:count]]  # type: ignore[arg-type]
