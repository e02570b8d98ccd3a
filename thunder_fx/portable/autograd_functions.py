"""autograd.Function in a captured graph, in the form in which thunder 0.2.6 reads it."""

from __future__ import annotations

import operator
from typing import Any

import torch

AUTOGRAD_FUNCTION = torch.ops.higher_order.autograd_function_apply


def to_old_form(graph_module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """Write each autograd.Function of a graph as torch 2.9 did, in place; its bodies must not be shared.

    In that form both bodies take a context first, a single output or gradient stands by itself, and the call says which
    arguments are tensors. Torch 2.13 has no context, and tuples always (2.11 has the old form). Gives the bodies that
    were changed; their code, as the graph's own, is to be generated anew.
    """
    changed: list[torch.fx.GraphModule] = []
    for node in list(graph_module.graph.find_nodes(op="call_function", target=AUTOGRAD_FUNCTION)):
        if not is_new_form(node):
            continue
        forward, backward = (getattr(graph_module, str(body.target)) for body in node.args[:2])
        outputs, saved = returned(forward)
        _set_returned(forward, (outputs[0] if len(outputs) == 1 else outputs, list(saved)))
        gradients = returned(backward)
        _set_returned(backward, gradients[0] if len(gradients) == 1 else gradients)
        for body in (forward, backward):
            first = next(iter(body.graph.nodes))
            with body.graph.inserting_before(first):
                body.graph.placeholder("ctx")
            changed.append(body)
        node.kwargs = {"args_tensor_mask": [True] * (len(node.args) - 2), "non_differentiable_idx": []}
        if len(outputs) == 1:
            _replace_by_only_element(node)
    return changed


def is_new_form(node: torch.fx.Node) -> bool:
    return "args_tensor_mask" not in node.kwargs


def returned(body: torch.fx.GraphModule) -> Any:
    (output,) = body.graph.find_nodes(op="output")
    return output.args[0]


def _set_returned(body: torch.fx.GraphModule, value: Any) -> None:
    (output,) = body.graph.find_nodes(op="output")
    output.args = (value,)


def _replace_by_only_element(node: torch.fx.Node) -> None:
    for user in list(node.users):
        assert user.target is operator.getitem, user
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)
    if isinstance(node.meta.get("example_value"), (tuple, list)):
        node.meta["example_value"] = node.meta["example_value"][0]
