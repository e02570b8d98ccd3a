"""From a region's FX graph straight into thunder symbols; and the same for one node, to ask whether thunder takes it.

thunder.jit still sees a Module, so its caching, prologue, autograd split, transforms and executors all stay. Its
bytecode interpreter meets one call that it does not look into, behind which an fx.Interpreter calls thunder's symbols
on the proxies: straight-line code needs no interpreter of Python. Private names of thunder are _thunder.py's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _thunder, _torch
from thunder_fx.graph import gradients, higher_order, structure
from thunder_fx.graph.modes import Modes
from thunder_fx.subgraph import SplitReasonType, describe

# How often thunder's bytecode interpreter had to trace a region since the process began: where sizes are symbolic to
# thunder too (needs_interpreter), or where the straight way failed.
interpreter_uses = 0


class Tracer(torch.fx.Interpreter):
    """Runs a graph on thunder's proxies, calling thunder's symbol for each operator.

    Its tensor constants are proxies too, which `constants` finds by the tensor's id: thunder takes no real tensor.
    """

    def __init__(self, graph_module: GraphModule, constants: Mapping[int, Any] | None = None) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        # A nested graph may be run several times in one trace: its names would not be unique.
        self._names_proxies = constants is not None
        self.extra_traceback = False  # thunder's trace and our records name the line
        self._constants = constants or {}

    def run_node(self, n: Node) -> Any:
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        _thunder.set_source(*structure.file_and_line(n))
        with _thunder.without_gradients() if gradients.is_constant(n) else contextlib.nullcontext():
            value = super().run_node(n)
        if self._names_proxies:
            _thunder.rename(value, n.name)
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        # torch.fx's immutable lists are lists to torch, and not to thunder.
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return _with_plain_containers(args), _with_plain_containers(kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = self.fetch_attr(target)
        return Tracer(value).run if isinstance(value, GraphModule) else self._constants.get(id(value), value)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is higher_order.AUTOGRAD_FUNCTION:
            return _thunder.autograd_function(*args, **kwargs)
        return _call(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _call(target, args, kwargs)


def _call(target: Any, args: Any, kwargs: Any) -> Any:
    """Call what stands for a function, or for a method by its name, in a region's trace as in a trial."""
    function = _thunder.method_for(target, args, kwargs) if isinstance(target, str) else _thunder.callable_for(target)
    return function(*args, **kwargs)


