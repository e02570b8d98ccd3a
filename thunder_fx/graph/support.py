"""Which nodes thunder can run, and the reason for each that it cannot. Decides; changes nothing.

A node is asked about in three steps: what stands around it (a write, a functorch level, a hook, a random stream), what
is known of thunder's faults (_FAULTS), and last whether thunder can trace it (tracing.refusal), once per signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.graph import (
    dependencies,
    functorch,
    gradients,
    higher_order,
    inplace,
    modes,
    randomness,
    structure,
    tracing,
    writes,
)
from thunder_fx.graph.modes import Modes
from thunder_fx.graph.tracing import Refusal
from thunder_fx.subgraph import SplitReason, SplitReasonType

# Modules whose builtins mean on thunder's proxies what they mean on tensors: dynamo's graphs call operator.add and the
# like. Any other builtin is torch's, and would compute a real tensor while thunder traces.
_BUILTINS_ON_PROXIES = frozenset({"_operator", "builtins", "math"})


def reasons_against(graph_module: GraphModule, options: Mapping[str, Any]) -> dict[Node, SplitReason]:
    """Why thunder cannot run a node, for each node that it cannot run, in the graph's order.

    `options` are thunder.jit's; a graph's nodes carry the fake values that Dynamo gave them.
    """
    return Judge(options, graph_module).reasons_against(graph_module, modes.ambient())


class Judge:
    """Says what thunder can run of a graph; with its nested graphs, which take part in autograd if it does."""

    def __init__(self, options: Mapping[str, Any], graph_module: GraphModule) -> None:
        self.options = options
        self.with_gradients = gradients.takes_part(graph_module)
        self.executors = _thunder.resolved_executors(options)
        self.shared_answers = _answers if _thunder.are_registered(self.executors) else {}

    def reasons_against(self, graph_module: GraphModule, initial: Modes) -> dict[Node, SplitReason]:
        nodes = structure.calls(graph_module)
        modes_at = modes.around(graph_module, initial)
        reasons = _reasons_of_surroundings(graph_module, nodes)
        for node in randomness.differing_from_eager(nodes, with_gradients=self.with_gradients):
            reasons.setdefault(node, _unsupported(node, "would not draw eager's random numbers in thunder"))
        for node in nodes:
            if node not in reasons and (reason := self.reason_against(node, modes_at[node])) is not None:
                reasons[node] = reason
        for node in nodes:
            _keep_elements_together(node, reasons)
        return {node: reasons[node] for node in nodes if node in reasons}

    def reason_against(self, node: Node, around: Modes) -> SplitReason | None:
        """Why thunder cannot run a node, whatever stands around it."""
        if isinstance(node.target, _torch.HigherOrderOperator):
            return self._reason_against_higher_order(node, around)
        faults = _FAULTS + (_GRADIENT_FAULTS if self._differentiates(node, around) else ())
        for is_fault, why in faults:
            if is_fault(node):
                return _unsupported(node, why)
        if not around.is_grad_enabled and _shows_that_it_needs_gradients(node):
            return _unsupported(node, "is a view under no_grad, which needs gradients all the same")
        if node.target in _torch.MODE_SETTERS:
            return None
        if (lacking := _lacking(node, self.executors)) is not None:
            return _reason(node, SplitReasonType.MISSING_OP_SUPPORT, f"{_name(node)} {lacking}.")
        refused = self._refusal(node, around)
        if refused is None:
            return None
        see = "" if refused.exception is None else ", see exception field"
        return _reason(node, refused.kind, f"{refused.why} {_name(node)}{see}", refused.exception)

    def _differentiates(self, node: Node, around: Modes) -> bool:
        return tracing.differentiates(node, around) and not self.options.get("disable_torch_autograd")

    def _reason_against_higher_order(self, node: Node, around: Modes) -> SplitReason | None:
        """thunder runs the call only if it can run every node of every body."""
        if node.target not in (higher_order.CHECKPOINT, higher_order.AUTOGRAD_FUNCTION):
            return _reason(node, SplitReasonType.MISSING_OP_SUPPORT, f"{_name(node)} {_NO_MAPPING}.")
        obstacle = higher_order.obstacle(node)
        if obstacle is not None:
            return _unsupported(node, obstacle)
        for body in higher_order.bodies(node):
            for inner in self.reasons_against(body, around).values():
                return _reason(node, inner.reason_type, f"{_name(node)} contains: {inner.info}", inner.exception)
        return None

    def _refusal(self, node: Node, around: Modes) -> Refusal | None:
        """tracing.refusal, asked once per signature."""
        key = _signature(node, around, self.executors, self.options)
        if key is None:
            return tracing.refusal(node, self.options, around)
        answer = self.shared_answers.get(key, _UNASKED)
        if answer is _UNASKED:
            answer = tracing.refusal(node, self.options, around)
            if len(self.shared_answers) >= _MOST_ANSWERS:
                self.shared_answers.clear()
            self.shared_answers[key] = answer
        return answer


# thunder's answers, by signature, for as long as the process lives: text only, and a bounded number. Graphs compiled
# with executors that are not registered have answers of their own, since the keys hold the executors.
_answers: dict[Any, Refusal | None] = {}
_MOST_ANSWERS = 20_000
_UNASKED = Refusal(SplitReasonType.UNSUPPORTED_NODE, "")


def _signature(node: Node, around: Modes, executors: tuple[Any, ...], options: Mapping[str, Any]) -> Any | None:
    """Everything that thunder's answer depends on; None where some of it cannot be compared.

    The symbol itself is part of it: someone may register another one for the same function.
    """
    symbol = _thunder.symbol_for(structure.function_of(node))
    if (
        symbol is None
        and node.op != "call_method"
        and getattr(node.target, "__module__", "") not in _BUILTINS_ON_PROXIES
    ):
        return None
    try:
        leaves = (_leaf(node.args), _leaf(dict(node.kwargs)))
        surroundings = (torch.get_default_dtype(), torch.get_default_device(), options.get("langctx"))
        key = (
            node.target,
            symbol,
            *leaves,
            gradients.is_constant(node),
            around,
            executors,
            bool(options.get("disable_torch_autograd")),
            surroundings,
        )
        hash(key)
    except (TypeError, _NotComparable):
        return None
    return key


class _NotComparable(Exception):
    pass


_COMPARABLE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def _leaf(value: Any) -> Any:
    """An argument of a node, to compare by: tensors by metadata, all else by value (1, 1.0 and True differ)."""
    if isinstance(value, Node):
        value = structure.value_of(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise _NotComparable
        sizes = (*map(_leaf, value.shape), *map(_leaf, value.stride()))
        return (type(value), value.dtype, value.device, value.ndim, sizes, value.requires_grad)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(value), _torch.expression(value), _torch.hint(value))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_leaf, value))
    if isinstance(value, dict):
        return (dict, *((name, _leaf(item)) for name, item in sorted(value.items())))
    if isinstance(value, slice):
        return (slice, _leaf(value.start), _leaf(value.stop), _leaf(value.step))
    if isinstance(value, _COMPARABLE):
        # Distinguishes 0.0 from -0.0 too.
        return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    raise _NotComparable


_NO_MAPPING = "didn't have any mapping in thunder"


def _lacking(node: Node, executors: tuple[Any, ...]) -> str | None:
    """What thunder lacks for a node, by its name alone; None if there is something to ask."""
    function = structure.function_of(node)
    if _thunder.is_replaced(function, executors):
        return None
    if _thunder.is_automatic(function):
        return "only has an automatic torch fallback in thunder"
    if _thunder.symbol_for(function) is not None:
        return None
    if node.op == "call_method":
        return None if _thunder.has_method(str(node.target)) else _NO_MAPPING
    if node.op != "call_function":
        return _NO_MAPPING
    # thunder.dynamo takes any builtin for supported that runs on proxies: torch.eye(4) runs, on none of them.
    is_python = getattr(function, "__module__", None) in _BUILTINS_ON_PROXIES
    return None if is_python or _thunder.is_einops(function) else _NO_MAPPING


def _reasons_of_surroundings(graph_module: GraphModule, nodes: list[Node]) -> dict[Node, SplitReason]:
    """Nodes that go to another compiler because of what stands around them: each group goes whole, in one region."""
    groups = _groups(graph_module, nodes)
    if not groups:
        return {}
    reasons: dict[Node, SplitReason] = {}
    order = dependencies.order(graph_module)
    for members, why in groups:
        for node in dependencies.closed(order, members):
            reasons.setdefault(node, _unsupported(node, why))
    return reasons


def _why_written(group: inplace.Group, graph_module: GraphModule) -> str:
    outside = writes.storages_from_outside(graph_module)
    is_outside = not outside.isdisjoint(writes.all_written_storages(group.writer))
    into = "an input, or a view of one, or a buffer" if is_outside else "a tensor that has another name, or a gradient"
    return (
        f"is, or shares a storage with, the in-place write {_name(group.writer)} into {into}: thunder must not see it"
    )


def _groups(graph_module: GraphModule, nodes: list[Node]) -> list[tuple[list[Node], str]]:
    """What must not be divided, and why thunder does not take it."""
    groups = [(group.nodes, _why_written(group, graph_module)) for group in inplace.groups(graph_module)]
    for hooked in (node for node in nodes if structure.name_of(node) in _AUTOGRAD_STATE):
        # A hook hangs on a tensor of the region that registers it: what uses the tensor must be of that region too.
        groups.append((nodes, f"stands in one graph with {hooked.name}"))
    groups += [(part, "is differentiated within the graph (torch.func)") for part in functorch.derivatives(nodes)]
    groups += [(part, "is inside a functorch level (vmap, grad, jvp, ...)") for part in functorch.levels(nodes)]
    return groups


def groups_of(graph_module: GraphModule) -> list[list[Node]]:
    """The groups of nodes that must stay in one region, as partition.py needs them."""
    return [members for members, _ in _groups(graph_module, structure.calls(graph_module))]


# Methods that change how autograd treats a tensor, on that tensor alone.
_AUTOGRAD_STATE = ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad")


def _is_copied_by_thunder(node: Node) -> bool:
    """thunder (0.2.6) copies a diagonal, which eager views: a result that shows it would no longer be a view."""
    if structure.name_of(node) != "diagonal":
        return False
    storages = {_torch.storage_of(tensor) for tensor in structure.tensors_of(node)}
    results = [n for n in node.graph.nodes if structure.is_result(n)]
    return any(_torch.storage_of(tensor) in storages for n in results for tensor in structure.tensors_of(n))


def _has_another_layout(node: Node) -> bool:
    """thunder lays out some einsums in another order: results.py mends what a region returns, each by itself.

    So not where two results share a memory, nor where a symbolic size leaves open which strides are eager's.
    """
    if structure.name_of(node) != "einsum":
        return False
    if any(isinstance(size, torch.SymInt) for tensor in structure.tensors_of(node) for size in tensor.shape):
        return True
    shown = _storages_of_results(node.graph)
    return len(set(shown)) < len(shown)


def _keeps_a_layout(node: Node) -> bool:
    """thunder lays out what eager lays out by rows as an operand is, where that is transposed, or has gaps."""
    if structure.name_of(node) not in _BY_ROW or not all(map(structure.is_contiguous, structure.tensors_of(node))):
        return False
    operands = [tensor for operand in node.all_input_nodes for tensor in structure.tensors_of(operand)]
    return not all(map(structure.is_contiguous, operands))


_BY_ROW = frozenset({"layer_norm", "masked_fill"})


# Eager copies where these change nothing.
_COPYING = frozenset({"flip", "repeat", "repeat_interleave", "tile"})


def _is_an_operand_to_thunder(node: Node) -> bool:
    """thunder drops what changes nothing, and returns the operand, where eager makes a copy or a view with a grad_fn.

    Told apart by who can see it: an input, or two results of the graph. Inside of it nobody can. And `x.repeat(3, 1)`
    of a single row is that row, expanded: a result that views a copy is a view of the operand then.
    """
    is_result = structure.is_result(node)
    is_copying = structure.name_of(node) in _COPYING
    if not is_result and not is_copying:
        return False
    if is_copying and _is_seen(node) and _may_be_expanded(node):
        return True
    for result in structure.tensors_of(node):
        for operand in (t for n in node.all_input_nodes for t in structure.tensors_of(n)):
            if operand is result or not structure.same_geometry(operand, result):
                continue
            if _torch.storage_of(operand) != _torch.storage_of(result):
                return is_copying
            if is_result and _torch.storage_of(result) in _visible_storages(node):
                return True
    return False


def _is_seen(node: Node) -> bool:
    """Whether a result of the graph is a node's value, or a view of it."""
    shown = set(_storages_of_results(node.graph)) - {None}
    return any(_torch.storage_of(tensor) in shown for tensor in structure.tensors_of(node))


