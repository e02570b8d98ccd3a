"""What a failure leaves behind without pytest: a bundle, and a note on the exception."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

import thunder_fx
from tests.helpers import needs_cxx, sine
from tests.repro import faults
from thunder_fx import dump_on_error, thunderfx


def manifests(folder):
    return sorted(str(path.parent.relative_to(folder)) for path in pathlib.Path(folder).rglob("manifest.json"))


def notes(error):
    return [note for note in getattr(error, "__notes__", []) if note.startswith("thunder_fx: ")]


def test_a_failing_region_leaves_a_bundle_and_a_note(tmp_path):
    """In a folder of the callable's name; the exception is the same, and says where; the script fails the same way."""
    compiled, inputs = faults.does_not_compile_in_thunder()
    with pytest.raises(RuntimeError, match="boom in a transform") as caught, dump_on_error(tmp_path):
        compiled(*inputs)
    (folder,) = manifests(tmp_path)
    assert folder.startswith("does_not_compile_in_thunder")
    assert notes(caught.value) == [f"thunder_fx: a reproducer is in {tmp_path / folder}"]
    assert "boom in a transform" in (tmp_path / folder / "index.md").read_text()


@needs_cxx
@pytest.mark.parametrize("fault", [faults.fails_in_backward_of_thunder, faults.fails_in_backward_of_inductor])
def test_a_failing_backward_leaves_a_bundle_and_a_note(fault, tmp_path):
    """Though autograd calls it, with no region on the stack."""
    compiled, inputs = fault()
    with dump_on_error(tmp_path), pytest.raises(RuntimeError, match="boom in backward") as caught:
        compiled(*inputs).sum().backward()
    (folder,) = manifests(tmp_path)
    assert notes(caught.value) == [f"thunder_fx: a reproducer is in {tmp_path / folder}"]
    assert "boom in backward" in (tmp_path / folder / "index.md").read_text()


def test_a_failing_compilation_says_it_in_the_text_that_torch_compile_keeps(tmp_path, monkeypatch):
    """torch.compile makes a new exception of a backend's."""
    from thunder_fx.graph import partition

    def fails(*args):
        raise RuntimeError("no split today")

    monkeypatch.setattr(partition, "split", fails)
    compiled = thunderfx(sine)
    with pytest.raises(Exception, match="no split today") as caught, dump_on_error(tmp_path):
        compiled(torch.ones(3))
    assert f"thunder_fx: a reproducer is in {tmp_path / 'sine'}" in str(caught.value)
    (info,) = thunder_fx.get_subgraph_info(compiled)
    assert info.error == "RuntimeError: no split today"


def test_nothing_is_left_where_nothing_was_asked_for(tmp_path):
    """Outside of the block; and after a call that worked."""
    compiled, inputs = faults.fails_in_thunder()
    with dump_on_error(tmp_path):
        thunderfx(sine)(torch.ones(3))
    with pytest.raises(IndexError) as caught:
        compiled(*inputs)
    assert (notes(caught.value), list(tmp_path.iterdir())) == ([], [])


def test_a_failure_that_repeats_is_saved_once(tmp_path):
    """A loop that fails a thousand times would be slow."""
    compiled, inputs = faults.fails_in_thunder()
    written = set()
    with dump_on_error(tmp_path):
        for _ in range(3):
            with pytest.raises(IndexError) as caught:
                compiled(*inputs)
            assert notes(caught.value)
            written.add(next(tmp_path.rglob("manifest.json")).stat().st_mtime_ns)
    assert len(written) == 1


def test_recorded_inputs_are_in_it_where_they_were_asked_for(tmp_path):
    """By capture_inputs, and not by the failure alone."""
    for capture in ("off", "values"):
        with thunder_fx.config.patch(capture_inputs=capture), dump_on_error(tmp_path / capture):
            compiled, inputs = faults.fails_in_thunder()
            with pytest.raises(IndexError):
                compiled(*inputs)
        (path,) = (tmp_path / capture).rglob("manifest.json")
        assert json.loads(path.read_text())["inputs"] == {"off": "synthetic", "values": "real"}[capture]


def test_each_rank_has_its_own(tmp_path, monkeypatch):
    """Under a distributed launcher."""
    monkeypatch.setenv("RANK", "3")
    compiled, inputs = faults.fails_in_thunder()
    with pytest.raises(IndexError), dump_on_error(tmp_path):
        compiled(*inputs)
    assert all(folder.startswith("rank3/") for folder in manifests(tmp_path))


def test_trouble_in_saving_is_a_note_and_hides_nothing(tmp_path):
    """The exception is the user's."""
    file = tmp_path / "file"
    file.write_text("mine")
    compiled, inputs = faults.fails_in_thunder()
    with pytest.raises(IndexError) as caught, dump_on_error(file):
        compiled(*inputs)
    (note,) = notes(caught.value)
    assert note.startswith(f"thunder_fx: no reproducer could be saved in {file}: ReproducerError: ")


@pytest.mark.parametrize("folder", [None, "", 3])
def test_what_is_no_folder_is_refused(folder):
    """A ValueError that says what it takes."""
    with pytest.raises(thunder_fx.ConfigError, match="takes the path of a folder"), dump_on_error(folder):
        pass


@needs_cxx
def test_the_environment_does_it_for_a_process(tmp_path):
    """THUNDER_FX_REPRO_DIR, which a script need not know of; the note is in the traceback."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, thunder_fx\ndef pick(x, i):\n    return x[i] * 2\n"
        "thunder_fx.thunderfx(pick)(torch.ones(3), torch.tensor([9]))\n"
    )
    env = {**os.environ, "THUNDER_FX_REPRO_DIR": str(tmp_path / "left")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    assert manifests(tmp_path / "left") == ["pick"]
    if sys.version_info >= (3, 11):
        assert f"thunder_fx: a reproducer is in {tmp_path / 'left' / 'pick'}" in done.stderr


@pytest.mark.slow
def test_nothing_is_slower_while_nothing_fails(tmp_path):
    """By no more than 5 percent; in turns, and the least of several, which noise only lengthens."""
    compiled, x = thunderfx(sine), torch.ones(3)
    compiled(x)
    seconds = {"on": [], "off": []}
    for _ in range(20):
        for how, context in (("on", dump_on_error(tmp_path)), ("off", contextlib.nullcontext())):
            with context:
                start = time.perf_counter()
                for _ in range(2000):
                    compiled(x)
                seconds[how].append(time.perf_counter() - start)
    assert min(seconds["on"]) <= 1.05 * min(seconds["off"]), seconds
