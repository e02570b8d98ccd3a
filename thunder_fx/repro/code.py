"""A captured graph as the source of a Module: torch.fx prints it, and here are the classes and imports around that.

What the graph is run on is inputs.py's, what an argument looks like as code values.py's.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import operator
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from thunder_fx import _torch
from thunder_fx.graph import gradients, structure
from thunder_fx.repro.values import Inexpressible, Writer, indented


@dataclass
class Source:
    """The classes that graphs became, and what they need beside them.

    `constants` are the tensors that the graphs hold themselves, by the file that they are to be saved in; `problems`
    say what could not be written, each in one sentence.
    """

    writer: Writer
    classes: list[str] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # What must hold before anything runs, as an expression, and what to say if it does not.
    checks: dict[str, str] = field(default_factory=dict)

    def add(self, graph_module: GraphModule, name: str) -> str:
        """Write a graph, after the graphs inside of it, as a class of this name; gives the class's text."""
        members = []
        for node in _attributes(graph_module):
            members.append(self._member(_plain_name(node), _torch.attribute(node), name))
        text = _class(name, members, self._forward(graph_module))
        self.classes.append(text)
        return text

    def add_split(self, split: GraphModule, members: list[str]) -> None:
        """Write what calls the regions, which `members` make, in order."""
        own = [node for node in _attributes(split) if node.op == "get_attr"]
        members = [*members, *(self._member(_plain_name(node), _torch.attribute(node), "Split") for node in own)]
        self.classes.append(_class("Split", members, self._forward(split), parameters="self, compile"))

    def _member(self, name: str, value: Any, owner: str) -> str:
        if isinstance(value, GraphModule):
            inner = f"{owner}_{name}"
            self.add(value, inner)
            return f"self.{name} = as_graph({inner}())"
        if isinstance(value, torch.nn.Module):
            return f"self.{name} = {self._module(name, value)}"
        if isinstance(value, torch.nn.Parameter):
            kind = '"weight"' if value.is_floating_point() or value.is_complex() else '"index"'
            made = (
                f"filled({value.numel()}, {value.dtype}, {kind}, {str(value.device)!r}).reshape({tuple(value.shape)})"
            )
            return f"self.{name} = torch.nn.Parameter({made}, requires_grad={value.requires_grad})"
        if isinstance(value, torch.Tensor):
            made = self._state_of_module(value) if name.startswith("L__") else self._constant(value)
            return f'self.register_buffer("{name}", {made}, persistent=False)'
        return f"self.{name} = {self._expression(value, f'the attribute {name} of the graph')}"

    def _module(self, name: str, value: torch.nn.Module) -> str:
        """A Module that a graph calls, which no graph of Dynamo's does where it can look inside."""
        text = _torch.module_as_code(value)
        if text is None:
            what = f"the graph calls {name}, a {type(value).__qualname__}, which is not written: make one here"
            self.problems.append(what)
            return f"supply({what!r})"
        first = next(value.parameters(), None)
        where = f".to({str(first.device)!r}, {first.dtype})" if first is not None else ""
        return f"made_up({text}{where}, training={value.training})"

    @staticmethod
    def _state_of_module(value: torch.Tensor) -> str:
        """A user's buffer, which Dynamo leaves in the graph where inline_inbuilt_nn_modules is off (torch 2.9)."""
        kind = "positive" if value.is_floating_point() else "index"
        return f"filled({value.numel()}, {value.dtype}, {kind!r}, {str(value.device)!r}).reshape({tuple(value.shape)})"

    def _constant(self, value: torch.Tensor) -> str:
        if value.numel() <= 64 and value.layout is torch.strided and not value.is_quantized:
            listed = value.detach().cpu().resolve_conj().resolve_neg().tolist()
            device = f", device={str(value.device)!r}" if value.device.type != "cpu" else ""
            try:
                return f"torch.tensor({self.writer.expression(listed)}, dtype={value.dtype}{device})"
            except Inexpressible:
                pass
        if value.layout is not torch.strided or value.is_quantized or not _torch.is_plain_tensor(value):
            what = f"a constant of the graph is a {value.layout} tensor ({type(value).__name__}), which is not written"
            self.problems.append(f"{what}: make one in the graph's class")
            return f"supply({what!r})"
        value = value.detach().resolve_conj().resolve_neg()
        file = f"constants/{content_hash(value)}.pt"
        self.constants[file] = value.detach().cpu()
        return f"loaded({file!r}, {str(value.device)!r})"

    def _expression(self, value: Any, what: str) -> str:
        try:
            return self.writer.expression(value)
        except Inexpressible as error:
            self.problems.append(f"{what} is {error}")
            return "None"

    def _forward(self, graph_module: GraphModule) -> str:
        graph = structure.copy_structure(graph_module).graph
        for node in graph.nodes:
            _make_printable(node)
        code = graph.python_code("self", verbose=True)
        text = code.src
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for name, value in code.globals.items():
            if name not in used or getattr(builtins, name, None) is value:
                continue
            # Python would take two leading underscores in a class for a private name.
            plain = name.lstrip("_") if name.startswith("__") else name
            text = re.sub(rf"\b{re.escape(name)}\b", plain, text)
            self._provide(plain, value)
        for operator_name in sorted(_foreign_operators(graph)):
            self._require_operator(operator_name)
        return _tidied(text)

    def _provide(self, name: str, value: Any) -> None:
        """Let a name of the printed code stand for what it stood for."""
        if name == "torch":
            return
        if name in _OF_TORCH:
            self.writer.imports[_OF_TORCH[name]] = None
            return
        expression = self._expression(value, f"{name}, which the graph calls,")
        if expression != name:
            self.writer.definitions[name] = f"{name} = {expression}"

    def _require_operator(self, qualified: str) -> None:
        module = _torch.module_of_operator(qualified)
        if module is not None:
            try:
                self.writer.imported_module(module)
                return
            except Inexpressible:
                pass
        namespace, name = qualified.split("::")
        message = f"the graph calls the operator {qualified}: import the module that registers it, above this line"
        self.checks[f'hasattr(torch.ops.{namespace}, "{name}")'] = message
        self.problems.append(message)