def _may_be_expanded(node: Node) -> bool:
    """Whether a result has an operand's shape but for dimensions that the operand lacks, or has of size 1."""
    shapes = [tuple(map(_torch.hint, t.shape)) for n in node.all_input_nodes for t in structure.tensors_of(n)]
    results = [tuple(map(_torch.hint, t.shape)) for t in structure.tensors_of(node)]
    return any(
        all(size in (1, wanted) for size, wanted in zip(shape[::-1], result[::-1], strict=False))
        for shape in shapes
        for result in results
    )


def _storages_of_results(graph: torch.fx.Graph) -> list[int | None]:
    results = [node for node in graph.nodes if structure.is_result(node)]
    return [_torch.storage_of(tensor) for node in results for tensor in structure.tensors_of(node)]


def _visible_storages(node: Node) -> set[int | None]:
    """The storages of the graph's inputs, and of its results other than `node`."""
    nodes = node.graph.nodes
    visible = [n for n in nodes if n.op in ("placeholder", "get_attr") or structure.is_result(n)]
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


def _only_updates_statistics(node: Node) -> bool:
    """A norm whose result nobody reads is there for its running statistics, and dead code to thunder."""
    return not node.users and bool(writes.running_statistics(node))


def _is_unfold(node: Node) -> bool:
    return structure.name_of(node) == "unfold"


