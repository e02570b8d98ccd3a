"""Reading and copying GraphModules. Copies share tensors; nothing here changes what a graph computes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.subgraph import ExampleInput

# What is not kept in a record: Dynamo's grapharg reaches the user's inputs.
_META_LEFT_OUT = ("grapharg",)


def calls(graph_module: GraphModule) -> list[Node]:
    """The nodes that compute something, in order."""
    return [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def copy_structure(graph_module: GraphModule) -> GraphModule:
    """The same graph in a new GraphModule, nested graphs too; parameters and constants are shared, not copied."""
    with _torch.eager_graph_modules():
        twin = GraphModule(graph_module, copy.deepcopy(graph_module.graph), type(graph_module).__name__)
    for name, child in graph_module.named_children():
        if isinstance(child, GraphModule) and hasattr(twin, name):
            setattr(twin, name, copy_structure(child))
    drop_links_to_inputs(twin)
    return twin


def drop_links_to_inputs(graph_module: GraphModule) -> None:
    """Take out of the nodes' metadata what reaches the user's inputs."""
    for node in graph_module.graph.nodes:
        # A dict of its own: the input of a branch shares one with the graph's, which Dynamo still reads (torch.cond).
        node.meta = {key: value for key, value in node.meta.items() if key not in _META_LEFT_OUT}


def nested_graphs(graph_module: GraphModule) -> list[tuple[Node, GraphModule]]:
    """The graphs that the calls of a graph contain, each once, with a call that does."""
    found: dict[int, tuple[Node, GraphModule]] = {}
    for node in calls(graph_module):
        for operand in node.all_input_nodes:
            body = _torch.attribute(operand) if operand.op == "get_attr" else None
            if isinstance(body, GraphModule):
                found.setdefault(id(body), (node, body))
    return list(found.values())


def name_of(node: Node) -> str:
    """The plain name of what a node calls, function or method: `sin`, `register_hook`; "" where it has none."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name if isinstance(name, str) else ""


def function_of(node: Node) -> Any:
    """What a node calls, a method as torch.Tensor's function; None for a method that is not torch.Tensor's."""
    return getattr(torch.Tensor, node.target, None) if isinstance(node.target, str) else node.target


def overloads_of(node: Node) -> list[Any]:
    """The operators of torch.ops that a call may mean, each with its schema: one, or all of an operator's overloads."""
    if isinstance(node.target, _torch.OpOverload):
        return [node.target]
    if isinstance(node.target, _torch.OpOverloadPacket):
        return [getattr(node.target, name) for name in node.target.overloads()]  # type: ignore[no-untyped-call]
    return []


def value_of(node: Node) -> Any:
    """The (fake) value that a node has; for an attribute that Dynamo gave none, the attribute."""
    value = node.meta.get("example_value")
    return _torch.attribute(node) if value is None and node.op == "get_attr" else value


def argument(node: Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size))


def is_result(node: Node) -> bool:
    """Whether a graph returns a node's value."""
    return any(user.op == "output" for user in node.users)


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that a node's value consists of, those of its nested lists and tuples too."""
    pending = [node.meta.get("example_value")]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            pending.extend(value)


def fake_mode_of(graph: torch.fx.Graph) -> Any | None:
    """The mode to which a graph's fake tensors belong; None if it has none."""
    tensors = (tensor for node in graph.nodes for tensor in tensors_of(node))
    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, _torch.FakeTensor)), None)


def same_geometry(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two strided tensors have one dtype, shape, strides and offset; symbolic ones by their hints."""
    return a.dtype is b.dtype and same_layout(a, b)


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same, of whatever dtype."""
    if a.layout is not torch.strided or b.layout is not torch.strided or a.ndim != b.ndim:
        return False
    described = [[*map(_torch.hint, (*t.shape, *t.stride(), t.storage_offset()))] for t in (a, b)]
    return described[0] == described[1]


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is laid out row by row; symbolic sizes by their hints."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for size, stride in reversed(
        list(zip(map(_torch.hint, tensor.shape), map(_torch.hint, tensor.stride()), strict=True))
    ):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def shows_elements_twice(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an expanded view: one element of its storage at several places."""
    if tensor.layout is not torch.strided:
        return False
    sizes_and_strides = zip(map(_torch.hint, tensor.shape), map(_torch.hint, tensor.stride()), strict=True)
    return any(size > 1 and stride == 0 for size, stride in sizes_and_strides)


def is_symbolic(node: Node) -> bool:
    """Whether a placeholder's value is a symbolic number, or a tensor with a symbolic size."""
    value = node.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def example_inputs(graph_module: GraphModule) -> tuple[ExampleInput, ...]:
    """Metadata of a graph's inputs, read off its placeholders."""
    return tuple(example_input(node) for node in graph_module.graph.find_nodes(op="placeholder"))


def example_input(node: Node) -> ExampleInput:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        seen = _torch.hint(value)
        return ExampleInput(str(node.target), value=seen if isinstance(seen, (int, float)) else type(value).__name__)
    strided = value.layout is torch.strided
    return ExampleInput(
        str(node.target),
        shape=tuple(map(_torch.hint, value.shape)),
        strides=tuple(map(_torch.hint, value.stride())) if strided else (),
        dtype=value.dtype,
        device=value.device,
        layout=value.layout,
        storage_offset=_torch.hint(value.storage_offset()) if strided else 0,
        requires_grad=value.requires_grad,
        symbolic_shape=tuple(map(str, value.shape)) if is_symbolic(node) else None,
    )


def source_line(node: Node) -> str | None:
    """The line of the user's program that a node comes from, as `file:line, in function`."""
    place = _place(node)
    return None if place is None else f"{place[0]}:{place[1]}, in {place[2]}"


def file_and_line(node: Node) -> tuple[str | None, int | None]:
    """The same as a file and a line; None for both where it is not known."""
    place = _place(node)
    return (None, None) if place is None else place[:2]


# A frame in the stack trace that Dynamo keeps of a node: `File "f.py", line 3, in fn`.
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def _place(node: Node) -> tuple[str, int, str] | None:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    file, line, function = frames[-1]
    return file, int(line), function


def flat_arguments(node: Node) -> list[Node]:
    """The values that a call is given, in order, one as often as it is given."""
    flat: list[Node] = []
    torch.fx.map_arg((node.args, dict(node.kwargs)), flat.append)
    return flat


def outputs(graph_module: GraphModule) -> list[Any]:
    """The values that a graph returns, flattened, in order."""
    (output,) = graph_module.graph.find_nodes(op="output")
    flat: list[Any] = []
    torch.fx.map_arg(output.args[0], flat.append)
    return flat