# What the printed code calls by a short name.
_OF_TORCH = {
    "device": "from torch import device",
    "inf": "from torch import inf",
    "nan": "from torch import nan",
    "NoneType": "from types import NoneType",
    "pytree": "import torch.utils._pytree as pytree",
    "fx_pytree": "import torch.fx._pytree as fx_pytree",
}
_NAMESPACES_OF_TORCH = frozenset({"aten", "higher_order", "prim", "prims", "quantized", "torchvision", "inductor"})


def for_thunder(graph_module: GraphModule) -> GraphModule:
    """The graph with autograd switched off around what is constant to it: there thunder may lack a derivative.

    thunder_fx tells thunder so while it traces; thunder.jit must read it in the code.
    """
    own = structure.copy_structure(graph_module)
    constants: set[torch.fx.Node] = set()
    for node in reversed(structure.calls(own)):
        # What the region hands on with a gradient keeps it, though nobody may need it there.
        handed_on = any(t.requires_grad for t in structure.tensors_of(node)) and not constants.issuperset(node.users)
        if gradients.is_constant(node) and not handed_on:
            constants.add(node)
    off = False
    for node in list(own.graph.nodes):
        if node.op in ("placeholder", "get_attr"):
            continue
        constant = node in constants and _has_differentiable_operand(node)
        if constant is not off:
            with own.graph.inserting_before(node):
                own.graph.call_function(_torch.set_grad_enabled, (off,))
            off = constant
    return own


def _has_differentiable_operand(node: torch.fx.Node) -> bool:
    return any(tensor.requires_grad for n in node.all_input_nodes for tensor in structure.tensors_of(n))


def content_hash(value: torch.Tensor) -> str:
    """A name for a tensor by what is in it."""
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())}".encode())
    digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()[:16]


def _attributes(graph_module: GraphModule) -> list[torch.fx.Node]:
    """The nodes that read what a graph has, or call it, one for each of its names, in order."""
    found = {str(n.target): n for n in graph_module.graph.nodes if n.op in ("get_attr", "call_module")}
    return list(found.values())


def _plain_name(node: torch.fx.Node) -> str:
    """A name for what a node reads or calls: `part.0` is none, and `part_0` may be another's."""
    target = str(node.target)
    taken = {str(other.target) for other in node.graph.nodes if other.op in ("get_attr", "call_module")} - {target}
    plain = target.replace(".", "_")
    while plain in taken:
        plain += "_"
    return plain


def _make_printable(node: torch.fx.Node) -> None:
    """Write as a method what is one, and `part.0` as a name.

    And `-1 ** x`, as torch.fx prints `pow(-1, x)`, is -(1 ** x) (2.9 to 2.15).
    """
    if node.op in ("get_attr", "call_module"):
        node.target = _plain_name(node)
    name = getattr(node.target, "__name__", "")
    if node.op == "call_function" and getattr(torch.Tensor, name, None) is node.target and node.args:
        node.op, node.target = "call_method", name
    if node.target is operator.pow and isinstance(node.args[0], (int, float)) and node.args[0] < 0:
        node.target = pow


def _foreign_operators(graph: torch.fx.Graph) -> set[str]:
    found = set()
    for node in graph.nodes:
        if isinstance(node.target, (_torch.OpOverload, _torch.OpOverloadPacket)):
            packet: Any = getattr(node.target, "overloadpacket", node.target)
            name = str(packet._qualified_op_name)
            if name.partition("::")[0] not in _NAMESPACES_OF_TORCH:
                found.add(name)
    return found


def _class(name: str, members: list[str], forward: str, parameters: str = "self") -> str:
    lines = [f"class {name}(torch.nn.Module):"]
    if members or parameters != "self":
        lines += [f"    def __init__({parameters}):", "        super().__init__()"]
        lines += [*(f"        {line}" for line in members), ""]
    return "\n".join(lines) + "\n" + indented(forward)


def _tidied(source: str) -> str:
    """The printed function without the comment that nothing is known, and without lines of blanks."""
    lines = [line.rstrip() for line in source.strip().split("\n")]
    lines = [line for line in lines if line.strip() != "# No stacktrace found for following nodes"]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
