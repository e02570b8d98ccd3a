"""torch.func in a graph: which calls belong to a transform (vmap, grad, ...), to be left whole and as they are."""

from __future__ import annotations

from torch.fx import Node

from thunder_fx.graph import structure


def levels(nodes: list[Node]) -> list[list[Node]]:
    """Of a graph's calls, each run from where an outermost level is entered to where it is left."""
    found, level, first = [], 0, 0
    for position, node in enumerate(nodes):
        # Both of torch's spellings: torch._C._functorch's, and torch._functorch.predispatch's (torch 2.9).
        name = structure.name_of(node)
        if name.endswith("_increment_nesting"):
            first = position if level == 0 else first
            level += 1
        elif name.endswith("_decrement_nesting"):
            level -= 1
            if level == 0:
                found.append(nodes[first : position + 1])
    return found if level == 0 else [*found, nodes[first:]]


def derivatives(nodes: list[Node]) -> list[list[Node]]:
    """From the first call of torch.func to the last, if a derivative is taken: they belong to one autograd graph."""
    names = [structure.name_of(node) for node in nodes]
    if not any("grad_increment" in name or "autograd_grad" in name or "jvp_increment" in name for name in names):
        return []
    modules = [getattr(node.target, "__module__", None) or "" for node in nodes]
    positions = [
        position
        for position, (name, module) in enumerate(zip(names, modules, strict=True))
        if "functorch" in module or name.endswith("_nesting") or "autograd_grad" in name
    ]
    return [nodes[positions[0] : positions[-1] + 1]]


def inside(nodes: list[Node]) -> set[Node]:
    """All calls that belong to a transform. Their fake values are not what they compute on."""
    return {node for part in (*levels(nodes), *derivatives(nodes)) for node in part}
