"""The modes that calls in a graph set for one another: whether autograd records, and autocast. Changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import structure
from thunder_fx.subgraph import State


@dataclass(frozen=True)
class Modes:
    """What is in force around a node: whether autograd records, and the open autocasts, outermost first.

    An autocast is the arguments of torch's `_enter_autocast`: device type, dtype, whether enabled, whether it caches.
    """

    is_grad_enabled: bool
    autocasts: tuple[tuple[Any, ...], ...] = ()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, torch computes under these modes."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.is_grad_enabled))
            for device, dtype, enabled, *_ in self.autocasts:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            yield


def ambient() -> Modes:
    """The modes under which a graph begins to run: those of the moment, while Dynamo calls its backend."""
    enabled = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return Modes(torch.is_grad_enabled(), tuple((device, torch.get_autocast_dtype(device), True) for device in enabled))


def state() -> State:
    """What is set in torch at the moment."""
    now = ambient()
    return State(
        now.is_grad_enabled,
        tuple((device, dtype) for device, dtype, *_ in now.autocasts),
        torch.get_default_dtype(),
        torch.initial_seed(),
    )


def around(graph_module: GraphModule, initial: Modes) -> dict[Node, Modes]:
    """The modes under which each node of a graph runs."""
    found, is_grad_enabled = {}, initial.is_grad_enabled
    for node, entered in open_autocasts(graph_module).items():
        found[node] = Modes(is_grad_enabled, (*initial.autocasts, *(tuple(n.args) for n in entered)))
        if node.target is _torch.set_grad_enabled:
            is_grad_enabled = bool(node.args[0])
    return found


def open_autocasts(graph_module: GraphModule) -> dict[Node, tuple[Node, ...]]:
    """For each node of a graph, in order, the calls that entered the autocasts around it, outermost first."""
    found: dict[Node, tuple[Node, ...]] = {}
    entered: tuple[Node, ...] = ()
    for node in graph_module.graph.nodes:
        found[node] = entered
        if node.target is _torch.enter_autocast:
            entered = (*entered, node)
        elif node.target is _torch.exit_autocast:
            entered = tuple(enter for enter in entered if enter is not node.args[0])
    return found


def grad_mode_after(graph_module: GraphModule) -> bool | None:
    """Whether autograd records when a graph has run; None if the graph does not set it."""
    setters = graph_module.graph.find_nodes(op="call_function", target=_torch.set_grad_enabled)
    return bool(list(setters)[-1].args[0]) if setters else None


def compute_value(node: Node, modes: Modes) -> Any:
    """Give a new node its fake value, by running its operator under the modes and the graph's own fake mode."""
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), structure.value_of)
    fake_mode = structure.fake_mode_of(node.graph)
    if fake_mode is None:
        raise ValueError("without a fake tensor in the graph an operator would run for real")
    with modes.entered(), fake_mode:
        if node.op == "call_method":
            value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            value = node.target(*args, **kwargs)
    node.meta["example_value"] = value
    return value
