"""Python objects as code that makes them again in another process: literals, imports, sources of classes.

Nothing is written as its repr that would not be read back. What cannot be written raises Inexpressible, in words that
a person who has the script can act on.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import importlib.machinery
import inspect
import itertools
import math
import site
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

_MODULES_OF_THE_SCRIPT = frozenset({"torch", "thunder"})


class Inexpressible(ValueError):
    """An object that no code can make again."""


class Writer:
    """Collects, for one script, the imports and sources that its expressions need."""

    def __init__(
        self, names: Mapping[str, Any] | None = None, states: Mapping[int, dict[str, Any]] | None = None
    ) -> None:
        """`names` are those that the script has of itself, with what they stand for.

        `states` are attributes to write, by the ids of the objects, in the place of those that they have now.
        """
        self._states = states or {}
        self.imports: dict[str, None] = {}  # in the order in which they were needed
        self.definitions: dict[str, str] = {}
        # Imports that another machine cannot make before something was done, which the text says.
        self.requirements: dict[str, str] = {}
        self._defined: dict[str, Any] = {"torch": torch, **(names or {})}
        self._depth = 0

    def expression(self, value: Any) -> str:
        """An expression for a value; raises Inexpressible."""
        self._depth += 1
        try:
            if self._depth > 20:
                raise Inexpressible("an object that contains itself, or is nested too deeply")
            return self._expression(value)
        finally:
            self._depth -= 1

    def _expression(self, value: Any) -> str:
        if value is None or value is ... or type(value) in _LITERALS:
            return repr(value)
        if type(value) in (int, float, complex):
            return self._number(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if type(value) in (list, tuple, set, frozenset, dict, slice, torch.Size):
            return self._container(value)
        if isinstance(value, enum.Flag):
            return f"{self.expression(type(value))}({value.value!r})"
        if isinstance(value, enum.Enum):
            return f"{self.expression(type(value))}.{value.name}"
        if isinstance(value, types.ModuleType):
            return self.imported(value.__name__, None, value.__name__)
        if isinstance(value, functools.partial):
            arguments = [self.expression(a) for a in value.args]
            arguments += [f"{name}={self.expression(a)}" for name, a in value.keywords.items()]
            self.imports["import functools"] = None
            return f"functools.partial({', '.join([self.expression(value.func), *arguments])})"
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return self._named(value)
        return self._instance(value)

    @staticmethod
    def _number(value: Any) -> str:
        parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
        if all(isinstance(part, int) or math.isfinite(part) for part in parts):
            return repr(value)
        return f"complex({str(value)!r})" if isinstance(value, complex) else f"float({str(value)!r})"

    def _container(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.expression, (value.start, value.stop, value.step)))})"
        items = ", ".join(map(self.expression, value))
        if isinstance(value, list):
            return f"[{items}]"
        if isinstance(value, (set, frozenset)):
            return f"{type(value).__name__}([{items}])"
        plain = f"({items}{',' if len(value) == 1 else ''})"
        return f"torch.Size({plain})" if isinstance(value, torch.Size) else plain

    # What has a name

    def imported(self, module: str, name: str | None, as_name: str) -> str:
        """A name for a module, or for what one has; another than `as_name` where that is taken."""
        value = sys.modules[module] if name is None else getattr(sys.modules[module], name)
        if name is None:
            top = module.partition(".")[0]
            self._claim(top, sys.modules[top])
            self.imports[f"import {module}"] = None
            return module
        free = self._free_name(as_name, value)
        self.imports[f"from {module} import {name}" + (f" as {free}" if free != name else "")] = None
        return free

    def _free_name(self, name: str, value: Any) -> str:
        """This name, or one like it that stands for nothing else in the script."""
        candidates = (name if n == 1 else f"{name}_{n}" for n in itertools.count(1))
        free = next(c for c in candidates if self._defined.get(c, value) is value)
        self._defined[free] = value
        return free

    def _claim(self, name: str, value: Any) -> None:
        if self._defined.setdefault(name, value) is not value:
            raise Inexpressible(f"two different objects of the name {name}")

    def _named(self, value: Any) -> str:
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module == "builtins" and getattr(builtins, str(qualname), None) is value:
            return str(qualname)
        if module and qualname and _is_installed(module) and _attribute(module, qualname) is value:
            first, *rest = qualname.split(".")
            return ".".join([self.imported(module, first, first), *rest])
        if isinstance(value, types.BuiltinFunctionType) and getattr(torch, str(qualname).split(".")[-1], None) is value:
            return f"torch.{str(qualname).split('.')[-1]}"
        try:
            return self.embedded(value)
        except Inexpressible:
            if not (module and qualname and _is_importable(module) and _attribute(module, qualname) is value):
                raise
            first, *rest = qualname.split(".")
            return ".".join([self._required(module, first, first), *rest])

    def embedded(self, value: Any) -> str:
        """The name of a class or function whose source is put into the script."""
        name = value.__name__
        if name in self._defined:
            if self._defined[name] is value:
                return str(name)
            raise Inexpressible(f"two different objects of the name {name}")
        what = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', name)}"
        if not name.isidentifier():
            raise Inexpressible(f"{what}, which has no name by which another process could import it")
        try:
            source = textwrap.dedent(inspect.getsource(value))
            tree = ast.parse(source)
        except (OSError, TypeError, SyntaxError) as error:
            raise Inexpressible(f"{what}, which cannot be imported, and whose source is not known ({error})") from error
        if not isinstance(tree.body[0], (ast.ClassDef, ast.FunctionDef)):
            raise Inexpressible(f"{what}, which cannot be imported from an installed package")
        self._defined[name] = value
        try:
            self._define_what_it_reads(value, tree, what)
        except Inexpressible:
            del self._defined[name]
            raise
        self.definitions[name] = source.rstrip()
        return str(name)

    def _define_what_it_reads(self, value: Any, tree: ast.Module, what: str) -> None:
        known = _surroundings(value)
        for name in sorted(_free_names(tree) - {value.__name__}):
            if name in known:
                self._bind(name, known[name])
            elif not hasattr(builtins, name):
                raise Inexpressible(f"{what}, which cannot be imported, and whose source reads the unknown name {name}")

    def _bind(self, name: str, value: Any) -> None:
        """Let a name of the script stand for a value."""
        if self._defined.get(name) is value:
            return
        if name in self._defined:
            raise Inexpressible(f"two different objects of the name {name}")
        if isinstance(value, types.ModuleType):
            if not _is_installed(value.__name__):
                raise Inexpressible(f"the module {value.__name__}, which is not installed")
            self._defined[name] = value
            self.imports[f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None
            return
        expression = self.expression(value)
        if expression != name:
            self._claim(name, value)
            self.definitions[name] = f"{name} = {expression}"
            self._defined[name] = value

    def imported_module(self, module: str) -> None:
        """Have the script import a module for what it does when it is imported."""
        if _is_installed(module):
            self.imports[f"import {module}"] = None
        elif _is_importable(module):
            self._require(f"import {module}", module)
        else:
            raise Inexpressible(f"the module {module}, which no other process can import")

    def _required(self, module: str, name: str, as_name: str) -> str:
        self._require(f"from {module} import {name}" + (f" as {as_name}" if as_name != name else ""), module)
        return as_name

    def _require(self, line: str, module: str) -> None:
        top = module.partition(".")[0]
        file = getattr(sys.modules[top], "__file__", None) or "?"
        self.requirements[line] = f"`{line}` must work: put {top} on PYTHONPATH, or install it; it was {file}"

    # What has a state

    def _instance(self, value: Any) -> str:
        for is_there, write in ((_is_installed, self.imported), (_is_importable, self._required)):
            found = _module_level_name(value, is_there)
            if found is not None:
                module, name = found
                return write(module, name, name if len(name) > 3 else f"{module.rpartition('.')[2]}_{name}")
        kind, state = type(value), self._states.get(id(value), getattr(value, "__dict__", None))
        what = f"an object of {kind.__module__}.{kind.__qualname__}"
        if _is_executor(kind):
            raise Inexpressible(f"{what}, the executor {value.name!r}, which no importable module keeps under a name")
        slots = any("__slots__" in vars(c) and vars(c)["__slots__"] for c in kind.__mro__)
        # A tensor, or a subclass of int, has more state than its attributes.
        if _has_own_new(kind) or not isinstance(state, dict) or slots:
            raise Inexpressible(f"{what}, which has no state that could be written")
        name = self.expression(kind)
        if not state and _takes_nothing(kind):
            return f"{name}()"
        return f"restored({name}, {{{', '.join(f'{k!r}: {self._state(what, k, v)}' for k, v in state.items())}}})"

    def _state(self, what: str, key: str, value: Any) -> str:
        try:
            return self.expression(value)
        except Inexpressible as error:
            raise Inexpressible(f"{what}, whose attribute {key} is {error}") from None


_LITERALS = (bool, str, bytes)


@functools.cache
def _folders_of_packages() -> tuple[str, ...]:
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    paths.add(site.getusersitepackages())
    return tuple(path for path in paths if path)


def _is_installed(module: str) -> bool:
    """Whether another process on another machine can import a module, once the packages are installed there."""
    top = module.partition(".")[0]
    if top in _MODULES_OF_THE_SCRIPT or top in sys.stdlib_module_names:
        return top != "__main__"
    if top == "thunder_fx" or top not in sys.modules:
        return False
    file = getattr(sys.modules[top], "__file__", None) or next(iter(getattr(sys.modules[top], "__path__", [])), None)
    return file is not None and file.startswith(_folders_of_packages())


def _attribute(module: str, qualname: str) -> Any:
    value: Any = sys.modules.get(module)
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


def _is_importable(module: str) -> bool:
    """Whether a process with this one's sys.path finds a module by its name."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if module.partition(".")[0] in ("__main__", "thunder_fx") or spec is None or spec.origin is None:
        return False
    package = sys.modules.get(module.rpartition(".")[0])
    found = importlib.machinery.PathFinder.find_spec(module, getattr(package, "__path__", None))
    return found is not None and found.origin == spec.origin


