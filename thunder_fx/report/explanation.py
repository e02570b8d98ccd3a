"""Explanation: what explain() returns. Its parts are model.py's; how it looks is text.py's and page.py's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thunder_fx.report import SCHEMA_VERSION
from thunder_fx.report.model import Cost, GraphReport, Limit, Option, as_plain

if TYPE_CHECKING:
    import rich.console


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What was compiled of a callable. Print it, or take the data.

        explanation = thunder_fx.explain(tfoo)
        print(explanation)                  # a summary, and a tree of graphs and regions
        explanation.to_html("foo.html")     # one file, with traces
        explanation.to_dict()["graphs"][0]["regions"][0]["executors"]     # {'torch': 3}

    Attributes:
        callable: what it is.
        options: each as it was given, and whose it is.
        graphs: one for each that Dynamo captured, in order.
        costs: what the operators cost that thunder does not run, the most costly first.
        limit: how near Dynamo is to running it eager; None for thunder.dynamo's own objects.
        diagnosis: where nothing was captured, why; else None.
        note: whose the graphs are, where several callables share a ThunderCompiler; else None.
        peak_memory: what profile() saw on CUDA, in bytes; else None.
    """

    callable: str
    options: tuple[Option, ...]
    graphs: tuple[GraphReport, ...]
    costs: tuple[Cost, ...]
    limit: Limit | None
    diagnosis: str | None
    note: str | None = None
    peak_memory: int | None = None
    _fn: Callable[[], Any] = lambda: None

    @property
    def operators(self) -> int:
        """How many operators the graphs have."""
        return sum(graph.operators for graph in self.graphs)

    @property
    def share_of_thunder(self) -> float | None:
        """The share of the operators that thunder runs, from 0 to 1; None where there are none."""
        by_thunder = sum(len(r.operators) for g in self.graphs for r in g.regions if r.compiler == "thunder")
        return by_thunder / self.operators if self.operators else None

    @property
    def recompiles(self) -> int:
        """How many graphs were captured anew, since a guard had failed."""
        return sum(graph.recompile is not None for graph in self.graphs)

    @property
    def seconds(self) -> dict[str, float]:
        """What compiling took, over all graphs, by phase; "total" is their sum.

        Inductor compiles the backward of its regions when it first runs, which is in no phase.
        """
        phases: dict[str, float] = {}
        for graph in self.graphs:
            for name, value in graph.seconds.items():
                phases[name] = phases.get(name, 0.0) + value
        return {"total": sum(phases.values()), **phases}

    # As text

    def summary(self) -> str:
        """The first part of what printing gives: at most 15 lines of 80 columns."""
        from thunder_fx.report import text

        return text.rendered(text.summary(self))

    def __str__(self) -> str:
        from thunder_fx.report import text

        return text.rendered(text.everything(self))

    def __format__(self, spec: str) -> str:
        """`f"{explanation:plain}"` is str(explanation) without colours, wherever it is printed."""
        from thunder_fx.report import text

        if spec not in ("", "plain"):
            raise ValueError(f"an Explanation is formatted by nothing or by 'plain'; found {spec!r}")
        return text.rendered(text.everything(self), colours=False) if spec else str(self)

    def __repr__(self) -> str:
        return f"<Explanation of {self.callable}: {len(self.graphs)} graphs, {self.operators} operators>"

    def __rich__(self) -> rich.console.RenderableType:
        from thunder_fx.report import text

        return text.everything(self)

    # As data

    def to_dict(self, *, traces: bool = True) -> dict[str, Any]:
        """All of it, of JSON's kinds alone; docs/explain.md has the schema. Without `traces` their code is left out."""
        return {
            "schema_version": SCHEMA_VERSION,
            "callable": self.callable,
            "diagnosis": self.diagnosis,
            "note": self.note,
            "options": as_plain(self.options, traces=traces),
            "recompiles": self.recompiles,
            "limit": None
            if self.limit is None
            else {
                **as_plain(self.limit, traces=traces),
                "is_reached": self.limit.is_reached,
                "is_near": self.limit.is_near,
            },
            "seconds": self.seconds,
            "operators": self.operators,
            "share_of_thunder": self.share_of_thunder,
            "costs": [{**as_plain(cost, traces=traces), "text": str(cost)} for cost in self.costs],
            "peak_memory": self.peak_memory,
            "graphs": as_plain(self.graphs, traces=traces),
        }

    # As a page

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write it as one HTML file that needs nothing else, with the traces and the lines of the program.

        Raises:
            OSError: the file cannot be written; an earlier one stays as it was.
        """
        from thunder_fx.report import page

        page.write(self, path)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from thunder_fx.report import page

        return page.for_notebook(self)

    # Timing

    def profile(self, *args: Any, **kwargs: Any) -> Explanation:
        """Run the callable on inputs, forward and backward, and give an Explanation with the time of each region.

            print(thunder_fx.explain(tfoo).profile(x))

        The callable is called three times: to warm up, and twice to measure, of which the faster counts; writes into
        the inputs and random numbers are as in any call. Gradients are computed, and not added to anybody's `.grad`.
        Times are wall-clock, and on CUDA also those of kernels; a region that runs eager has no backward of its own.

        Raises:
            ReferenceError: the callable is gone.
            Exception: what the callable raises on these inputs.
        """
        from thunder_fx.report.profiling import profile

        return profile(self, args, kwargs)
