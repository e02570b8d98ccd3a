"""profile(): the time of each region in a call, forward and backward, measured when someone asks for it.

While it runs, each region is called through a timer; afterwards as before. What a backward takes is the time between
two hooks on the autograd node of a region; one that runs eager has no node of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.profiler
from torch.autograd.graph import GradientEdge

from thunder_fx import _thunder, _torch
from thunder_fx.errors import NotCompiledError, ThunderFXWarning
from thunder_fx.graph.regions import CompiledRegion
from thunder_fx.registry import resolve
from thunder_fx.report.explanation import Explanation
from thunder_fx.subgraph import SubgraphInfo

RUNS, WARM_UPS = 2, 5
_NODES = (_thunder.AUTOGRAD_NODE, "CompiledFunctionBackward")


@dataclass
class _Timer:
    """The seconds of a region in one run: "forward" and "backward", summed over its calls."""

    label: str
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(f"{self.label} {name}"):
            start = time.perf_counter()
            try:
                yield
            finally:
                self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def watch_backward(self, result: Any) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        nodes = {x.grad_fn for x in results if isinstance(x, torch.Tensor) and x.grad_fn is not None}
        for node in nodes:
            if type(node).__name__ in _NODES:
                running: list[contextlib.AbstractContextManager[None]] = []

                def start(gradients: Any, running: Any = running) -> None:
                    running.append(self.measuring("backward"))
                    running[-1].__enter__()

                def stop(inputs: Any, outputs: Any, running: Any = running) -> None:
                    if running:
                        running.pop().__exit__(None, None, None)

                node.register_prehook(start)
                node.register_hook(stop)
                return


def profile(explanation: Explanation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation:
    """explain(fn).profile(*args)."""
    from thunder_fx.report.gather import explain

    fn = explanation._fn()
    if fn is None:
        raise ReferenceError(f"profile: {explanation.callable} is gone; keep it, and ask explain() of it again")
    infos = _warmed_up(fn, args, kwargs)
    if not infos:
        raise NotCompiledError(f"profile: no graph of {explanation.callable} was captured: {explain(fn).diagnosis}")
    runs = []
    is_on_gpu = torch.cuda.is_available()
    if is_on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(RUNS):
        with _timed(infos) as timers, _kernels(timers, measured=is_on_gpu):
            _run(fn, args, kwargs)
        runs.append(timers)
    measured = {key: _fastest([run[key].seconds for run in runs if key in run]) for key in runs[0]}
    if not any(measured.values()):
        warnings.warn(
            f"profile: no region of {explanation.callable} ran in a call that could be timed: it compiles anew in each "
            "call, it ran eager since inputs overlap, or its regions are thunder.dynamo's own",
            ThunderFXWarning,
            stacklevel=3,
        )
    found = explain(fn)
    graphs = [
        dataclasses.replace(
            graph,
            regions=tuple(
                dataclasses.replace(region, profile=measured.get((graph.graph_id, region.name)) or None)
                for region in graph.regions
            ),
        )
        for graph in found.graphs
    ]
    peak = torch.cuda.max_memory_allocated() if is_on_gpu else None
    return dataclasses.replace(found, graphs=tuple(graphs), peak_memory=peak)


def _warmed_up(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[SubgraphInfo]:
    """The graphs after calls that may compile some, until a call compiles none; not without end."""
    infos: list[SubgraphInfo] = []
    for _ in range(WARM_UPS):
        before = len(infos)
        _run(fn, args, kwargs)
        infos = list(resolve(fn).subgraph_infos)
        if len(infos) == before:
            break
    return infos


def _run(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A call, and the gradients of what needs one: they are given to nobody, and what made the inputs is left alone."""
    start = _torch.next_autograd_node()
    outputs = [x for x in _torch.tree_leaves(fn(*args, **kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = _leaves(outputs, start)
    if leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(x) for x in outputs], allow_unused=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _leaves(outputs: Sequence[torch.Tensor], start: int) -> list[Any]:
    """Where the call's own part of the autograd graph ends: at leaves, and at nodes that were there before it."""
    pending: list[Any] = [(x.grad_fn, x.output_nr) for x in outputs]
    found: list[Any] = []
    seen = set()
    while pending:
        node, output = pending.pop()
        if node is None or (node, output) in seen:
            continue
        seen.add((node, output))
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        elif node._sequence_nr() < start:
            found.append(GradientEdge(node, output))
        else:
            pending.extend(node.next_functions)
    return found


_Timers = dict[tuple[int, str], _Timer]


@contextlib.contextmanager
def _timed(infos: Sequence[SubgraphInfo]) -> Iterator[_Timers]:
    """Inside, the regions of graphs are called through timers."""
    timers: _Timers = {}
    replaced = []
    try:
        for info in infos:
            for region in info.regions:
                module = getattr(info.split_graph_module, region.name, None)
                if isinstance(module, CompiledRegion):
                    timer = timers[info.graph_id, region.name] = _Timer(f"graph {info.graph_id} {region.name}")
                    usual = module._call
                    module._call = _through(timer, usual)
                    replaced.append((module, usual))
        yield timers
    finally:
        for module, usual in replaced:
            module._call = usual


def _through(timer: _Timer, call: Any) -> Any:
    def timed(*args: Any) -> Any:
        with timer.measuring("forward"):
            result = call(*args)
        timer.watch_backward(result)
        return result

    return timed


@contextlib.contextmanager
def _kernels(timers: _Timers, *, measured: bool) -> Iterator[None]:
    """On CUDA the time of the kernels too, which torch.profiler tells by the names of the ranges that launched them."""
    if not measured:
        yield
        return
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        yield
    # A range has an event of the CPU's, with the kernels that were launched in it, and one of the GPU's, with the gaps.
    on_cpu = (event for event in profiler.key_averages() if event.device_type.name == "CPU")
    by_range = {event.key: event.device_time_total / 1e6 for event in on_cpu}
    for timer in timers.values():
        for name in ("forward", "backward"):
            if (seconds := by_range.get(f"{timer.label} {name}")) is not None:
                timer.add(f"{name}_kernels", seconds)


def _fastest(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: min(run[name] for run in runs if name in run) for name in runs[0]}
