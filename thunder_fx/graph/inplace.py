"""What becomes of in-place writes, so that thunder sees none that autograd or another name of the tensor could notice.

thunder (0.2.6) returns right values and silently wrong gradients after such a write. Three answers, in this order:
a write to a value made in the graph becomes its out-of-place twin where that is exact (make_out_of_place); any other
goes to Inductor with everything that shares its storage (groups); and a graph that writes to an input is run eager
whenever that input overlaps another, which Dynamo does not guard on and Inductor does not ask (OverlapGuard).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.graph import functorch, modes, randomness, structure, writes
from thunder_fx.graph.modes import Modes
from thunder_fx.portable import overlaps

# Writes that other code sees


class Group(NamedTuple):
    """Nodes that use the storage that `writer` writes into."""

    nodes: list[Node]
    writer: Node


def groups(graph_module: GraphModule) -> list[Group]:
    """For each storage that is written, every node that makes it, reads it, views it or writes into it.

    Up to the last write: what comes after it finds a tensor like any other. What comes before belongs to it even if it
    only reads an input: thunder would keep the input for its backward, and autograd then finds it changed.
    """
    nodes = structure.calls(graph_module)
    last_write = {
        storage: (index, node) for index, node in enumerate(nodes) for storage in writes.written_storages(node)
    }
    if None in last_write:
        # A tensor whose storage cannot be told may share it with any other.
        return [Group(nodes, last_write[None][1])]
    return [
        Group([n for n in nodes[: last + 1] if not writes.touched_storages(n).isdisjoint({storage, None})], writer)
        for storage, (last, writer) in last_write.items()
    ]


# Writes that nothing else sees


def make_out_of_place(graph_module: GraphModule, initial: Modes) -> None:
    """Replace each write to a value made in the graph by its out-of-place twin, in place, where nobody can tell.

    `initial` are the modes under which the graph begins.
    """
    modes_at = modes.around(graph_module, initial)
    position = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    from_outside = writes.storages_from_outside(graph_module)
    nodes = structure.calls(graph_module)
    transformed = functorch.inside(nodes)
    for node in nodes:
        if node in transformed:
            continue
        targets = list(writes.written(node))
        if len(targets) == 1 and not from_outside & {None, *writes.storages(targets[0])}:
            target = targets[0]
            if _is_unseen(node, target, position, modes_at[node]):
                _replace(node, target, position, modes_at[node])


def _is_unseen(node: Node, target: Node, position: dict[Node, int], around: Modes) -> bool:
    """Whether the write can be seen through the written value alone."""
    value = target.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or randomness.draws(node):
        return False
    if value.requires_grad and (value.is_leaf or not around.is_grad_enabled):
        # Autograd does not see a write under no_grad: the gradient passes as if it had not been.
        return False
    if around.autocasts and structure.name_of(node).rstrip("_") not in _SAME_UNDER_AUTOCAST:
        return False
    aliases = {_torch.storage_of(value), None}
    names = [n for n in position if n not in (node, target) and not aliases.isdisjoint(writes.storages(n))]
    here = position[node]
    return not any(position[name] < here and _is_read_after(name, here, position) for name in names)


def _is_read_after(node: Node, here: int, position: dict[Node, int]) -> bool:
    return any(position.get(user, here + 1) > here for user in node.users)


# Autocast changes the dtype in which the out-of-place form of some operators computes, and of no in-place form: these
# are the common ones that it leaves alone.
_SAME_UNDER_AUTOCAST = frozenset(
    {
        *("add", "sub", "mul", "div", "iadd", "isub", "imul", "itruediv", "neg", "abs", "clamp", "masked_fill"),
        *("relu", "relu6", "hardtanh", "leaky_relu", "elu", "hardswish", "silu", "sigmoid", "tanh"),
    }
)


def _replace(node: Node, target: Node, position: dict[Node, int], around: Modes) -> None:
    twin = _twin(node)
    if twin is None:
        return
    before = target.meta["example_value"]
    graph = node.graph
    with graph.inserting_before(node):
        new = graph.create_node(twin.op, twin.target, twin.args, twin.kwargs)
    new.meta = {key: value for key, value in node.meta.items() if key != "example_value"}
    try:
        result = modes.compute_value(new, around)
    except Exception:  # it need not exist for all that the write takes; then the write stays as it is
        result = None
    # An operator without a derivative ends the gradient out of place, and in place makes it zero.
    fits = isinstance(result, torch.Tensor) and result.requires_grad == before.requires_grad
    if not fits or not structure.same_layout(result, before):
        graph.erase_node(new)
        return
    if result.dtype is not before.dtype:
        cast = graph.call_method("to", (new, before.dtype))
        new.append(cast)
        cast.meta = dict(new.meta)
        modes.compute_value(cast, around)
        position[new] = position[node]
        new = cast
    # To whoever asks later, the new value is a name of the written one: views of it are known by its storage.
    with torch.enable_grad():
        new.meta["example_value"] = before.view_as(before)
    position[new] = here = position[node]
    node.replace_all_uses_with(new)
    for user in list(target.users):
        if position.get(user, here + 1) > here:
            user.replace_input_with(target, new)
    graph.erase_node(node)
    del position[node]


class _Twin(NamedTuple):
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def op(self) -> str:
        return "call_method" if isinstance(self.target, str) else "call_function"


# Out-of-place methods that are no twins: they change what a tensor is, not what is in it; or draw; or lack gradients.
_NO_TWIN = frozenset({"set_", "resize_", "resize_as_", "requires_grad_", "detach_", "copy_", "share_memory_"})

_OPERATORS = {
    operator.iadd: operator.add,
    operator.iand: operator.and_,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.imul: operator.mul,
    operator.ior: operator.or_,
    operator.ipow: operator.pow,
    operator.isub: operator.sub,
    operator.itruediv: operator.truediv,
    operator.ixor: operator.xor,
}


def _twin(node: Node) -> _Twin | None:
    """The out-of-place call that computes what an in-place one writes; None where there is none by that name."""
    kwargs = dict(node.kwargs)
    if "out" in kwargs or node.op not in ("call_method", "call_function"):
        return None
    name = structure.name_of(node)
    if node.target is operator.setitem:
        return _Twin(with_item, node.args, {})
    if name in ("zero_", "fill_"):
        return _filled(node, 0 if name == "zero_" else kwargs.get("value", node.args[-1]))
    if node.op == "call_method":
        plain = name.removesuffix("_")
        known = name not in _NO_TWIN and not name.startswith("__") and hasattr(torch.Tensor, plain)
        return _Twin(plain, node.args, kwargs) if known else None
    if node.target in _OPERATORS:
        return _Twin(_OPERATORS[node.target], node.args, kwargs)
    if isinstance(node.target, _torch.HigherOrderOperator) or structure.overloads_of(node):
        return None
    if (index := writes.position_of_inplace(node)) is not None:
        # By position, as thunder may know the others by other names.
        args = tuple(False if position == index else argument for position, argument in enumerate(node.args))
        return _Twin(node.target, args, {**kwargs, **({"inplace": False} if "inplace" in kwargs else {})})
    for home in (F, torch):
        if getattr(home, name, None) is node.target and name.endswith("_") and hasattr(home, name[:-1]):
            return _Twin(getattr(home, name[:-1]), node.args, kwargs)
    return None


def with_item(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """`x[index] = value` on a copy of x, for whoever but thunder runs it: thunder has an operator for it."""
    copy = x.clone()
    copy[index] = value
    return copy


_thunder.use_setitem_for(with_item)


def _filled(node: Node, value: Any) -> _Twin | None:
    target = node.args[0]
    assert isinstance(target, Node)
    # To autograd the filled tensor depends on what it was filled over, with a gradient of zero.
    needs_gradient = any(tensor.requires_grad for tensor in structure.tensors_of(target))
    known = isinstance(value, (bool, int, float)) and not needs_gradient
    return _Twin(torch.full_like, (target, value), {}) if known else None


# Writes to inputs


def inputs_written(graph_module: GraphModule) -> list[int]:
    """The positions of the inputs that a graph writes into, under any name."""
    written = {storage for node in structure.calls(graph_module) for storage in writes.all_written_storages(node)}
    inputs = graph_module.graph.find_nodes(op="placeholder")
    tensors = [index for index, node in enumerate(inputs) if isinstance(structure.value_of(node), torch.Tensor)]
    if None in written:
        return tensors
    return [index for index in tensors if not written.isdisjoint(writes.storages(inputs[index]))]


class OverlapGuard:
    """Runs a graph eager if an input that it writes into shares memory with another, and as compiled if not.

    Dynamo guards on the same tensor given twice, and not on two tensors that overlap; what Inductor compiles for
    either is silently wrong for the other.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        written: list[int],
        note: Callable[[], None] = lambda: None,
    ) -> None:
        self.compiled = compiled
        self.eager = eager
        self._written = frozenset(written)
        # Called when a call is run eager.
        self._note = note

    def __call__(self, *args: Any) -> Any:
        if not overlaps.overlap(args, self._written):
            return self.compiled(*args)
        self._note()
        return self.eager(*args)
