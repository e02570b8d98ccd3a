"""The second half of every reproducer, word for word: it compiles a graph, runs it, and compares it with eager.

A script must run where only torch and lightning-thunder are installed, so nothing here may need thunder_fx: what is
imported from it is put into each script as source. What comes before it in a script (the graph, its inputs, its
options) is script.py's.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import inspect
import json
import operator
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fx._placeholders import placeholders
from thunder_fx.graph.autograd_functions import to_old_form

# ---- from here on every reproducer is the same ----

COMPILERS = ("thunder", "inductor", "eager")


@dataclass
class Reproducer:
    """A graph, what to run it on, and how it was compiled.

    `compiler` is one of COMPILERS, or "recorded": each region of `split` by the compiler that ran it. The inputs at the
    positions `computed` came from other operators, so that they are no leaves to autograd.
    """

    graph: Callable[[], torch.nn.Module]
    make_inputs: Callable[[], list[Any]]
    compiler: str
    thunder_options: Callable[[], dict[str, Any]]
    inductor_options: Callable[[], dict[str, Any]]
    split: Callable[[Callable[..., Any]], torch.nn.Module] | None = None
    computed: Sequence[int] = ()
    differentiable: Sequence[bool] = ()
    draws_random_numbers: bool = False
    grad_enabled: bool = True
    autocast: Sequence[tuple[str, torch.dtype]] = ()
    seed: int = 0
    default_dtype: torch.dtype = torch.float32

    # Compiling

    def compiled(self, compiler: str) -> torch.nn.Module:
        """The graph, compiled by one of COMPILERS, or as it was recorded."""
        if compiler == "recorded" and self.split is not None:
            return self.split(self.compile)
        own = self.compiler if compiler == "recorded" else compiler
        return self.compile(self.graph(), own, self.differentiable)

    def compile(self, module: torch.nn.Module, compiler: str, differentiable: Sequence[bool] = ()) -> torch.nn.Module:
        if compiler == "eager":
            return module
        if compiler == "inductor":
            return _ByInductor(module, self.inductor_options())
        with placeholders():
            import thunder
        options = self.thunder_options()
        if differentiable:
            options["is_differentiable_outputs"] = list(differentiable)
        compiled: torch.nn.Module = thunder.jit(_for_thunder(module), **options)
        return compiled

    # Running

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Inside, torch is in the modes in which the graph was captured."""
        dtype, is_grad_enabled = torch.get_default_dtype(), torch.is_grad_enabled()
        torch.set_default_dtype(self.default_dtype)
        try:
            with contextlib.ExitStack() as stack:
                for device, autocast_dtype in self.autocast:
                    stack.enter_context(torch.autocast(device, dtype=autocast_dtype))
                torch.set_grad_enabled(self.grad_enabled)
                yield
        finally:
            torch.set_grad_enabled(is_grad_enabled)
            torch.set_default_dtype(dtype)

    def run(self, module: torch.nn.Module, inputs: list[Any], *, backward: bool = True) -> Run:
        """Call a module on copies of the inputs, and differentiate where an output needs a gradient."""
        own = copy.deepcopy(inputs)  # which keeps what shares memory sharing it
        arguments = [_Computed.apply(x) if i in self.computed else x for i, x in enumerate(own)]  # type: ignore[no-untyped-call]
        torch.manual_seed(self.seed)
        with self.modes():
            outputs = _flat(module(*arguments))
        result = Run(outputs, [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments])
        tensors = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
        leaves = [x for x in (*own, *module.parameters()) if isinstance(x, torch.Tensor) and x.requires_grad]
        if backward and tensors and leaves:
            seeds = [_random_like(x, seed) for seed, x in enumerate(tensors)]
            result.gradients = list(torch.autograd.grad(tensors, leaves, seeds, allow_unused=True))
        return result

    # Comparing

    def differences(self, ours: Run, eager: Run, inputs: list[Any], *, values: bool) -> list[str]:
        """In words, all in which two runs differ; without `values` only dtype and shape are compared."""
        reference: list[Run | None] = []
        found = []
        for kind in ("outputs", "inputs", "gradients"):
            a, b = getattr(ours, kind), getattr(eager, kind)
            if len(a) != len(b):
                found.append(f"{len(a)} {kind}, where eager has {len(b)}")
                continue
            for index, (got, wanted) in enumerate(zip(a, b, strict=True)):
                if kind == "gradients":
                    got, wanted = _zero_if_left_out(got, wanted), _zero_if_left_out(wanted, got)
                why = _other_metadata(got, wanted)
                if why is None and values:
                    why = _other_values(got, wanted)
                    if why and self._is_as_precise(kind, index, got, wanted, inputs, reference):
                        why = None
                if why is not None:
                    name = "input after the call" if kind == "inputs" else kind[:-1]
                    found.append(f"{name} {index}: {why}")
        return found

    def _is_as_precise(
        self, kind: str, index: int, got: Any, wanted: Any, inputs: list[Any], reference: list[Run | None]
    ) -> bool:
        """Whether a result is about as near to float64's as eager's own is: then it is rounding that differs."""
        if not _are_alike_floats(got, wanted) or self.draws_random_numbers:
            return False
        if not reference:
            reference.append(self._in_float64(inputs))
        results = getattr(reference[0], kind, [])
        exact = results[index] if index < len(results) else None
        if not isinstance(exact, torch.Tensor) or exact.shape != got.shape:
            return False
        finite = torch.isfinite(exact) & torch.isfinite(got) & torch.isfinite(wanted)
        if _other_values(got[~finite], wanted[~finite]):
            return False
        ours, theirs = ((x.double() - exact)[finite].norm().item() for x in (got, wanted))
        noise = torch.finfo(got.dtype).eps * exact[finite].norm().item()
        # Half precision is coarse enough by itself.
        allowed = 3 if torch.finfo(got.dtype).bits <= 16 else 10
        return bool(ours <= allowed * theirs + noise)

    def _in_float64(self, inputs: list[Any]) -> Run | None:
        from torch._dynamo.debug_utils import cast_to_fp64

        try:
            module, widened = cast_to_fp64(as_graph(self.graph()), copy.deepcopy(inputs))
            for new, old in zip(widened, inputs, strict=True):
                if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor) and old.requires_grad:
                    new.detach_().requires_grad_()
            wide = copy.copy(self)
            wide.autocast, wide.default_dtype = (), torch.float64
            return wide.run(module, list(widened))
        except Exception as error:  # not every graph exists in float64: then the plain comparison stands
            print(f"(no reference in float64: {type(error).__name__}: {error})", file=sys.stderr)
            return None

    # The command line

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """0 if the compiled graph agrees with eager, 1 if it differs; what a compiler raises is raised."""
        description = inspect.getdoc(sys.modules["__main__"])
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        add = parser.add_argument
        add("--compiler", choices=COMPILERS, help=f"compile all of it by this one (without: {self.compiler})")
        add("--no-check", action="store_true", help="run it, and do not compare it with eager")
        add("--benchmark", action="store_true", help="then measure it beside eager")
        add("--json", metavar="FILE", type=pathlib.Path, help="also write the outcome there")
        options = parser.parse_args(arguments)
        report: dict[str, Any] = {"outcome": "error", "error": None, "differences": []}
        try:
            report["differences"] = self._check(options.compiler or "recorded", check=not options.no_check)
            if options.benchmark:
                self._measure(options.compiler or "recorded")
            report["outcome"] = "differs" if report["differences"] else "ran" if options.no_check else "agrees"
        except BaseException as error:
            report["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            if options.json is not None:
                options.json.write_text(json.dumps(report))
        return int(report["outcome"] == "differs")

    def _check(self, compiler: str, *, check: bool) -> list[str]:
        inputs = self.make_inputs()
        start = time.perf_counter()
        ours = self.run(self.compiled(compiler), inputs)
        seconds = time.perf_counter() - start
        what = f"outputs: {len(ours.outputs)}, gradients: {len(ours.gradients)}"
        by = self.compiler if compiler == "recorded" else compiler
        print(f"compiler {by}: compiled and ran in {seconds:.1f} s, {what}")
        if not check:
            return []
        values = not self.draws_random_numbers or compiler != "thunder" or self.compiler == "thunder"
        if not values:
            print("thunder draws other random numbers here than eager: only dtypes and shapes are compared")
        found = self.differences(ours, self.run(self.graph(), inputs), inputs, values=values)
        for line in found:
            print("DIFFERS FROM EAGER:", line)
        if not found:
            print("agrees with eager")
        return found

    def _measure(self, compiler: str) -> None:
        from torch.utils.benchmark import Timer

        inputs = self.make_inputs()
        for name, module in (("compiled", self.compiled(compiler)), ("eager", self.graph())):
            self.run(module, inputs)
            timer = Timer("run(module, inputs)", globals={"run": self.run, "module": module, "inputs": inputs})
            print(f"{name}: {timer.blocked_autorange(min_run_time=1).median * 1e6:.0f} us a call, copying included")

    # For pytest-benchmark

    def compilers(self) -> list[str]:
        """As it was compiled, and each compiler by itself."""
        return list(dict.fromkeys(["recorded" if self.split else self.compiler, *COMPILERS]))

    def benchmark(self, fixture: Any, compiler: str, *, backward: bool) -> None:
        """Measure by pytest-benchmark's fixture; a compiler that is not the graph's own may not be able to run it."""
        inputs = self.make_inputs()
        try:
            module = self.compiled(compiler)
            self.run(module, inputs, backward=backward)
        except Exception as error:
            if compiler == self.compilers()[0]:
                raise
            import pytest

            pytest.skip(f"{compiler} cannot run it: {type(error).__name__}: {error}")
        fixture(self.run, module, inputs, backward=backward)


@dataclass
class Run:
    """What came of one call: its outputs, its inputs afterwards, and the gradients of the leaves."""

    outputs: list[Any]
    inputs: list[Any]
    gradients: list[torch.Tensor | None] = field(default_factory=list)


class _ByInductor(torch.nn.Module):
    """Compiles when it first runs, for what it then is given."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.options, self.call = module, options, None

    def forward(self, *args: Any) -> Any:
        if self.call is None:
            import torch._inductor

            self.call = torch._inductor.compile(as_graph(self.module), list(args), options=self.options)
        return self.call(*args)  # type: ignore[misc]


def _for_thunder(module: torch.nn.Module) -> torch.nn.Module:
    """The same, with checkpoints, autograd.Functions and with_item in the form in which thunder (0.2.6) takes them."""
    source = inspect.getsource(type(module).forward)
    if not any(name in source for name in ("tag_activation_checkpoint", "autograd_function_apply", "with_item(")):
        return module
    import thunder
    from thunder.dynamo.utils import checkpoint_converter

    graph_module = as_graph(module)
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "with_item":
            node.target = thunder.torch.setitem
    for changed in (*to_old_form(graph_module), graph_module):
        changed.recompile()
    checkpoint_converter(graph_module, graph_module)
    return graph_module


class _Computed(torch.autograd.Function):
    """Gives a tensor of the same memory that is no leaf, as the result of an operator is none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _view(x.untyped_storage(), x.dtype, x.device, x.shape, x.stride(), int(x.storage_offset()))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _random_like(x: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex64 if x.is_complex() else torch.float32
    return torch.randn(x.shape, dtype=dtype, device="cpu", generator=generator).to(x.device, x.dtype)


def _zero_if_left_out(gradient: Any, other: Any) -> Any:
    """A gradient that is zero may be left out."""
    return torch.zeros_like(other) if gradient is None and isinstance(other, torch.Tensor) else gradient


def _other_metadata(got: Any, wanted: Any) -> str | None:
    """In words, how a result is another kind of thing than eager's; of what is no tensor, the value too."""
    if not isinstance(wanted, torch.Tensor):
        same = type(got) is type(wanted) and (got == wanted or (got != got and wanted != wanted))
        return None if same else f"{got!r}, where eager has {wanted!r}"
    if not isinstance(got, torch.Tensor):
        return f"{got!r}, where eager has a tensor"
    for name in ("dtype", "shape", "requires_grad"):
        if getattr(got, name) != getattr(wanted, name):
            return f"{name} is {getattr(got, name)}, where eager has {getattr(wanted, name)}"
    return None


def _other_values(got: Any, wanted: Any) -> str | None:
    if not isinstance(wanted, torch.Tensor):
        return None
    try:
        torch.testing.assert_close(got, wanted, equal_nan=True)
    except AssertionError as error:
        return ", ".join(line.strip().rstrip("!") for line in str(error).splitlines() if line.strip())
    return None


def _are_alike_floats(got: Any, wanted: Any) -> bool:
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return False
    return got.is_floating_point() and got.dtype is wanted.dtype and got.shape == wanted.shape


# What make_inputs() is written with


def filled(
    elements: int, dtype: torch.dtype, kind: str, device: str = "cpu", *, seed: int = 0, low: int = 0, below: int = 2
) -> torch.Tensor:
    """The elements of a piece of memory, made up: always the same for the same arguments.

    "normal": of mean 0 and deviation 1; "weight": the same, small; "probability": from 0 to 1; "positive": from 1/2 to
    3/2; "index": whole numbers from `low` on, less than `below`; "zero".
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float64 if dtype is torch.float64 else torch.float32
        if kind in ("probability", "positive"):
            values = torch.rand(elements, dtype=wide, device="cpu", generator=generator) + (kind == "positive") / 2
        else:
            values = torch.randn(elements, dtype=wide, device="cpu", generator=generator)
            values *= {"weight": 0.02, "zero": 0.0}.get(kind, 1.0)
    else:
        values = torch.randint(low, max(below, low + 1), (elements,), device="cpu", generator=generator)
        values *= kind != "zero"
    return values.to(device, dtype)


def loaded(file: str, device: str = "cpu") -> torch.Tensor:
    """The elements of a piece of memory, or a tensor, as they were recorded; from beside this script."""
    value: torch.Tensor = torch.load(pathlib.Path(__file__).parent / file, weights_only=True)
    return value.to(device)


def supply(what: str) -> Any:
    """Stands where a person has to put something."""
    raise SystemExit(what)


def tensor(
    memory: torch.Tensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int = 0,
    *,
    requires_grad: bool = False,
    conj: bool = False,
    neg: bool = False,
) -> torch.Tensor:
    """A tensor of this layout (in elements) in a piece of memory, which other tensors may share."""
    view = _view(memory.untyped_storage(), dtype, memory.device, shape, stride, offset)
    view = view.conj() if conj else view
    return (torch._neg_view(view) if neg else view).requires_grad_(requires_grad)


def _view(
    storage: Any, dtype: torch.dtype, device: Any, shape: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device).set_(storage, offset, tuple(shape), tuple(stride))


def restored(cls: type, state: dict[str, Any]) -> Any:
    """An object of a class, in a state; its constructor is not run."""
    made: Any = object.__new__(cls)
    vars(made).update(state)
    return made


# The graph of a forward


def as_graph(module: torch.nn.Module) -> torch.fx.GraphModule:
    """The torch.fx graph that a Module's forward was printed from: a node for each statement. Inductor takes it."""
    if isinstance(module, torch.fx.GraphModule):
        return module
    source = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    (function,) = source.body
    assert isinstance(function, ast.FunctionDef)
    reader = _Reader(type(module).forward.__globals__)
    for argument in function.args.args[1:]:
        reader.values[argument.arg] = reader.graph.placeholder(argument.arg)
    for statement in function.body:
        reader.read(statement)
    for name, child in list(module.named_children()):
        setattr(module, name, as_graph(child))
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

    def __init__(self, names: dict[str, Any]) -> None:
        self.graph = torch.fx.Graph()
        self.values: dict[str, Any] = {}
        self._names = names

    def read(self, statement: ast.stmt) -> None:
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
