"""Which nodes thunder can run, and the reason for each that it cannot. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.graph import higher_order, inplace, randomness, structure
from thunder_fx.subgraph import SplitReason, SplitReasonType, describe

# Modules whose builtins mean on thunder's proxies what they mean on tensors: dynamo's graphs call operator.add and the
# like. Any other builtin is torch's, and would compute a real tensor while thunder traces.
_BUILTINS_ON_PROXIES = frozenset({"_operator", "builtins", "math"})


def reasons_against(
    graph_module: GraphModule, options: Mapping[str, Any], *, with_gradients: bool | None = None
) -> dict[Node, SplitReason]:
    """Why thunder cannot run a node, for each node that it cannot run, in the graph's order.

    `options` are thunder.jit's; a graph's nodes carry the fake values that Dynamo gave them. `with_gradients` is read
    off the graph's inputs where it is not given.
    """
    if with_gradients is None:
        with_gradients = _has_gradients(graph_module)
    nodes = structure.calls(graph_module)
    reasons = _reasons_of_stretches(graph_module, nodes)
    for node in randomness.differing_from_eager(nodes, with_gradients=with_gradients):
        reasons.setdefault(node, _unsupported(node, "would not draw eager's random numbers in thunder"))
    for node in nodes:
        if node not in reasons and (reason := _reason_against(node, options, with_gradients)) is not None:
            reasons[node] = reason
    for node in nodes:
        _keep_elements_together(node, reasons)
    return {node: reasons[node] for node in nodes if node in reasons}


def _has_gradients(graph_module: GraphModule) -> bool:
    """Whether autograd takes part in a graph: thunder then treats each region's nodes alike, in need of it or not."""
    sources = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    return any(tensor.requires_grad for node in sources for tensor in structure.tensors_of(node))


def _reasons_of_stretches(graph_module: GraphModule, nodes: list[Node]) -> dict[Node, SplitReason]:
    """Nodes that go to another compiler because of what stands around them."""
    reasons: dict[Node, SplitReason] = {}
    for stretch in inplace.stretches(graph_module):
        for node in nodes[stretch.first : stretch.last + 1]:
            reasons.setdefault(
                node, _unsupported(node, f"shares a stretch with the in-place write {_name(stretch.writer)}")
            )
    for first, last in _derivative_stretches(nodes):
        for node in nodes[first : last + 1]:
            reasons.setdefault(node, _unsupported(node, "is differentiated within the graph (torch.func)"))
    for hooked in (node for node in nodes if structure.name_of(node) in _AUTOGRAD_STATE):
        # A hook hangs on a tensor of the region that registers it: what uses the tensor must be of that region too.
        for node in nodes:
            reasons.setdefault(node, _unsupported(node, f"stands in one graph with {hooked.name}"))
    level = 0
    for node in nodes:
        # Both of torch's spellings: torch._C._functorch's, and torch._functorch.predispatch's (torch 2.9).
        name = structure.name_of(node)
        enters, leaves = name.endswith("_increment_nesting"), name.endswith("_decrement_nesting")
        level += enters
        if level > 0 or leaves:
            reasons.setdefault(node, _unsupported(node, "is inside a functorch level (vmap, grad, jvp, ...)"))
        level -= leaves
    return reasons


# Methods that change how autograd treats a tensor, on that tensor alone.
_AUTOGRAD_STATE = ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad")


def _derivative_stretches(nodes: list[Node]) -> list[tuple[int, int]]:
    """From the first functorch call to the last, if a derivative is taken: its parts belong to one autograd graph."""
    names = [structure.name_of(node) for node in nodes]
    if not any("grad_increment" in name or "autograd_grad" in name or "jvp_increment" in name for name in names):
        return []
    modules = [getattr(node.target, "__module__", None) or "" for node in nodes]
    levels = [
        position
        for position, (name, module) in enumerate(zip(names, modules, strict=True))
        if "functorch" in module or name.endswith("_nesting") or "autograd_grad" in name
    ]
    return [(levels[0], levels[-1])]


def _reason_against(node: Node, options: Mapping[str, Any], with_gradients: bool) -> SplitReason | None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _reason_against_higher_order(node, options, with_gradients)
    if structure.name_of(node) in _OTHER_LAYOUT and any(user.op == "output" for user in node.users):
        return _unsupported(node, "would have other strides in thunder, and is a result of the graph")
    if _is_an_operand_to_thunder(node):
        return _unsupported(node, "would return its operand itself in thunder")
    if _broadcasts_a_differentiable_scalar(node):
        return _unsupported(node, "would lose the gradient of a 0-dimensional CPU tensor in thunder")
    try:
        theirs = _thunder.node_support(node, options)
    except Exception as error:  # thunder.dynamo's helper asserts, and calls what a node names
        return _reason(node, SplitReasonType.EXCEPTION_PROXY_THUNDER_OP, _failed(node), describe(error))
    if theirs is not None:
        return _reason(node, SplitReasonType[theirs.reason_type.name], theirs.info, theirs.exception)
    if _computes_while_tracing(node):
        return _reason(node, SplitReasonType.MISSING_OP_SUPPORT, f"{_name(node)} didn't have any mapping in thunder.")
    return None


# thunder (0.2.6) copies a diagonal, which eager views, and lays out some einsums in another order.
_OTHER_LAYOUT = frozenset({"diagonal", "einsum"})

