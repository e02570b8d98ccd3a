"""The second half of every reproducer, word for word: it compiles a graph, runs it, and compares it with eager.

A script must run where only torch and lightning-thunder are installed, so nothing here may need thunder_fx: what is
imported from it is put into each script as source. What comes before it in a script (the graph, its inputs, its
options) is script.py's.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import inspect
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fx._placeholders import placeholders
from thunder_fx.portable.autograd_functions import to_old_form
from thunder_fx.portable.checkpoints import to_eager_form
from thunder_fx.portable.comparison import Run, differences, memory_of, remarks
from thunder_fx.portable.copies import copied, view_of
from thunder_fx.portable.draws import Draws
from thunder_fx.portable.inputs import filled, loaded, made_up, supply, tensor
from thunder_fx.portable.overlaps import overlap
from thunder_fx.portable.reading import as_graph

__all__ = ["COMPILERS", "Reproducer", "as_graph", "filled", "loaded", "made_up", "restored", "supply", "tensor"]


def restored(cls: type, state: dict[str, Any]) -> Any:
    """An object of a class, in a state; its constructor is not run."""
    made: Any = object.__new__(cls)
    vars(made).update(state)
    return made


# ---- from here on every reproducer is the same ----

COMPILERS = ("thunder", "inductor", "eager")


@dataclass
class Reproducer:
    """A graph, what to run it on, and how it was compiled.

    `compiler` is one of COMPILERS, or "recorded": each region of `split` by the compiler that ran it. The inputs at the
    positions `computed` came from other operators, so that they are no leaves to autograd; into those at `written` the
    graph writes. `unbacked` says whether a number, and whether a size, may be one that only the data tell.
    """

    graph: Callable[[], torch.nn.Module]
    make_inputs: Callable[[], list[Any]]
    compiler: str
    thunder_options: Callable[[], dict[str, Any]]
    inductor_options: Callable[[], dict[str, Any]]
    split: Callable[[Callable[..., Any]], torch.nn.Module] | None = None
    computed: Sequence[int] = ()
    written: Sequence[int] = ()
    differentiable: Sequence[bool] = ()
    draws_random_numbers: bool = False
    grad_enabled: bool = True
    autocast: Sequence[tuple[str, torch.dtype]] = ()
    seed: int = 0
    default_dtype: torch.dtype = torch.float32
    unbacked: tuple[bool, bool] = (False, False)

    # Compiling

    def compiled(self, compiler: str) -> torch.nn.Module:
        """The graph, compiled by one of COMPILERS, or as it was recorded."""
        if compiler == "recorded" and self.split is not None:
            return self.split(self.compile)
        own = self.compiler if compiler == "recorded" else compiler
        return self.compile(self.graph(), own, self.differentiable)

    def compile(self, module: torch.nn.Module, compiler: str, differentiable: Sequence[bool] = ()) -> torch.nn.Module:
        if compiler == "eager":
            return _for_eager(module)
        if compiler == "inductor":
            return _ByInductor(module, self.inductor_options(), self.unbacked)
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
        own = copied(inputs)
        arguments = [_Computed.apply(x) if i in self.computed else x for i, x in enumerate(own)]  # type: ignore[no-untyped-call]
        torch.manual_seed(self.seed)
        with self.modes():
            outputs = _flat(module(*arguments))
        after = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
        result = Run(outputs, after, memory=memory_of([*arguments, *outputs]))
        tensors = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
        leaves = [[x] for x in own if isinstance(x, torch.Tensor) and x.requires_grad] + self._parameters(module)
        if backward and tensors and leaves:
            seeds = [_random_like(x, seed) for seed, x in enumerate(tensors)]
            flat = [x for each in leaves for x in each]
            gradients = iter(torch.autograd.grad(tensors, flat, seeds, allow_unused=True))
            result.gradients = [_sum([next(gradients) for _ in each]) for each in leaves]
        return result

    def _parameters(self, module: torch.nn.Module) -> list[list[torch.Tensor]]:
        """The graph's own parameters, in its order: each as often as a compiled Module has it, in its regions."""
        found = [(name, x) for name, x in module.named_parameters() if x.requires_grad]
        names = [name for name, _ in self.graph().named_parameters()] if found else []
        return [[x for full, x in found if f".{full}".endswith(f".{name}")] for name in names]

    # Comparing

    def differences(self, ours: Run, eager: Run, inputs: list[Any], *, values: bool) -> list[str]:
        """In words, all in which two runs differ; without `values` only dtype and shape are compared."""
        return differences(ours, eager, functools.cache(lambda: self._in_float64(inputs)) if values else None)

    def _in_float64(self, inputs: list[Any]) -> Run | None:
        from torch._dynamo.debug_utils import cast_to_fp64

        if overlap(inputs, self.written):
            return None  # in float64 each has memory of its own: that is another computation
        try:
            again: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
            if self.draws_random_numbers:
                with Draws() as draws:
                    self.run(self.compiled("eager"), inputs)
                again = draws.again()
            module, widened = cast_to_fp64(as_graph(self.graph()), copied(inputs))
            for new, old in zip(widened, inputs, strict=True):
                if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor) and old.requires_grad:
                    new.detach_().requires_grad_()
            wide = copy.copy(self)
            wide.autocast, wide.default_dtype = (), torch.float64
            with again:
                return wide.run(_for_eager(module), list(widened))
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
        report: dict[str, Any] = {"outcome": "error", "error": None, "differences": [], "remarks": []}
        try:
            found = self._check(options.compiler or "recorded", check=not options.no_check)
            report["differences"], report["remarks"] = found
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

    def _check(self, compiler: str, *, check: bool) -> tuple[list[str], list[str]]:
        """In words, in what the compiled graph differs from eager, and what is to be known if it does not."""
        inputs = self.make_inputs()
        if compiler == "recorded" and overlap(inputs, self.written):
            print("an input that the graph writes into shares memory with another: so it ran eager, and does here")
            compiler = "eager"
        start = time.perf_counter()
        ours = self.run(self.compiled(compiler), inputs)
        seconds = time.perf_counter() - start
        what = f"outputs: {len(ours.outputs)}, gradients: {len(ours.gradients)}"
        by = self.compiler if compiler == "recorded" else compiler
        print(f"compiler {by}: compiled and ran in {seconds:.1f} s, {what}")
        if not check:
            return [], []
        values = not self.draws_random_numbers or compiler != "thunder" or self.compiler == "thunder"
        if not values:
            print("thunder draws other random numbers here than eager: only dtypes and shapes are compared")
        try:
            eager = self.run(self.compiled("eager"), inputs)
        except Exception:
            print("eager raises, with which it was to be compared:")
            raise
        found, told = self.differences(ours, eager, inputs, values=values), remarks(ours, eager)
        for line in found:
            print("DIFFERS FROM EAGER:", line)
        if not found:
            print("agrees with eager")
        for line in told:
            print("note:", line)
        return found, told

    def _measure(self, compiler: str) -> None:
        from torch.utils.benchmark import Timer

        inputs = self.make_inputs()
        for name, module in (("compiled", self.compiled(compiler)), ("eager", self.compiled("eager"))):
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