def _shows_that_it_needs_gradients(node: Node) -> bool:
    """Views under no_grad need gradients if what they view does. That shows in a result, or in what uses them later.

    Where the whole graph runs under no_grad nothing later shows it: so all of a model's evaluation stays with thunder.
    """
    needs = any(tensor.requires_grad for tensor in structure.tensors_of(node))
    return needs and (structure.is_result(node) or torch.is_grad_enabled())


def _draws_unseen(node: Node) -> bool:
    """thunder leaves a draw out whose numbers nobody reads, and the stream goes on from another place."""
    return not node.users and randomness.draws(node)


def _draws_in_another_order(node: Node) -> bool:
    """Eager fills a tensor that is laid out like a transposed one in the order of memory, thunder row by row."""
    if not randomness.draws(node):
        return False
    tensors = [tensor for operand in node.all_input_nodes for tensor in structure.tensors_of(operand)]
    return any(not structure.is_contiguous(tensor) for tensor in tensors)


def _is_complex(node: Node) -> bool:
    return any(t.is_complex() for each in (node, *node.all_input_nodes) for t in structure.tensors_of(each))


def _masks_attention(node: Node) -> bool:
    """On the CPU thunder decomposes attention; its softmax is NaN for a row that is masked whole, and eager 0."""
    if structure.name_of(node) != "scaled_dot_product_attention":
        return False
    mask = structure.argument(node, 3, "attn_mask")
    return mask is not None and all(t.device.type == "cpu" for t in structure.tensors_of(node))


