"""What is remembered of one captured graph: SubgraphInfo and its parts. Plain data.

Nothing here compiles, looks anything up, or holds what must not be held: text and metadata, graphs whose only real
tensors are constants of the graph, and the compiled regions. No frames, tracebacks, exceptions, or compiled callables
of the user.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder_fx import _thunder

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx

_graph_ids = itertools.count()
_newest_graph_id = -1


def _new_graph_id() -> int:
    global _newest_graph_id
    _newest_graph_id = next(_graph_ids)
    return _newest_graph_id


def next_graph_id() -> int:
    """A number that every graph captured from now on reaches, and none before it did."""
    return _newest_graph_id + 1


class CompilerType(enum.Enum):
    """Who runs a region."""

    THUNDER = enum.auto()
    TORCH_INDUCTOR = enum.auto()
    EAGER = enum.auto()


class SplitReasonType(enum.Enum):
    """Why thunder does not run a node."""

    UNSUPPORTED_NODE = enum.auto()  # thunder may have the operator, but not here: a functorch level, a write
    MISSING_OP_SUPPORT = enum.auto()  # thunder lacks the operator
    EXCEPTION_PROXY_THUNDER_OP = enum.auto()  # the node's inputs cannot be shown to thunder
    EXCEPTION_META_THUNDER_OP = enum.auto()  # thunder has the operator, and refuses these arguments
    EXCEPTION_TRACING = enum.auto()  # found only when thunder traced the whole region


class Source(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class SplitReason:
    """Why one node is not run by thunder.

    Attributes:
        reason_type: the kind of reason.
        info: the reason in words; names the node and its target.
        exception: type and text of the exception behind it, if there was one.
        node: the node's name in the captured graph.
        source: the line of the program that the node comes from, as `file:line, in function`; None if unknown.
    """

    reason_type: SplitReasonType
    info: str
    exception: str | None = None
    node: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class ExampleInput:
    """Metadata of one input that a graph or region was compiled for; never its values.

    Attributes:
        name: the placeholder's name.
        shape, strides: in elements; symbolic sizes by their hint, the size that was seen (-1 where there is none).
        dtype, device, layout: torch's; None for an input that is no tensor.
        storage_offset: in elements.
        requires_grad: as it was when the graph was captured.
        symbolic_shape: the sizes as text where at least one is symbolic, else None.
        value: a number's value (a symbolic one's hint), or the type's name for an input that is neither.
    """

    name: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    layout: torch.layout | None = None
    storage_offset: int = 0
    requires_grad: bool = False
    symbolic_shape: tuple[str, ...] | None = None
    value: Any = None

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None


@dataclass(frozen=True)
class State:
    """What is set in torch when a graph begins to run, as far as its results hang on it.

    Attributes:
        is_grad_enabled: whether autograd records.
        autocasts: the open autocasts, outermost first, each a device type and a dtype.
        default_dtype: of new tensors. (Their device Dynamo writes into the graph.)
        seed: the last one given to torch.manual_seed(), or the one that the process began with.
        unbacked: whether a number, and whether a size, may be one that only the data tell (torch's ShapeEnv).
    """

    is_grad_enabled: bool = True
    autocasts: tuple[tuple[str, torch.dtype], ...] = ()
    default_dtype: torch.dtype = torch.float32
    seed: int = 0
    unbacked: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class RecordedInputs:
    """The values that a graph or region was given in its last call.

    Attributes:
        values: detached copies, which share memory where the inputs did; None where they were too large to be kept.
        note: what is not as it was, in words; "" where nothing is.
    """

    values: list[Any] | None
    note: str = ""


@dataclass(frozen=True)
class CompiledFunction:
    """A region's callable, and who compiled it."""

    compiled_fn: Callable[..., Any]
    compiler: CompilerType


@dataclass(eq=False)
class Region:
    """A part of a captured graph that one compiler runs.

    Attributes:
        name: `thunder_0`, `inductor_1`, `eager_2`, ...: its name in the split graph, numbered in order of execution.
        compiler: who runs it. A region that thunder could not trace when it first ran keeps its name, and is run by
            Inductor or eager from then on.
        nodes: the names of its operators in the captured graph, in order.
        example_inputs: metadata of its inputs, in order.
        error: type and text of the last exception from compiling it or running it, forward or backward, else None.
            (Of a region that runs eager, the forward's.)
        interpreted: whether thunder had to trace it by interpreting Python's bytecode, which is slow; its graph could
            not be traced straight.
        seconds: how long its compiler took: "compile" with its graph, and, in thunder, "first call", for all sizes
            that it was compiled for, running it included. (Inductor compiles a backward when it first runs.)
    """

    name: str
    compiler: CompilerType
    nodes: tuple[str, ...] = ()
    example_inputs: tuple[ExampleInput, ...] = ()
    error: str | None = None
    interpreted: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    # Where Inductor failed, the region runs eager.
    _failed_by: CompilerType | None = field(default=None, repr=False)
    _inputs: RecordedInputs | None = field(default=None, repr=False)
    _compiled: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def traces(self) -> list[TraceCtx]:
        """Thunder's forward traces of the last compilation, each stage in order; [] where thunder compiled nothing."""
        return _thunder.forward_traces(self._compiled)

    @property
    def backward_traces(self) -> list[TraceCtx]:
        """Thunder's backward traces of the last compilation, each stage in order; [] where there is none."""
        return _thunder.backward_traces(self._compiled)

    @property
    def prologue_traces(self) -> list[TraceCtx]:
        """Thunder's prologue traces of the last compilation, each stage in order; [] where there is none."""
        return _thunder.prologue_traces(self._compiled)

    @property
    def compilations(self) -> int:
        """How often its compiler compiled it: thunder once for each shape that it has run with; Inductor 1; eager 0."""
        if self.compiler is CompilerType.THUNDER:
            return _thunder.compilations(self._compiled)
        return int(self.compiler is CompilerType.TORCH_INDUCTOR)

    def failed(self, error: BaseException) -> None:
        """Keep type and text of an exception, and not the exception, which holds frames."""
        self.error = describe(error)


@dataclass(eq=False)
class SubgraphInfo:
    """What is known of one graph that Dynamo captured; there from the moment of capture, whatever comes after.

    The first seven names are thunder.dynamo's.

    Attributes:
        original_graph_module: the graph as Dynamo captured it.
        original_split_graph_module: split into regions, each still a plain GraphModule; None until it was split.
        split_graph_module: the same with compiled regions; None until all were compiled.
        thunder_compiled_fns: what thunder.jit returned, one for each thunder region, in order.
        thunder_compiled_fns_example_inputs: metadata of the inputs of each of those.
        submodule_to_compiled_functions: from a region's GraphModule in original_split_graph_module to its callable.
        split_reasons: one for each node that thunder does not run.
        graph_id: increases over the whole process.
        compile_id: Dynamo's, `frame/compilation` as in TORCH_LOGS; None outside of torch.compile.
        source: the function that was captured; None outside of torch.compile.
        graph_break_reason: why the graph ends where it does; None where it runs to the function's end.
        recompile_reason: the guard that failed; None for a first compilation.
        regions: in order of execution.
        error: type and text of the exception that ended its compilation, else None.
        seconds: how long the compiler took over it, Dynamo's own time left out, and what thunder compiles when a region
            first runs; None while it runs.
        phases: of that, "rewrite", "support" (which nodes thunder can run), "split", and "compile", in seconds.
        overlapping_calls: how many calls ran the whole graph eager, since an input that it writes into shared memory
            with another: compiled code would be wrong.
        state: what was set in torch when the graph was captured.
        inductor_options: what Inductor was told for its regions.
        writes_inputs: whether it writes into an input.
        is_recording: whether it keeps copies of what it is given (config.capture_inputs).
    """

    original_graph_module: torch.fx.GraphModule | None
    original_split_graph_module: torch.fx.GraphModule | None = None
    split_graph_module: torch.fx.GraphModule | None = None
    thunder_compiled_fns: list[Callable[..., Any]] = field(default_factory=list)
    thunder_compiled_fns_example_inputs: list[list[ExampleInput]] = field(default_factory=list)
    submodule_to_compiled_functions: dict[torch.fx.GraphModule, CompiledFunction] = field(default_factory=dict)
    split_reasons: list[SplitReason] = field(default_factory=list)
    graph_id: int = field(default_factory=_new_graph_id)
    compile_id: str | None = None
    source: Source | None = None
    graph_break_reason: str | None = None
    recompile_reason: str | None = None
    regions: list[Region] = field(default_factory=list)
    error: str | None = None
    seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    overlapping_calls: int = 0
    state: State = field(default_factory=State, repr=False)
    inductor_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    writes_inputs: bool = field(default=False, repr=False)
    is_recording: bool = field(default=False, repr=False)
    _inputs: RecordedInputs | None = field(default=None, repr=False)
    # The functions that Dynamo inlined into the graph: a compiled one among them has no graph of its own.
    inlined: frozenset[Source] = field(default_factory=frozenset, repr=False)

    def __repr__(self) -> str:
        regions = ", ".join(region.name for region in self.regions)
        error = f", error={self.error!r}" if self.error else ""
        return f"SubgraphInfo(graph_id={self.graph_id}, source={str(self.source)!r}, regions=[{regions}]{error})"


def describe(error: BaseException) -> str:
    """An exception's type and text, on which no frame hangs."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # whose text raises: recording it must not put another exception in the place of the user's
        return f"{type(error).__name__}: (its text cannot be had)"