class _ByInductor(torch.nn.Module):
    """Compiles when it first runs, for what it then is given."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any], unbacked: tuple[bool, bool]) -> None:
        super().__init__()
        self.module, self.options, self.unbacked, self.call = module, options, unbacked, None

    def forward(self, *args: Any) -> Any:
        if self.call is None:
            import torch._inductor
            from torch._guards import TracingContext, tracing
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.fx.experimental.symbolic_shapes import ShapeEnv

            # As Dynamo does it: sizes that only the data tell need a ShapeEnv; those of the inputs are what they are.
            numbers, sizes = self.unbacked
            shape_env = ShapeEnv(allow_scalar_outputs=numbers, allow_dynamic_output_shape_ops=sizes)
            mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
            fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in args]
            with tracing(TracingContext(mode)):
                self.call = torch._inductor.compile(as_graph(self.module), fakes, options=self.options)
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


def _for_eager(module: torch.nn.Module) -> torch.nn.Module:
    if not isinstance(module, torch.fx.GraphModule):
        if "tag_activation_checkpoint" not in inspect.getsource(type(module).forward):
            return module
        module = as_graph(module)
    to_eager_form(module)
    return module


class _Computed(torch.autograd.Function):
    """Gives a tensor of the same memory that is no leaf, as the result of an operator is none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return view_of(x.untyped_storage(), x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _sum(gradients: list[torch.Tensor | None]) -> torch.Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    return functools.reduce(torch.add, there) if there else None


def _random_like(x: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex64 if x.is_complex() else torch.float32
    return torch.randn(x.shape, dtype=dtype, device="cpu", generator=generator).to(x.device, x.dtype)