# Eager copies where these change nothing.
_COPYING = frozenset({"flip", "repeat", "repeat_interleave", "tile"})


def _is_an_operand_to_thunder(node: Node) -> bool:
    """thunder drops what changes nothing, and returns the operand, where eager makes a copy or a view with a grad_fn.

    Told apart by who can see it: an input, or two results of the graph. Inside of it nobody can.
    """
    is_result = any(user.op == "output" for user in node.users)
    is_copying = structure.name_of(node) in _COPYING
    if not is_result and not is_copying:
        return False
    for result in structure.tensors_of(node):
        for operand in (t for n in node.all_input_nodes for t in structure.tensors_of(n)):
            if operand is result or not structure.same_geometry(operand, result):
                continue
            if _torch.storage_of(operand) != _torch.storage_of(result):
                return is_copying
            if is_result and _torch.storage_of(result) in _visible_storages(node):
                return True
    return False


def _visible_storages(node: Node) -> set[int | None]:
    """The storages of the graph's inputs, and of its results other than `node`."""
    nodes = node.graph.nodes
    visible = [n for n in nodes if n.op in ("placeholder", "get_attr") or any(user.op == "output" for user in n.users)]
    return {_torch.storage_of(tensor) for n in visible if n is not node for tensor in structure.tensors_of(n)}


# Make the larger shape themselves, where thunder's gradient sums; elementwise operators leave it to the executor.
_SHAPE_OPERATORS = frozenset(
    {"broadcast_to", "expand", "expand_as", "getitem", "reshape", "stack", "unsqueeze", "view"}
)


def _broadcasts_a_differentiable_scalar(node: Node) -> bool:
    """thunder (0.2.6) takes a 0-dimensional CPU tensor for a number, and gives it the gradient of the whole result.

    So `x.sin() + x.sum()` has right values and, silently, wrong gradients (or fails, where the shapes do not allow it).
    """
    operands = [tensor for operand in node.all_input_nodes for tensor in structure.tensors_of(operand)]
    scalars = [t for t in operands if t.ndim == 0 and t.device.type == "cpu" and t.requires_grad]
    if not scalars or not any(tensor.ndim > 0 for tensor in structure.tensors_of(node)):
        return False
    name = structure.name_of(node)
    return name not in _SHAPE_OPERATORS


def _computes_while_tracing(node: Node) -> bool:
    """thunder.dynamo takes any builtin for supported that runs on proxies: torch.eye(4) runs, on none of them."""
    target = node.target
    is_builtin = node.op == "call_function" and type(target).__name__ == "builtin_function_or_method"
    return (
        is_builtin
        and getattr(target, "__module__", None) not in _BUILTINS_ON_PROXIES
        and not _thunder.has_symbol(target)
    )


def _reason_against_higher_order(node: Node, options: Mapping[str, Any], with_gradients: bool) -> SplitReason | None:
    """thunder runs the call only if it can run every node of every body."""
    if node.target not in (higher_order.CHECKPOINT, higher_order.AUTOGRAD_FUNCTION):
        return _reason(node, SplitReasonType.MISSING_OP_SUPPORT, f"{_name(node)} didn't have any mapping in thunder.")
    obstacle = higher_order.obstacle(node)
    if obstacle is not None:
        return _unsupported(node, obstacle)
    for body in higher_order.bodies(node):
        for inner in reasons_against(body, options, with_gradients=with_gradients).values():
            return _reason(node, inner.reason_type, f"{_name(node)} contains: {inner.info}", inner.exception)
    return None


def _keep_elements_together(node: Node, reasons: dict[Node, SplitReason]) -> None:
    """An element of a tuple goes where the tuple is made: an Inductor region cannot return a tuple in its outputs."""
    if node not in reasons or not isinstance(node.meta.get("example_value"), (list, tuple)):
        return
    for user in node.users:
        if user.op != "output":
            reasons.setdefault(user, _unsupported(user, f"reads an element of {node.name}, which is not thunder's"))


def autocasts_reaching_over(graph_module: GraphModule, reasons: Mapping[Node, SplitReason]) -> list[SplitReason]:
    """A reason for each autocast that holds over nodes of several compilers: no single one of them sees it whole."""
    found, open_ones = [], list[Node]()
    for node in structure.calls(graph_module):
        if node.target is torch.amp.autocast_mode._enter_autocast:
            open_ones.append(node)
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            open_ones = [enter for enter in open_ones if enter is not node.args[0]]
        elif node in reasons:
            found += [enter for enter in open_ones if enter not in reasons and enter not in found]
    why = "reaches over regions that thunder does not run, and is repeated in each region"
    return [_unsupported(node, why) for node in found]


def _unsupported(node: Node, why: str) -> SplitReason:
    return _reason(node, SplitReasonType.UNSUPPORTED_NODE, f"{_name(node)} {why}.")


def _failed(node: Node) -> str:
    return f"Failed while asking thunder about {_name(node)}, see exception field"


def _name(node: Node) -> str:
    return f"node with name: {node.name} and target: {node.target}"


def _reason(node: Node, kind: SplitReasonType, info: str, exception: str | None = None) -> SplitReason:
    return SplitReason(kind, info, exception, node=node.name, source=structure.source_line(node))
