"""torch's structured log: with TORCH_TRACE, tlparse shows the records."""

import json
import os
import pathlib
import subprocess
import sys

import torch

CODE = """
import torch, thunder_fx
compiled = thunder_fx.thunderfx(lambda x: x.sin() * 2)
compiled(torch.rand(4, requires_grad=True))
"""


def artifacts(folder):
    """The artifacts of thunder_fx in a log: each a line of JSON, and its text in the lines after, behind a tab."""
    found = {}
    for path in pathlib.Path(folder).glob("*.log"):
        name, lines = None, []
        for line in [*path.read_text().split("\n"), "V end"]:
            if line.startswith("\t"):
                lines.append(line[1:])
                continue
            if name is not None:
                found[name[0]] = (name[1], json.loads("\n".join(lines)))
            name, lines = None, []
            _, _, data = line.partition("] {")
            if data:
                entry = json.loads("{" + data)
                if entry.get("artifact", {}).get("name", "").startswith("thunder_fx_"):
                    name = (entry["artifact"]["name"], entry)
    return found


def test_records_are_artifacts(tmp_path):
    """One for the graph when it was compiled, one for a region when thunder had compiled it; both of 0/0."""
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CODE], env=environment, check=True, capture_output=True, timeout=300)
    found = artifacts(tmp_path)
    assert set(found) == {"thunder_fx_graph_0", "thunder_fx_graph_0_thunder_0"}
    assert all((entry["frame_id"], entry["frame_compile_id"]) == (0, 0) for entry, _ in found.values())
    graph, region = found["thunder_fx_graph_0"][1], found["thunder_fx_graph_0_thunder_0"][1]
    assert (graph["schema_version"], graph["nodes"], graph["regions"][0]["name"]) == (1, 2, "thunder_0")
    assert "torch.sin(" in region["forward"][-1]["code"]


def test_trouble_in_the_log_is_none_of_the_calls(monkeypatch, caplog):
    """A call that is right stays right."""
    from thunder_fx import _torch, thunderfx
    from thunder_fx.report import log

    def fails(*args):
        raise RuntimeError("no log today")

    monkeypatch.setattr(_torch, "is_structured_log_on", lambda: True)
    monkeypatch.setattr(log, "graph_report", fails)
    assert thunderfx(lambda x: x.sin() * 2)(torch.zeros(3)).tolist() == [0, 0, 0]
    assert "could not be put into the log: RuntimeError: no log today" in caplog.text


def test_nothing_is_made_where_nobody_listens():
    """Without TORCH_TRACE the report is not even imported."""
    code = CODE + "import sys; print('thunder_fx.report.log' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_TRACE"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False"