def _smooths_labels(node: Node) -> bool:
    return structure.name_of(node) == "cross_entropy" and bool(structure.argument(node, 7, "label_smoothing", 0.0))


def _has_nan_derivative(node: Node) -> bool:
    """Decomposed into exponentials, quotients and where, whose derivatives overflow where eager's are finite."""
    name = structure.name_of(node)
    if name in ("pow", "__pow__", "__rpow__"):
        exponent = structure.argument(node, 1, "exponent")
        return isinstance(exponent, Node) or bool(exponent == 0)
    return name in _NAN_DERIVATIVE or (name == "div" and node.kwargs.get("rounding_mode") is not None)


_NAN_DERIVATIVE = frozenset(
    {"atan2", "celu", "elu", "floor_divide", "floordiv", "glu", "mish", "prod", "selu", "sigmoid"}
)
_OTHER_AT_BOUNDS = frozenset({"clamp", "clip", "clamp_min", "clamp_max"})

# What thunder traces, and computes otherwise than eager does.
_FAULTS: tuple[tuple[Callable[[Node], bool], str], ...] = (
    (_is_copied_by_thunder, "would be a copy in thunder, and a result of the graph is a view of it"),
    (_has_another_layout, "may have other strides in thunder, which cannot be mended for symbolic sizes, or for views"),
    (_keeps_a_layout, "would be laid out as its operand is in thunder"),
    (_only_updates_statistics, "is there for its running statistics alone, which thunder would leave out"),
    (_is_unfold, "is taken for supported by thunder, and fails in its executors"),
    (_is_an_operand_to_thunder, "would return its operand itself in thunder"),
    (_draws_unseen, "draws numbers that nobody reads, which thunder would leave out"),
    (_draws_in_another_order, "would not draw eager's random numbers in thunder, for an operand of this layout"),
    (_broadcasts_a_differentiable_scalar, "would lose the gradient of a 0-dimensional CPU tensor in thunder"),
)