def _with_plain_containers(value: Any) -> Any:
    if isinstance(value, torch.fx.immutable_collections.immutable_list):
        return [_with_plain_containers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_plain_containers(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*map(_with_plain_containers, (value.start, value.stop, value.step)))
    if type(value) is tuple:
        return tuple(map(_with_plain_containers, value))
    return value


class _Straight:
    """A region's graph, and where among the region's inputs its constants are."""

    def __init__(self, graph_module: GraphModule, constants: tuple[torch.Tensor, ...]) -> None:
        self.graph_module = graph_module
        self.positions = {id(constant): index for index, constant in enumerate(constants, -len(constants))}


def traceable(graph_module: GraphModule) -> tuple[GraphModule, tuple[torch.Tensor, ...]]:
    """What to give to thunder.jit in a region's place, and the constants to call it with, after the region's inputs.

    A GraphModule of a single call, since thunder names its proxies after the parameters of what it interprets.
    """
    constants = constants_of(graph_module)
    shell = torch.fx.Graph()
    straight = shell.get_attr("straight")
    inputs = [shell.placeholder(node.name) for node in graph_module.graph.find_nodes(op="placeholder")]
    inputs += [shell.placeholder(f"constant_{index}") for index in range(len(constants))]
    shell.output(shell.call_function(_trace, (straight, *inputs)))
    root = torch.nn.Module()
    root.straight = _Straight(graph_module, constants)  # type: ignore[assignment]
    with _torch.eager_graph_modules():
        module = GraphModule(root, shell)
    _torch.call_plainly(module)
    return module, constants


def interpretable(graph_module: GraphModule) -> GraphModule:
    """What to give to thunder.jit for its bytecode interpreter to trace."""
    global interpreter_uses
    interpreter_uses += 1
    # What a checkpoint runs must be thunder's symbols: thunder 0.2.6 does not look inside it.
    _thunder.convert_checkpoints(graph_module)
    _torch.call_plainly(graph_module)
    return graph_module


def needs_interpreter(options: Mapping[str, Any]) -> bool:
    """Whether sizes are to be symbolic to thunder too: then its interpreter must see each use of one."""
    return _thunder.has_symbolic_values(options)


def _run_on_proxies(straight: _Straight, *proxies: Any) -> Any:
    constants = {key: proxies[index] for key, index in straight.positions.items()}
    inputs = proxies[: len(proxies) - len(constants)]
    return Tracer(straight.graph_module, constants).run(*inputs)


def _trace(straight: _Straight, *args: Any) -> Any:
    raise RuntimeError("thunder_fx: a region's graph was to be traced outside of thunder.jit")


_thunder.trace_through(_trace, _run_on_proxies)


def constants_of(graph_module: GraphModule) -> tuple[torch.Tensor, ...]:
    """The real tensors that a graph reads as attributes, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        value = _torch.attribute(node)
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), value)
    return tuple(found.values())


# One node


@dataclass(frozen=True)
class Refusal:
    """Why thunder does not take a node. Text only: it may be kept for as long as the process lives."""

    kind: SplitReasonType
    why: str
    exception: str | None = None


def refusal(node: Node, options: Mapping[str, Any], around: Modes) -> Refusal | None:
    """Why thunder cannot trace a node, by tracing it with its gradient on proxies of its inputs; None if it can.

    A result of another shape or dtype than eager's is a refusal too.
    """
    differentiated = differentiates(node, around) and not options.get("disable_torch_autograd")
    needs = [any(tensor.requires_grad for tensor in structure.tensors_of(n)) for n in node.all_input_nodes]

    def run() -> Any:
        operands, kind = node.all_input_nodes, SplitReasonType.EXCEPTION_META_THUNDER_OP
        try:
            proxies = [_as_proxies(structure.value_of(operand)) for operand in operands]
        except Exception as error:
            unshown = SplitReasonType.EXCEPTION_PROXY_THUNDER_OP
            return Refusal(unshown, "Failed while creating proxy for", describe(error))
        try:
            # Numbers and the like stay out of thunder's gradient, which would make proxies of them.
            call = _caller(node, operands)
            if not differentiated:
                return call(*proxies)
            result, derivatives = _thunder.with_gradients(call)(*proxies)
        except Exception as error:
            return Refusal(kind, "Failed while running meta for", describe(error))
        if any(gradient is None for gradient, needed in zip(derivatives, needs, strict=True) if needed):
            return Refusal(kind, "thunder has no gradient, where eager has one, for")
        return result

    result = _thunder.trial(run, options, is_grad_enabled=around.is_grad_enabled, autocasts=around.autocasts)
    return result if isinstance(result, Refusal) else _difference(node, result)


def _caller(node: Node, operands: list[Node]) -> Callable[..., Any]:
    """The call of a node as a function of its operands' values."""

    def call(*values: Any) -> Any:
        value_of = dict(zip(operands, values, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), value_of.__getitem__)
        return _call(node.target, _with_plain_containers(args), _with_plain_containers(kwargs))

    return call


def differentiates(node: Node, around: Modes) -> bool:
    """Whether autograd records a call."""
    takes = any(tensor.requires_grad for operand in node.all_input_nodes for tensor in structure.tensors_of(operand))
    return takes and around.is_grad_enabled and not gradients.is_constant(node)


def _as_proxies(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _thunder.tensor_proxy(value, [_known(size) for size in value.shape])
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        # Named ones too, as thunder's operators return plain ones.
        return list(map(_as_proxies, value)) if isinstance(value, list) else tuple(map(_as_proxies, value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _known(value)
    if value is None or isinstance(value, _PLAIN):
        return value
    raise TypeError(f"a value of {type(value)} has no proxy")


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, slice)


def _known(size: Any) -> Any:
    """A symbolic size by the value that was seen. That is what thunder compiles for, once more for each other value."""
    value = _torch.hint(size)
    if value == -1 and not isinstance(size, int):
        raise TypeError("a size that depends on data has no proxy")
    return value


def _difference(node: Node, result: Any) -> Refusal | None:
    """Whether thunder's result differs from eager's in shape or dtype, as far as the captured graph tells."""
    ours = [_thunder.metadata_of(value) for value in _leaves(result)]
    eager = [
        (tuple(map(_torch.hint, value.shape)), value.dtype) if isinstance(value, torch.Tensor) else None
        for value in _leaves(node.meta.get("example_value"))
    ]
    if not any(eager) or ours == eager:
        return None
    kind = SplitReasonType.EXCEPTION_META_THUNDER_OP
    return Refusal(kind, f"thunder gives {_listed(ours)}, and eager {_listed(eager)}, for")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_leaves, value))
    else:
        yield value


def _listed(found: list[tuple[tuple[int, ...], torch.dtype] | None]) -> str:
    return ", ".join("no tensor" if each is None else f"{each[1]} of shape {each[0]}" for each in found)
