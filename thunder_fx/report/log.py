"""Records of graphs as artifacts of torch's structured log, which tlparse shows. Called where TORCH_TRACE is on."""

from __future__ import annotations

import json
from typing import Any

from thunder_fx import _torch
from thunder_fx.report import SCHEMA_VERSION
from thunder_fx.report.gather import graph_report
from thunder_fx.report.model import as_plain
from thunder_fx.subgraph import Region, SubgraphInfo


def emit(info: SubgraphInfo, region: Region | None = None) -> None:
    """One artifact for a graph that has just been compiled, or for a region that thunder has, when it first ran."""
    report = graph_report(info)
    name = f"thunder_fx_graph_{info.graph_id}"
    record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if region is None:
        record |= as_plain(report, traces=False)
    else:
        name += f"_{region.name}"
        (own,) = (each for each in report.regions if each.name == region.name)
        record |= {"graph_id": info.graph_id, **as_plain(own, traces=True)}
    _torch.log_artifact(name, json.dumps(record, indent=1), info.compile_id)