def _is_executor(kind: type) -> bool:
    return any(base.__module__ == "thunder.extend" for base in kind.__mro__)


def _module_level_name(value: Any, is_there: Callable[[str], bool]) -> tuple[str, str] | None:
    """Where a module of such a kind keeps an object under a name: thunder's executors are kept so."""
    if type(value).__module__ == "builtins":
        return None
    for module, contents in sorted(sys.modules.items()):
        if module.partition(".")[0] == "torch" or not isinstance(contents, types.ModuleType):
            continue
        for name, found in list(vars(contents).items()):
            if found is value and is_there(module) and not name.startswith("_"):
                return module, name
    return None


def _has_own_new(kind: type) -> bool:
    return any("__new__" in vars(base) for base in kind.__mro__ if base is not object)


def _takes_nothing(kind: type) -> bool:
    return kind.__init__ is object.__init__ or len(inspect.signature(kind.__init__).parameters) == 1  # type: ignore[misc]


def _surroundings(value: Any) -> dict[str, Any]:
    """The names that the source of a class or function can read: globals, closures, base classes."""
    functions = [value] if inspect.isfunction(value) else [f for f in vars(value).values() if inspect.isfunction(f)]
    names = dict(vars(sys.modules.get(value.__module__, types.ModuleType("gone"))))
    for base in getattr(value, "__mro__", ())[1:]:
        names.setdefault(base.__name__, base)
    for function in functions:
        names.update(function.__globals__)
        names.update(inspect.getclosurevars(function).nonlocals)
    return names


def _free_names(tree: ast.AST) -> set[str]:
    """The names that a source reads and does not itself define anywhere. Annotations are not read."""
    stored: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(_without_annotations(tree)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            stored.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            stored.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            stored.add(node.name)
    return read - stored


class _AnnotationRemover(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant("")
        return self.generic_visit(node)


def _without_annotations(tree: ast.AST) -> ast.AST:
    return _AnnotationRemover().visit(ast.parse(ast.unparse(tree)))  # type: ignore[no-any-return]


def indented(source: str, by: str = "    ") -> str:
    """A source further to the right, but for the lines inside of its strings, whose values must not change."""
    inside = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno is not None
        for line in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = source.split("\n")  # and not at what else ends a line to str.splitlines()
    return "\n".join(line if n in inside or not line else by + line for n, line in enumerate(lines, 1))
