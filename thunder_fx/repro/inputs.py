"""A graph's inputs as code: pieces of memory, made up or recorded, and the tensors that lie in them.

What is made up comes from metadata alone: no value of the user's is in it. Which values are allowed is domains.py's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from thunder_fx import _torch
from thunder_fx.graph import structure
from thunder_fx.repro import domains
from thunder_fx.repro.code import content_hash
from thunder_fx.repro.values import Inexpressible, Writer


@dataclass
class Inputs:
    """The body of make_inputs(), what it loads, and what else the script must know of the inputs."""

    memory: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    files: dict[str, torch.Tensor] = field(default_factory=dict)
    computed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def source(self) -> str:
        lines = [
            "def make_inputs():",
            '    """The inputs, always the same. Those that are given one piece of memory share it."""',
        ]
        lines += [f"    {line}" for line in self.memory]
        lines += ["    return [", *(f"        {line}" for line in self.values), "    ]"]
        return "\n".join(lines)


def of_graph(graph_module: GraphModule, recorded: Sequence[Any] | None, writer: Writer) -> Inputs:
    """What a graph was captured with: with the values that were recorded, or else made up."""
    found = Inputs()
    placeholders = list(graph_module.graph.find_nodes(op="placeholder"))
    values = list(recorded) if recorded is not None else [structure.value_of(node) for node in placeholders]
    made_up = _by_memory(domains.of_inputs(graph_module)) if recorded is None else {}
    memory_of: dict[Any, str] = {}
    for position, (node, value) in enumerate(zip(placeholders, values, strict=True)):
        seen = structure.value_of(node)
        if isinstance(seen, torch.Tensor) and seen.requires_grad and not seen.is_leaf:
            found.computed.append(position)
        if isinstance(value, torch.Tensor):
            requires_grad = isinstance(seen, torch.Tensor) and seen.requires_grad
            line = _tensor(node, value, requires_grad, made_up.get(node), memory_of, found)
        else:
            line = _scalar(node, value, writer, found)
        found.values.append(f"{line},  # {_note(node, seen)}")
    return found


def _by_memory(found: dict[Node, domains.Domain]) -> dict[Node, domains.Domain]:
    """Inputs that share memory have values in common: those that all of them may have."""
    sharing: dict[Any, list[Node]] = {}
    for node in found:
        storage = _torch.storage_of(structure.value_of(node))
        sharing.setdefault(node if storage is None else storage, []).append(node)
    return {node: domains.common([found[n] for n in nodes]) for nodes in sharing.values() for node in nodes}


def _note(node: Node, seen: Any) -> str:
    name = str(node.target)
    sizes = tuple(seen.shape) if isinstance(seen, torch.Tensor) else (seen,)
    symbols = [str(size) for size in sizes if isinstance(size, _SYMBOLS)]
    return f"{name}: compiled for any {', '.join(symbols)}, seen as this" if symbols else name


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _scalar(node: Node, value: Any, writer: Writer, found: Inputs) -> str:
    try:
        return writer.expression(_torch.hint(value))
    except Inexpressible as error:
        return _to_be_supplied(f"the input {node.target} is {error}: put it into make_inputs()", found)


def _to_be_supplied(what: str, found: Inputs) -> str:
    found.problems.append(what)
    return f"supply({what!r})"


def _tensor(
    node: Node,
    value: torch.Tensor,
    requires_grad: bool,
    domain: domains.Domain | None,
    memory_of: dict[Any, str],
    found: Inputs,
) -> str:
    if value.layout is not torch.strided or value.is_quantized or not _torch.is_plain_tensor(value):
        return _other_tensor(node, value, found)
    storage = _torch.storage_of(value)
    if storage is None or storage not in memory_of:
        name = f"memory_{len(found.memory)}"
        if storage is not None:
            memory_of[storage] = name
        made = _loaded(value, found) if domain is None else _filled(value, domain, len(found.memory))
        found.memory.append(f"{name} = {made}")
    else:
        name = memory_of[storage]
    shape, stride = (tuple(map(int, map(_torch.hint, each))) for each in (value.shape, value.stride()))
    offset = int(_torch.hint(value.storage_offset()))
    extras = [str(offset)] if offset else []
    extras += ["requires_grad=True"] if requires_grad else []
    extras += ["conj=True"] if value.is_conj() else []
    extras += ["neg=True"] if value.is_neg() else []
    return f"tensor({', '.join([name, str(value.dtype), str(shape), str(stride), *extras])})"


def _filled(value: torch.Tensor, domain: domains.Domain, seed: int) -> str:
    elements = math.ceil(int(_torch.hint(value.untyped_storage().nbytes())) / value.element_size())
    extras = [repr(str(value.device))] if value.device.type != "cpu" else []
    extras += [f"seed={seed}"] if seed else []
    if domain.kind in ("index", "definite"):
        extras += [f"low={domain.low}"] if domain.low else []
        extras += [f"below={domain.below}"] if domain.below != 2 else []
    return f"filled({', '.join([str(elements), str(value.dtype), repr(domain.kind), *extras])})"


def _loaded(value: torch.Tensor, found: Inputs) -> str:
    """Save a piece of memory as a tensor that a person can read: in the input's own shape, if it is all of it."""
    whole = value.detach()
    is_all = value.is_contiguous() and value.storage_offset() == 0
    if (
        not is_all
        or value.numel() * value.element_size() != value.untyped_storage().nbytes()
        or value.is_conj()
        or value.is_neg()
    ):
        size = value.untyped_storage().nbytes()
        # As bytes, where another input's dtype made the memory of a length that this one's does not divide.
        dtype = value.dtype if size % value.element_size() == 0 else torch.uint8
        whole = torch.empty(0, dtype=dtype, device=value.device)
        whole.set_(value.untyped_storage(), 0, (size // whole.element_size(),), (1,))
    return _file(whole, found)


def _file(value: torch.Tensor, found: Inputs) -> str:
    device = [repr(str(value.device))] if value.device.type != "cpu" else []
    value = value.detach().cpu()
    file = f"inputs/{content_hash(value)}.pt"
    found.files[file] = value
    return f"loaded({', '.join([repr(file), *device])})"


def _other_tensor(node: Node, value: torch.Tensor, found: Inputs) -> str:
    kind = f"a {value.layout} tensor" if _torch.is_plain_tensor(value) else f"a {type(value).__qualname__}"
    return _to_be_supplied(f"the input {node.target} is {kind}, which is not written: make one in make_inputs()", found)
