"""What explain() knows, as plain data: one object for the callable, each graph, region, operator and split.

How it is gathered is gather.py's, how it is shown text.py's and page.py's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thunder_fx.subgraph import ExampleInput

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx


@dataclass(frozen=True)
class Option:
    """An option as it was given, as code or in words, and whose it is: thunder.jit, torch.compile or Inductor."""

    name: str
    value: str
    receiver: str


@dataclass(frozen=True)
class Limit:
    """How often Dynamo has compiled the callable's code, beside its limits; then it runs eager, silently.

    Attributes:
        used, limit: compilations of this callable, and torch._dynamo.config.recompile_limit.
        used_by_all, limit_of_all: of every callable of the same code, and accumulated_recompile_limit.
    """

    used: int
    limit: int
    used_by_all: int
    limit_of_all: int

    @property
    def is_reached(self) -> bool:
        return self.used >= self.limit or self.used_by_all >= self.limit_of_all

    @property
    def is_near(self) -> bool:
        """Whether one or two more compilations reach it."""
        return not self.is_reached and (self.limit - self.used <= 2 or self.limit_of_all - self.used_by_all <= 2)


@dataclass(frozen=True)
class Stage:
    """One of thunder's traces of a region: what a pass made of it.

    Attributes:
        name: the pass, as thunder names it.
        seconds: how long it took, where thunder says so.
    """

    name: str
    seconds: float | None
    _trace: TraceCtx = field(repr=False, compare=False)

    @property
    def code(self) -> str:
        """The trace as Python source, printed when it is asked for."""
        return str(self._trace)


@dataclass(frozen=True)
class Operator:
    """A node of a region: its name in the graph, what it calls, and the line of the program that it comes from."""

    node: str
    target: str
    source: str | None


@dataclass(frozen=True)
class Edge:
    """A value that goes from one region to another, by their names."""

    value: str
    start: str
    end: str
    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class RegionReport:
    """A part of a graph that one compiler runs.

    Attributes:
        compiler: "thunder", "inductor" or "eager".
        executors: how many operators of its forward and backward each of thunder's executors claims.
        forward, backward, prologue: thunder's traces, each stage in order; empty where thunder compiled nothing yet.
        seconds: "compile", "first call"; and of thunder's last compilation "tracing" and "passes".
        compilations: how often its compiler compiled it.
        warning: in words, what a person should look at.
        profile: what profile() measured: "forward", "backward" and, on CUDA, "forward_kernels", "backward_kernels", in
            seconds for one call.
    """

    name: str
    compiler: str
    operators: tuple[Operator, ...]
    inputs: tuple[ExampleInput, ...]
    executors: dict[str, int]
    forward: tuple[Stage, ...]
    backward: tuple[Stage, ...]
    prologue: tuple[Stage, ...]
    seconds: dict[str, float]
    compilations: int
    error: str | None = None
    warning: str | None = None
    profile: dict[str, float] | None = None


@dataclass(frozen=True)
class Split:
    """A node that thunder does not run, and why."""

    node: str | None
    operator: str
    region: str | None
    type: str
    reason: str
    exception: str | None
    source: str | None


@dataclass(frozen=True)
class Cost:
    """What an operator that thunder does not run costs, over all graphs.

    Attributes:
        places: how many nodes of it there are.
        regions: how many regions exist only because of it: so many fewer there would be if thunder ran it.
        of: how many regions there are.
    """

    operator: str
    places: int
    regions: int
    of: int

    def __str__(self) -> str:
        places = f"{self.places} place{'s' if self.places != 1 else ''}"
        if self.regions == 0:
            return f"{self.operator}: {places}, and no region exists only because of it"
        exist = "exists" if self.regions == 1 else "exist"
        return f"{self.operator}: {places}, {self.regions} of {self.of} regions {exist} only because of it"


@dataclass(frozen=True)
class GraphReport:
    """A graph that Dynamo captured.

    Attributes:
        compile_id: Dynamo's, as in TORCH_LOGS; None outside of torch.compile.
        function, file, line: what was captured.
        previous_break: why the graph before ended, where this is what comes after a graph break.
        graph_break: why this one ends where it does; None where it runs to the function's end.
        recompile: the guard that failed; None for a first compilation.
        seconds: "dynamo" (where Dynamo still knows it), "rewrite", "support", "split", "compile", "first calls".
        overlapping_calls: how many calls ran the whole graph eager, since inputs overlapped.
    """

    graph_id: int
    compile_id: str | None
    function: str | None
    file: str | None
    line: int | None
    previous_break: str | None
    graph_break: str | None
    recompile: str | None
    inputs: tuple[ExampleInput, ...]
    nodes: int
    regions: tuple[RegionReport, ...]
    splits: tuple[Split, ...]
    edges: tuple[Edge, ...]
    seconds: dict[str, float]
    overlapping_calls: int = 0
    error: str | None = None

    @property
    def operators(self) -> int:
        """How many operators its regions have."""
        return sum(len(region.operators) for region in self.regions)


def as_plain(value: Any, *, traces: bool) -> Any:
    """Data of JSON's kinds only."""
    if isinstance(value, Stage):
        return {"name": value.name, "seconds": value.seconds, **({"code": value.code} if traces else {})}
    if isinstance(value, ExampleInput):
        return _input(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_plain(getattr(value, each.name), traces=traces) for each in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [as_plain(each, traces=traces) for each in value]
    if isinstance(value, dict):
        return {str(name): as_plain(each, traces=traces) for name, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _input(value: ExampleInput) -> dict[str, Any]:
    if not value.is_tensor:
        return {"name": value.name, "value": value.value}
    return {
        "name": value.name,
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "symbolic_shape": list(value.symbolic_shape) if value.symbolic_shape is not None else None,
        "strides": list(value.strides),
        "device": str(value.device),
        "requires_grad": value.requires_grad,
    }


def described_input(value: ExampleInput) -> str:
    """An input in words, `x: float32[s0 = 5, 3]`: sizes that may differ from call to call, and what was seen."""
    if not value.is_tensor:
        return f"{value.name} = {value.value}"
    symbols = value.symbolic_shape or tuple(map(str, value.shape))
    sizes = [
        str(seen) if text == str(seen) else f"{text} = {seen}" for text, seen in zip(symbols, value.shape, strict=True)
    ]
    grad = ", requires grad" if value.requires_grad else ""
    device = "" if str(value.device) == "cpu" else f" on {value.device}"
    return f"{value.name}: {str(value.dtype).removeprefix('torch.')}[{', '.join(sizes)}]{device}{grad}"
