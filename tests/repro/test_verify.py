"""verify(): what a script did, beside what was recorded."""

import contextlib
import json
import warnings

import pytest
import torch

import thunder_fx
from tests.helpers import needs_cxx, sine
from tests.repro import faults
from tests.repro.running import run_here
from thunder_fx import get_subgraph_info, save_reproducer, thunderfx
from thunder_fx.repro import verify

FAULTS = {
    faults.wrong_in_thunder: None,
    faults.does_not_compile_in_thunder: "RuntimeError: boom in a transform",
    faults.fails_in_thunder: "IndexError: index 99 is out of bounds",
    faults.wrong_in_inductor: None,
    # Torch 2.13 puts an InductorError around it, 2.9 does not.
    faults.does_not_compile_in_inductor: "RuntimeError: boom in a pass",
    faults.fails_in_inductor: "RuntimeError: kernel, ",
}


@needs_cxx
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_reproduced(fault, tmp_path):
    """Wrong numbers, a failure to compile, a failure to run, by thunder and by Inductor: in the same way as before."""
    compiled, inputs = fault()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thunder_fx.ThunderFXWarning)  # Inductor's failures are warned of
        # What failed is recorded by itself: the index that was too large is in the bundle.
        with contextlib.suppress(RuntimeError, IndexError):
            compiled(*inputs)
    (info,) = get_subgraph_info(compiled)
    how = "real" if fault.__name__.startswith("fails") else "synthetic"
    bundle = save_reproducer(compiled, tmp_path, inputs=how, verify=True)
    entries = [entry for entry in bundle.manifest["files"] if entry["kind"] == "repro"]
    assert [entry["verified"] for entry in entries] == ["reproduced the error"] * 2
    for entry in entries:
        if FAULTS[fault] is None:
            assert entry["error"] is None
            assert entry["found"].startswith("output 0: Tensor-likes are not close")
        else:
            assert entry["error"].removeprefix("InductorError: ").startswith(FAULTS[fault])
            assert entry["found"].removeprefix("InductorError: ").startswith(FAULTS[fault])
    assert json.loads((bundle.folder / "manifest.json").read_text()) == bundle.manifest
    index = (bundle.folder / "index.md").read_text()
    assert index.count("| reproduced the error |") == 2
    assert (info.regions[0].error or "") in index.replace("`", "")


@needs_cxx
@pytest.mark.parametrize(("calls", "dynamic"), [(1, None), (2, None), (2, True)])
@pytest.mark.parametrize("fault", [faults.fails_in_backward_of_thunder, faults.fails_in_backward_of_inductor])
def test_a_failing_backward_is_reproduced(fault, dynamic, calls, tmp_path):
    """Autograd reports it where no region is on the stack: the region keeps it all the same."""
    compiled, inputs = fault(dynamic=dynamic)
    for _ in range(calls):
        result = compiled(*inputs)
    with pytest.raises(RuntimeError, match="boom in backward"):
        result.sum().backward()
    (info,) = get_subgraph_info(compiled)
    (region,) = info.regions
    assert region.error == "RuntimeError: boom in backward"
    with pytest.warns(thunder_fx.ThunderFXWarning, match=r"tests\.repro\.faults"):
        bundle = save_reproducer(compiled, tmp_path)
    for file, script in zip(bundle.manifest["files"], bundle.scripts, strict=True):
        with pytest.raises(RuntimeError) as caught:
            run_here(script)
        assert verify.are_alike(f"RuntimeError: {caught.value}", file["error"])


@needs_cxx
def test_a_failing_backward_is_its_own_regions_alone(tmp_path):
    """Not that of the region after it, nor that of what read another compiled callable's result."""
    compiled = thunderfx(lambda x: torch.sinc(faults.double(x.sin())).cos())
    with pytest.raises(RuntimeError, match="boom in backward"):
        compiled(torch.rand(4, requires_grad=True)).sum().backward()
    (info,) = get_subgraph_info(compiled)
    errors = {region.name: region.error for region in info.regions}
    assert errors == {"thunder_0": None, "inductor_1": "RuntimeError: boom in backward", "thunder_2": None}

    made = torch.compile(faults.double)(torch.rand(4, requires_grad=True))
    for calls in (1, 2):
        reader = thunderfx(lambda y: y * 2, dynamic=calls == 2)
        with pytest.raises(RuntimeError, match="boom in backward"):
            reader(made).sum().backward(retain_graph=True)
        assert [region.error for info in get_subgraph_info(reader) for region in info.regions] == [None]


@needs_cxx
def test_what_agrees_is_stamped_so(tmp_path):
    """In the order of the files' names, told one by one, and written down."""
    compiled = thunderfx(sine)
    compiled(torch.rand(3))
    bundle = save_reproducer(compiled, tmp_path)
    assert "not run yet" in (tmp_path / "index.md").read_text()
    told = []
    outcomes = bundle.verify(on_result=lambda *result: told.append(result))
    assert outcomes == {"graph0_repro.py": "agrees", "graph0_thunder_0_repro.py": "agrees"}
    assert sorted(told) == sorted(outcomes.items())
    index = (tmp_path / "index.md").read_text()
    assert index.count("| agrees |") == 2
    assert "not run yet" not in index


def test_what_does_not_run_is_stamped_so(tmp_path):
    """A script that stops before its graph runs, that dies, and that does not end."""
    for text, found in (
        ("raise SystemExit('supply the transform')", "supply the transform"),
        ("import os; os._exit(3)", "exit status 3"),
        ("while True: pass", "no end in 2 s"),
    ):
        script = tmp_path / "graph0_repro.py"
        script.write_text(text)
        assert verify.run(script, None, timeout=2) == verify.Result("does not run", found)


@pytest.mark.parametrize(
    ("report", "recorded", "outcome"),
    [
        ({"outcome": "agrees"}, None, "agrees"),
        ({"outcome": "agrees"}, "RuntimeError: boom", "agrees"),
        ({"outcome": "differs", "differences": ["output 0"]}, None, "reproduced the error"),
        ({"outcome": "differs", "differences": ["output 0"]}, "RuntimeError: boom", "different error"),
        ({"outcome": "error", "error": "RuntimeError: boom"}, "RuntimeError: boom", "reproduced the error"),
        ({"outcome": "error", "error": "RuntimeError: bang"}, "RuntimeError: boom", "different error"),
        ({"outcome": "error", "error": "ValueError: boom"}, "RuntimeError: boom", "different error"),
        ({"outcome": "error", "error": "RuntimeError: boom"}, None, "does not run"),
        ({"outcome": "error", "error": "SystemExit: supply"}, "RuntimeError: boom", "does not run"),
    ],
)
def test_judgement(report, recorded, outcome):
    """The same error is the same type and text."""
    assert verify.judge(report, recorded).outcome == outcome


def test_errors_are_alike_but_for_addresses_paths_and_lines():
    """Those change from process to process; numbers and names do not."""
    a = 'RuntimeError: at 0x7fff, File "/tmp/a/x.py", line 3: 4 is too large'
    assert verify.are_alike(a, 'RuntimeError: at 0x1234, File "/home/me/b.py", line 99: 4 is too large')
    assert not verify.are_alike(a, a.replace("4 is", "5 is"))
    told = "\n\nOriginal traceback:\n  File 'model.py', line 3, in forward\n    y = x.sin()"
    assert verify.are_alike(
        "ValueError: the tensor 140234567890123 is bad" + told, "ValueError: the tensor 94001122334 is bad"
    )