# The same, where gradients are taken: values in special places, or derivatives.
_GRADIENT_FAULTS: tuple[tuple[Callable[[Node], bool], str], ...] = (
    (_is_complex, "would have a derivative in thunder that forgets to conjugate"),
    (_masks_attention, "would be NaN in thunder for rows that are masked whole"),
    (_smooths_labels, "smooths labels, in double precision in thunder"),
    (_has_nan_derivative, "would have a derivative in thunder that is NaN where eager's is not"),
    (lambda node: structure.name_of(node) in _OTHER_AT_BOUNDS, "may have another derivative in thunder at its bounds"),
    (lambda node: structure.name_of(node) == "relu", "would hide NaN in thunder"),
)


def _keep_elements_together(node: Node, reasons: dict[Node, SplitReason]) -> None:
    """A tuple is made and read in one region: none can return a tuple among its outputs."""
    if not isinstance(node.meta.get("example_value"), (list, tuple)):
        return
    readers = [user for user in node.users if user.op != "output"]
    if node not in reasons and any(reader in reasons for reader in readers):
        reasons[node] = _unsupported(node, "has an element that thunder cannot read")
    if node in reasons:
        for reader in readers:
            reasons.setdefault(reader, _unsupported(reader, f"reads an element of {node.name}, which is not thunder's"))


def autocasts_reaching_over(graph_module: GraphModule, reasons: Mapping[Node, SplitReason]) -> list[SplitReason]:
    """A reason for each autocast that holds over nodes of several compilers: no single one of them sees it whole."""
    entered = modes.open_autocasts(graph_module)
    over = [enter for node in reasons if node.target not in _torch.MODE_SETTERS for enter in entered[node]]
    found = [enter for enter in dict.fromkeys(over) if enter not in reasons]
    why = "reaches over regions that thunder does not run, and is repeated in each region"
    return [_unsupported(node, why) for node in found]


def _unsupported(node: Node, why: str) -> SplitReason:
    return _reason(node, SplitReasonType.UNSUPPORTED_NODE, f"{_name(node)} {why}.")


def _name(node: Node) -> str:
    return f"node with name: {node.name} and target: {node.target}"


def _reason(node: Node, kind: SplitReasonType, info: str, exception: str | None = None) -> SplitReason:
    return SplitReason(kind, info, exception, node=node.name, source=structure.source_line(node))
