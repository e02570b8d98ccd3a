"""Higher-order operators that thunder can take (checkpoint, autograd.Function), in the form in which it takes them.

What they contain is judged like any other graph, in support.py; here is their calling convention alone.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import randomness, structure

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
AUTOGRAD_FUNCTION = torch.ops.higher_order.autograd_function_apply

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
    if _is_new_form(node) and len(_returned(bodies(node)[1])) != len(operands):
        return "returns another number of gradients than it has inputs"
    return None


def _has_constant(body: GraphModule) -> bool:
    attributes = [_torch.attribute(node) for node in body.graph.find_nodes(op="get_attr")]
    return any(isinstance(attribute, torch.Tensor) for attribute in attributes)


def adapt(graph_module: GraphModule) -> None:
    """Write each autograd.Function of a graph as thunder 0.2.6 reads it, in place; its bodies must not be shared.

    thunder reads torch 2.9's form: both bodies take a context first, a single output or gradient stands by itself, and
    the call says which arguments are tensors. Torch 2.13 has no context, and tuples always (2.11 has the old form).
    """
    for node in list(graph_module.graph.find_nodes(op="call_function", target=AUTOGRAD_FUNCTION)):
        if not _is_new_form(node):
            continue
        forward, backward = bodies(node)
        outputs, saved = _returned(forward)
        _set_returned(forward, (outputs[0] if len(outputs) == 1 else outputs, list(saved)))
        gradients = _returned(backward)
        _set_returned(backward, gradients[0] if len(gradients) == 1 else gradients)
        for body in (forward, backward):
            first = next(iter(body.graph.nodes))
            with body.graph.inserting_before(first):
                body.graph.placeholder("ctx")
            _torch.generate_code(body)
        node.kwargs = {"args_tensor_mask": [True] * (len(node.args) - 2), "non_differentiable_idx": []}
        if len(outputs) == 1:
            _replace_by_only_element(node)
    _torch.generate_code(graph_module)


def _is_new_form(node: Node) -> bool:
    return "args_tensor_mask" not in node.kwargs


def bodies(node: Node) -> list[GraphModule]:
    """The graphs that a call of one of the two operators contains."""
    count = 1 if node.target is CHECKPOINT else 2
    return [_torch.attribute(argument) for argument in node.args[:count]]  # type: ignore[arg-type]


def _returned(body: GraphModule) -> Any:
    (output,) = body.graph.find_nodes(op="output")
    return output.args[0]


def _set_returned(body: GraphModule, value: Any) -> None:
    (output,) = body.graph.find_nodes(op="output")
    output.args = (value,)


def _replace_by_only_element(node: Node) -> None:
    for user in list(node.users):
        assert user.target is operator.getitem, user
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)
    node.meta["example_value"] = next(structure.tensors_of(node))
