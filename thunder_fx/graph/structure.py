"""Reading and copying GraphModules. Copies share tensors; nothing here changes what a graph computes."""

from __future__ import annotations

import copy
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
        for key in _META_LEFT_OUT:
            node.meta.pop(key, None)


def name_of(node: Node) -> str:
    """The plain name of what a node calls, function or method: `sin`, `register_hook`; "" where it has none."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name if isinstance(name, str) else ""


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that a node's value consists of, those of its nested lists and tuples too."""
    pending = [node.meta.get("example_value")]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            pending.extend(value)


def same_geometry(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two strided tensors have one dtype, shape, strides and offset; symbolic ones by their hints."""
    if a.dtype is not b.dtype or a.layout is not torch.strided or b.layout is not torch.strided or a.ndim != b.ndim:
        return False
    described = [[*map(_torch.hint, (*t.shape, *t.stride(), t.storage_offset()))] for t in (a, b)]
    return described[0] == described[1]


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
    trace = node.meta.get("stack_trace")
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')] if trace else []
    if not places:
        return None
    file, line, function = places[-1].split('"', 2)[1], *_line_and_function(places[-1])
    return f"{file}:{line}, in {function}"


def _line_and_function(place: str) -> tuple[str, str]:
    _, _, rest = place.rpartition('", line ')
    line, _, function = rest.partition(", in ")
    return line, function


def outputs(graph_module: GraphModule) -> list[Any]:
    """The values that a graph returns, flattened, in order."""
    (output,) = graph_module.graph.find_nodes(op="output")
    flat: list[Any] = []
    torch.fx.map_arg(output.args[0], flat.append)
    return flat
