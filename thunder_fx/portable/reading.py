"""Reading back the graph that a Module's forward was printed from."""

from __future__ import annotations

import ast
import inspect
import operator
import re
import textwrap
from typing import Any

import torch


def as_graph(module: torch.nn.Module) -> torch.fx.GraphModule:
    """The torch.fx graph that a Module's forward was printed from: a node for each statement. Inductor takes it."""
    if isinstance(module, torch.fx.GraphModule):
        return module
    source = textwrap.dedent(inspect.getsource(type(module).forward))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    reader = _Reader(type(module).forward.__globals__, source.split("\n"))
    for argument in function.args.args[1:]:
        reader.values[argument.arg] = reader.graph.placeholder(argument.arg)
    for statement in function.body:
        reader.read(statement)
    return torch.fx.GraphModule(module, reader.graph)


_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_IN_PLACE: dict[type[ast.AST], Any] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.Pow: operator.ipow, ast.MatMult: operator.imatmul,
    ast.LShift: operator.ilshift, ast.RShift: operator.irshift, ast.BitAnd: operator.iand, ast.BitOr: operator.ior,
    ast.BitXor: operator.ixor,
}  # fmt: skip


class _Reader:
    """Reads what torch.fx prints, and nothing else."""

    def __init__(self, names: dict[str, Any], lines: list[str]) -> None:
        self.graph = torch.fx.Graph()
        self.values: dict[str, Any] = {}
        self._names = names
        self._lines = lines

    def read(self, statement: ast.stmt) -> None:
        self._read(statement)
        node, place = next(iter(reversed(self.graph.nodes)), None), self._place(statement)  # of a statement at most one
        if node is not None and node.op != "placeholder" and place is not None:
            node.meta.setdefault("stack_trace", place)

    def _place(self, statement: ast.stmt) -> str | None:
        """Where in the user's program a statement comes from, as a traceback says it: by the comment above it."""
        for line in reversed(self._lines[: statement.lineno - 1]):
            found = re.fullmatch(r"\s*# File: (.*):(\d+) in (.*?), code: (.*)", line)
            if found:
                return '  File "{}", line {}, in {}\n    {}'.format(*found.groups())
        return None

    def _read(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return):
            self.graph.output(self._argument(statement.value))
        elif isinstance(statement, ast.AugAssign):  # the same object under its old name
            target = statement.target
            assert isinstance(target, ast.Name)
            arguments = (self.values[target.id], self._argument(statement.value))
            self.values[target.id] = self.graph.call_function(_IN_PLACE[type(statement.op)], arguments)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self._assign(
                statement.targets[0] if isinstance(statement, ast.Assign) else statement.target, statement.value
            )
        elif not isinstance(statement, ast.Pass):
            raise ValueError(f"not a statement of a graph: {ast.unparse(statement)}")

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return  # a value that is not needed any more
        if isinstance(target, ast.Subscript):
            parts = (target.value, target.slice, value)
            self.graph.call_function(operator.setitem, tuple(map(self._argument, parts)))
            return
        assert isinstance(target, ast.Name)
        self.values[target.id] = self._result(value, target.id)

    def _result(self, value: ast.expr, name: str) -> Any:
        if isinstance(value, ast.Name):
            return self.values[value.id]
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
            return self.graph.create_node("get_attr", value.attr, name=name)
        operation, function, parts, keywords = self._call(value)
        arguments = tuple(map(self._argument, parts))
        named = {str(keyword.arg): self._argument(keyword.value) for keyword in keywords}
        return self.graph.create_node(operation, function, arguments, named, name=name)

    def _call(self, value: ast.expr) -> tuple[str, Any, list[ast.expr], list[ast.keyword]]:
        """What a statement calls (a function, or a method's name), and with what."""
        if isinstance(value, ast.BinOp):
            return "call_function", _OPERATORS[type(value.op)], [value.left, value.right], []
        if isinstance(value, ast.UnaryOp):
            return "call_function", _OPERATORS[type(value.op)], [value.operand], []
        if isinstance(value, ast.Compare):
            return "call_function", _OPERATORS[type(value.ops[0])], [value.left, value.comparators[0]], []
        if isinstance(value, ast.Subscript):
            return "call_function", operator.getitem, [value.value, value.slice], []
        if isinstance(value, ast.Attribute):
            return "call_function", getattr, [value.value, ast.Constant(value.attr)], []
        assert isinstance(value, ast.Call), ast.unparse(value)
        method = value.func
        if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name) and method.value.id == "self":
            return "call_module", method.attr, value.args, value.keywords
        if isinstance(method, ast.Attribute) and self._mentions_a_value(method.value):
            return "call_method", method.attr, [method.value, *value.args], value.keywords
        return "call_function", self._evaluated(method), value.args, value.keywords

    def _argument(self, value: ast.expr | None) -> Any:
        if value is None:
            return None
        if not self._mentions_a_value(value):
            return self._evaluated(value)
        if isinstance(value, ast.Name):
            return self.values[value.id]
        if isinstance(value, ast.Tuple):
            return tuple(map(self._argument, value.elts))
        if isinstance(value, ast.List):
            return list(map(self._argument, value.elts))
        if isinstance(value, ast.Dict):
            return {self._evaluated(k): self._argument(v) for k, v in zip(value.keys, value.values, strict=True) if k}
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "slice":
            return slice(*map(self._argument, value.args))
        raise ValueError(f"not an argument in a graph: {ast.unparse(value)}")

    def _mentions_a_value(self, value: ast.expr) -> bool:
        return any(isinstance(part, ast.Name) and part.id in self.values for part in ast.walk(value))

    def _evaluated(self, value: ast.expr) -> Any:
        expression = ast.fix_missing_locations(ast.Expression(value))
        return eval(compile(expression, "<reproducer>", "eval"), self._names)
