"""Splitting a graph into regions: which node belongs to which region, and the split itself by torch.fx.

A region is a run of neighbouring nodes that one compiler takes. What each node's compiler is, support.py has decided.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from thunder_fx import _torch
from thunder_fx.graph import structure
from thunder_fx.subgraph import CompilerType

# These set a mode and compute nothing: no region begins with them where another is open, since split_module repeats
# them in each region that they reach into.
_MODES = (torch._C._set_grad_enabled, torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)

_PREFIX = {CompilerType.THUNDER: "thunder", CompilerType.TORCH_INDUCTOR: "inductor", CompilerType.EAGER: "eager"}


@dataclass(frozen=True)
class Part:
    """One region before it is compiled."""

    name: str
    compiler: CompilerType
    nodes: tuple[str, ...]


def split(graph_module: GraphModule, unsupported: Collection[Node]) -> tuple[GraphModule, list[Part]]:
    """The graph as a GraphModule of regions, each a GraphModule of its own, and its regions in order of execution."""
    number_of = _assign(graph_module, unsupported)
    runs: dict[int, list[Node]] = {}
    for node, number in number_of.items():
        runs.setdefault(number, []).append(node)
    parts = []
    for number, nodes in runs.items():
        is_thunder = not any(node in unsupported for node in nodes)
        compiler = CompilerType.THUNDER if is_thunder else CompilerType.TORCH_INDUCTOR
        parts.append(Part(f"{_PREFIX[compiler]}_{number}", compiler, tuple(node.name for node in nodes)))
    with _torch.eager_graph_modules():
        split_graph = split_module(
            graph_module,
            None,  # type: ignore[arg-type]  # only for call_module nodes' parents; thunder.dynamo passes None too
            number_of.__getitem__,
            keep_original_order=True,
            keep_original_node_name=True,
        )
    for module in split_graph.modules():
        if isinstance(module, GraphModule):
            structure.drop_links_to_inputs(module)
    for number, part in enumerate(parts):
        rename_region(split_graph, f"submod_{number}", part.name)
    _torch.generate_code(split_graph)
    return split_graph, parts


def _assign(graph_module: GraphModule, unsupported: Collection[Node]) -> dict[Node, int]:
    """The number of each node's region; neighbours of one kind share it."""
    numbers: dict[Node, int] = {}
    number, previous = 0, None
    for node in structure.calls(graph_module):
        if node.target in _MODES and node not in unsupported:
            numbers[node] = number
            continue
        kind = node in unsupported
        if previous is not None and kind is not previous:
            number += 1
        previous = kind
        numbers[node] = number
    return numbers


def region_graph(split_graph: GraphModule, name: str) -> GraphModule:
    module = split_graph.get_submodule(name)
    assert isinstance(module, GraphModule)
    return module


def rename_region(split_graph: GraphModule, old: str, new: str) -> None:
    """Give a region another name in the split graph, as the submodule and as the node that calls it."""
    module = split_graph.get_submodule(old)
    split_graph.delete_submodule(old)
    split_graph.add_submodule(new, module)
    for node in split_graph.graph.find_nodes(op="call_module", target=old):
        node.target = new
        node.name = new
