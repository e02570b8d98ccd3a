"""save_reproducer(): the folder, its manifest and index, and what bad input gets."""

import concurrent.futures
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from thunder.core.transform_common import Transform

import thunder_fx
from tests.helpers import Block, needs_cxx, run_python, sine, splits
from tests.repro.running import assert_agree, loaded, run, run_here
from thunder_fx import ThunderCompiler, ThunderFXWarning, get_subgraph_info, save_reproducer, thunderfx
from thunder_fx.repro.code import Source
from thunder_fx.repro.values import Writer


def called(fn=sine, *inputs, **options):
    compiled = thunderfx(fn, **options)
    compiled(*inputs or (torch.rand(3, requires_grad=True),))
    return compiled


def files_in(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


@needs_cxx
def test_files_and_manifest(tmp_path):
    """The whole graph, each region, an index and a manifest, which say why each file is there."""
    compiled = called(splits)
    bundle = save_reproducer(compiled, tmp_path / "new" / "folder")
    assert bundle.folder == tmp_path / "new" / "folder"
    scripts = ["graph0_repro.py"] + [f"graph0_{r}_repro.py" for r in ("thunder_0", "inductor_1", "thunder_2")]
    assert [script.name for script in bundle.scripts] == scripts
    assert all(script.is_absolute() for script in bundle.scripts)
    assert sorted(files_in(bundle.folder)) == sorted([*scripts, "index.md", "manifest.json"])
    manifest = json.loads((bundle.folder / "manifest.json").read_text())
    assert manifest == bundle.manifest
    assert (manifest["schema_version"], manifest["callable"], manifest["inputs"]) == (1, "splits", "synthetic")
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["hardware"]["cpus"] == os.cpu_count()
    (graph,) = manifest["graphs"]
    assert [r["name"] for r in graph["regions"]] == ["thunder_0", "inductor_1", "thunder_2"]
    assert [reason["node"] for reason in graph["split_reasons"]] == ["sinc"]
    assert [entry["compiler"] for entry in manifest["files"]] == ["recorded", "thunder", "inductor", "thunder"]
    index = (bundle.folder / "index.md").read_text()
    assert all(f"| [{script}]({script}) |" in index and f"`python {script}`" in index for script in scripts)
    assert "`sinc`" in index


def test_every_graph_of_a_callable_is_there(tmp_path):
    """A graph break and a recompilation, each with its reason."""

    def fn(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    compiled = called(fn)
    compiled(torch.rand(4, 5))
    bundle = save_reproducer(compiled, tmp_path)
    wholes = [script for script in bundle.scripts if "thunder" not in script.name]
    assert [script.name for script in wholes] == [f"graph{index}_repro.py" for index in range(4)]
    reasons = [graph["graph_break_reason"] for graph in bundle.manifest["graphs"]]
    assert [reason is None for reason in reasons] == [False, True] * 2
    assert "The graph ends here, since:" in wholes[0].read_text()
    assert "It was compiled again, since:" in wholes[2].read_text()


def test_a_folder_with_anothers_bundle_keeps_it(tmp_path):
    """The new one goes into a folder of its own name beside it; the same callable replaces its own."""
    a, b, c = called(lambda x: x.sin()), called(lambda x: x.cos() + 1), called(Block(3))
    first = save_reproducer(a, tmp_path)
    before = files_in(tmp_path)
    with pytest.warns(ThunderFXWarning, match="has another bundle, which stays: this one is in"):
        second, third = save_reproducer(b, tmp_path), save_reproducer(c, tmp_path)
    assert {name: text for name, text in files_in(tmp_path).items() if name in before} == before
    assert [bundle.folder.parent for bundle in (second, third)] == [tmp_path, tmp_path]
    assert len({first.folder, second.folder, third.folder}) == 3
    a(torch.rand(2, 2))
    again = save_reproducer(a, tmp_path)
    assert again.folder == tmp_path
    assert "graph1_repro.py" in files_in(tmp_path)
    with pytest.warns(ThunderFXWarning, match="this one is in"):
        assert save_reproducer(b, tmp_path).folder == second.folder
    assert files_in(second.folder).keys() == {
        "graph0_repro.py",
        "graph0_thunder_0_repro.py",
        "index.md",
        "manifest.json",
    }


def test_a_files_of_somebody_elses_are_kept(tmp_path):
    """A bundle goes beside them, and into a folder of its own where a name is taken."""
    (tmp_path / "notes.txt").write_text("mine")
    compiled = called()
    assert save_reproducer(compiled, tmp_path).folder == tmp_path
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.md").write_text("mine")
    with pytest.warns(ThunderFXWarning, match="this one is in"):
        assert save_reproducer(compiled, other).folder == other / "sine"
    assert (other / "index.md").read_text() == (tmp_path / "notes.txt").read_text() == "mine"


def test_what_cannot_be_saved_leaves_nothing(tmp_path):
    """An unknown callable, one without a graph, one forgotten: the lookup's errors, and no folder."""
    folder = tmp_path / "folder"
    forgotten = called()
    thunder_fx.forget(forgotten)
    for fn, why in (
        (sine, r"thunderfx\(fn\)"),
        (thunderfx(sine), "there is nothing to save: sine has not been called yet"),
        (forgotten, "forgotten"),
        (None, "expected a compiled callable"),
    ):
        with pytest.raises(thunder_fx.NotCompiledError, match=why):
            save_reproducer(fn, folder)
    with pytest.raises(thunder_fx.OptionValueError, match="inputs= takes one of 'synthetic', 'real'; found 'both'"):
        save_reproducer(called(), folder, inputs="both")
    with pytest.raises(ValueError, match="capture_inputs was not set when they were compiled"):
        save_reproducer(called(), folder, inputs="real")
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """A file in its place, and a disk that is full half-way: an OSError, and nothing half-written."""
    compiled = called()
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "below"):
        with pytest.raises(OSError, match=r"this is a file.*file'") as caught:
            save_reproducer(compiled, folder)
        assert isinstance(caught.value, thunder_fx.ThunderFXError)
    assert file.read_text() == "mine"
    save_reproducer(compiled, tmp_path / "full")
    before = files_in(tmp_path / "full")
    write = pathlib.Path.write_text

    def fails(path, text, **kwargs):
        if path.name == "index.md":
            raise OSError(28, "No space left on device", str(path))
        return write(path, text, **kwargs)

    monkeypatch.setattr(pathlib.Path, "write_text", fails)
    for folder in ("full", "new"):
        with pytest.raises(OSError, match="No space left"):
            save_reproducer(compiled, tmp_path / folder)
    assert files_in(tmp_path / "full") == before
    assert not (tmp_path / "new").exists()


def test_a_save_that_fails_half_way_leaves_the_earlier_bundle(tmp_path, monkeypatch):
    """Whatever fails while files change places."""
    compiled = called()
    save_reproducer(compiled, tmp_path)
    compiled(torch.rand(2, 2))
    before, real, count = files_in(tmp_path), os.replace, iter(range(100))

    def fails(source, target):
        if next(count) == 6:
            raise OSError(5, "Input/output error", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="Input/output error"):
        save_reproducer(compiled, tmp_path)
    monkeypatch.undo()
    assert files_in(tmp_path) == before
    assert len(save_reproducer(compiled, tmp_path).scripts) == 4


def test_a_file_where_a_folder_has_to_be_is_kept(tmp_path):
    """Somebody's file of the name `inputs`: the bundle goes beside."""
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled = called()
    save_reproducer(compiled, tmp_path)
    (tmp_path / "inputs").write_text("mine")
    before = files_in(tmp_path)
    with pytest.warns(ThunderFXWarning, match="this one is in"):
        bundle = save_reproducer(compiled, tmp_path, inputs="real")
    assert bundle.folder == tmp_path / "sine"
    assert {name: text for name, text in files_in(tmp_path).items() if name in before} == before


def test_threads_that_save_into_one_folder_get_one_each(tmp_path):
    """None is written over another."""
    callables = [called(lambda x: x.sin()), called(lambda x: x.cos()), called(lambda x: x.tan())]
    with warnings.catch_warnings(), concurrent.futures.ThreadPoolExecutor(3) as pool:
        warnings.simplefilter("ignore")
        found = list(pool.map(lambda fn: save_reproducer(fn, tmp_path).folder, callables))
    assert len(set(found)) == 3
    assert all((folder / "manifest.json").exists() for folder in found)


SAVES = """
import sys, warnings, torch, thunder_fx
warnings.simplefilter("ignore")
compiled = thunder_fx.thunderfx(lambda x: x.sin())
compiled(torch.ones(3))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    print(thunder_fx.save_reproducer(compiled, sys.argv[1]).folder, flush=True)
"""


def test_processes_that_save_into_one_folder_get_one_each(tmp_path):
    """As the ranks of a distributed run do, that fail at the same time."""
    command = [sys.executable, "-c", SAVES, str(tmp_path / "folder")]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for each in both:
        assert each.stdout.readline() == "ready\n"
    for each in both:
        each.stdin.write("go\n")
        each.stdin.flush()
    folders = [set(each.communicate(timeout=120)[0].split()) for each in both]
    assert [len(found) for found in folders] == [1, 1]
    assert folders[0] != folders[1]
    tokens = {json.loads((pathlib.Path(folder) / "manifest.json").read_text())["token"] for (folder,) in folders}
    assert len(tokens) == 2


def test_a_bundle_verifies_what_is_in_its_folder_now(tmp_path):
    """Saved once more with benchmarks: they stay; another's bundle, or none, is not taken for it."""
    compiled = called()
    first = save_reproducer(compiled, tmp_path / "a")
    save_reproducer(compiled, tmp_path / "a", benchmark=True)
    assert set(first.verify()) == {"graph0_repro.py", "graph0_thunder_0_repro.py"}
    assert "graph0_benchmark.py" in (tmp_path / "a" / "manifest.json").read_text()
    assert len(first.scripts) == 4
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(OSError, match="not there any more: save it once more"):
        first.verify()
    save_reproducer(called(), tmp_path / "a")
    with pytest.raises(OSError, match="not there any more: save it once more"):
        first.verify()


def test_an_errors_text_may_have_any_character(tmp_path):
    """A null, half a surrogate pair, quotes and backslashes: the script is Python all the same, and has the text."""
    compiled = called()
    (info,) = get_subgraph_info(compiled)
    info.regions[0].error = text = 'ValueError: \0 \udc80 """ \\N{x} \x85 end'
    bundle = save_reproducer(compiled, tmp_path)
    for script in bundle.scripts:
        assert run(script, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "manifest.json").read_text())["graphs"][0]["regions"][0]["error"] == text


def test_paths_and_manifests_that_are_none(tmp_path):
    """A null character in a path, and a manifest that is not ours."""
    compiled = called()
    with pytest.raises(OSError, match="no path has a null character"):
        save_reproducer(compiled, str(tmp_path / "a\0b"))
    (tmp_path / "manifest.json").write_text('{"token": "?"}')
    with pytest.warns(ThunderFXWarning, match="this one is in"):
        assert save_reproducer(compiled, tmp_path).folder == tmp_path / "sine"


class ChangesItself(Transform):
    """Fails once, when it first compiles."""

    def __init__(self):
        self.seen = []

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        if not self.seen:
            self.seen.append("a trace")
            raise ValueError("only the first time")
        return prologue_trace, computation_trace, epilogue_trace


def test_an_option_is_written_as_it_was_before_anything_was_compiled(tmp_path):
    """A transform that changes itself begins in the script where it began here."""
    compiled = thunderfx(sine, transforms=[ChangesItself()])
    with pytest.raises(ValueError, match="only the first time"):
        compiled(torch.rand(3))
    for script in save_reproducer(compiled, tmp_path).scripts:
        with pytest.raises(ValueError, match="only the first time"):
            run_here(script)


class ContainsItself(Transform):
    """An object whose state has no end."""

    def __init__(self):
        self.names = {}
        self.names["all"] = self.names


def test_an_option_may_contain_itself(tmp_path):
    """It compiles, and a script asks for it."""
    compiled = called(sine, transforms=[ContainsItself()])
    with pytest.warns(ThunderFXWarning, match="contains itself"):
        save_reproducer(compiled, tmp_path)


def test_a_graph_that_is_not_dynamos_changes_nothing_of_the_users():
    """Its values are found by running it on fake tensors: no statistics move, and no mode stays set."""
    norm = torch.nn.BatchNorm1d(3)
    ThunderCompiler()(torch.fx.symbolic_trace(torch.nn.Sequential(norm)), [torch.rand(4, 3)])
    assert norm.num_batches_tracked == 0
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output(graph.call_method("item", (graph.call_method("sum", (x,)),)))
    ThunderCompiler()(torch.fx.GraphModule({}, graph), [torch.rand(3)])
    assert torch.is_grad_enabled()


CONJUGATED = torch.randn(90, dtype=torch.complex64).conj()


def test_constants_of_any_kind(tmp_path):
    """A lazily conjugated one is written as it is; a sparse one is to be supplied."""
    assert_agree(save_reproducer(called(lambda x: x * CONJUGATED, torch.rand(90)), tmp_path))
    source = Source(Writer())
    assert source._constant(torch.eye(90).to_sparse()).startswith("supply('a constant of the graph is a torch.sparse")
    assert "which is not written: make one in the graph's class" in source.problems[0]


def test_a_graph_that_is_not_dynamos_is_saved_with_its_modules(tmp_path):
    """Parameters and Modules below a name with a dot, which a graph of torch.fx calls; the gradients too."""

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return torch.sinc(self.parts(x) * self.weight) + self.weight

    x = torch.rand(2, 4)
    backend = ThunderCompiler()
    module = Outer().eval()
    result = backend(torch.fx.symbolic_trace(module), [x])(x)
    torch.testing.assert_close(result, module(x))
    backend.save_reproducer_to_folder(tmp_path)
    scripts = sorted(tmp_path.glob("*_repro.py"))
    assert len(scripts) > 1
    for script in scripts:
        status, out = run_here(script)
        assert status == 0, out
    assert "gradients: 5" in run_here(tmp_path / "graph0_repro.py")[1]


def test_made_up_inputs_have_no_value_of_the_users(tmp_path):
    """Neither of tensors nor of parameters, in any file."""
    secret = 0.123456789
    block = Block(3)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(secret)
    bundle = save_reproducer(called(block, torch.full((2, 3), secret)), tmp_path)
    assert not any(b"1234567" in text for text in files_in(tmp_path).values())
    values = [value for x in loaded(bundle.scripts[0])["make_inputs"]() for value in x.flatten().tolist()]
    assert not any(abs(value - secret) < 1e-6 for value in values)


def test_buffers_that_are_attributes_of_the_graph_are_made_up_too(tmp_path):
    """As Dynamo leaves them where it does not inline Modules (an option of torch 2.9)."""
    with torch._dynamo.config.patch(inline_inbuilt_nn_modules=False):
        compiled = called(WithBuffer(), torch.rand(3))
    save_reproducer(compiled, tmp_path)
    assert not any(b"1234567" in text for text in files_in(tmp_path).values())


class WithBuffer(torch.nn.Module):
    """Its state is no parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("secret", torch.full((3,), 0.1234567))

    def forward(self, x):
        return x + self.secret


def test_recorded_inputs_are_those_of_the_last_call_and_move_with_the_folder(tmp_path):
    """Aliasing and layout kept, each piece of memory once, readable by torch.load(weights_only=True)."""
    x = torch.arange(12.0).reshape(3, 4)
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled = called(lambda a, b, c: a * 2 + b + c, x + 1, x[0] + 1, torch.tensor([float("nan")]))
        compiled(x, x[0], torch.tensor([float("nan")]))
    save_reproducer(compiled, tmp_path / "here", inputs="real")
    moved = (tmp_path / "here").rename(tmp_path / "moved")
    assert len(list((moved / "inputs").iterdir())) == 2
    loads = [torch.load(file, weights_only=True) for file in (moved / "inputs").iterdir()]
    assert sorted(tuple(value.shape) for value in loads) == [(1,), (3, 4)]
    for script in sorted(moved.glob("*_repro.py")):
        a, b, c = loaded(script)["make_inputs"]()
        torch.testing.assert_close([a, b, c], [x, x[0], torch.tensor([float("nan")])], equal_nan=True)
        assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        assert run(script, cwd=tmp_path).returncode == 0


def test_recorded_inputs_are_taken_before_the_call(tmp_path):
    """A graph that writes into its input: what is saved is what it was, and for a later region what that was given."""
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled = thunderfx(lambda x: x.add_(1).sin())
        compiled(torch.zeros(3))
    values = {}
    for script in save_reproducer(compiled, tmp_path, inputs="real").scripts:
        (x,) = loaded(script)["make_inputs"]()
        values[script.name] = x.tolist()
    assert values["graph0_repro.py"] == [0.0] * 3
    assert sorted(values.values())[-1] == [1.0] * 3


def test_a_failed_call_is_recorded_by_itself_and_says_what_it_may_have_changed(tmp_path):
    """Without any setting; where the graph writes into an input, the values may be those after the write."""

    def fn(x, i):
        x.add_(1)
        return x[i]

    compiled = thunderfx(fn)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.zeros(3), torch.tensor([7]))
    with pytest.warns(ThunderFXWarning, match="maybe after it had written into some of them"):
        bundle = save_reproducer(compiled, tmp_path, inputs="real")
    notes = [note for entry in bundle.manifest["files"] for note in entry.get("notes", [])]
    assert "recorded when it failed, maybe after it had written into some of them" in notes
    assert any(torch.equal(loaded(s)["make_inputs"]()[1], torch.tensor([7])) for s in bundle.scripts)
    assert "maybe after it had written" in (tmp_path / "index.md").read_text()


def test_inputs_that_are_too_large_are_not_kept_and_it_says_so(tmp_path):
    """By the setting that limits them."""
    with thunder_fx.config.patch(capture_inputs="values", capture_limit=1):
        compiled = called(sine, torch.rand(1 << 19))
    with pytest.warns(ThunderFXWarning, match="the inputs take 2 MiB"):
        bundle = save_reproducer(compiled, tmp_path, inputs="real")
    assert "inputs" not in {entry["kind"] for entry in bundle.manifest["files"]}
    (note, *_) = bundle.manifest["files"][0]["notes"]
    assert note.startswith("the inputs take 2 MiB, more than the 1 that are recorded")
    assert_agree(bundle)


def test_a_setting_that_comes_too_late_warns():
    """Once, at the next call of a graph that was compiled before; a new graph records."""
    compiled = called()
    with thunder_fx.config.patch(capture_inputs="values"):
        with pytest.warns(ThunderFXWarning, match=r"sine .* was compiled before capture_inputs was set"):
            compiled(torch.rand(3, requires_grad=True))
        compiled(torch.rand(3, requires_grad=True))
        compiled(torch.rand(4, 4))
    compiled(torch.rand(3, requires_grad=True))
    first, second = get_subgraph_info(compiled)
    assert (first._inputs, second._inputs is None) == (None, False)


def test_capture_is_off_by_default_and_nothing_is_kept():
    """Neither of a call nor of a region."""
    compiled = called()
    (info,) = get_subgraph_info(compiled)
    assert (info._inputs, info.regions[0]._inputs) == (None, None)


def test_recorded_inputs_go_with_the_callable():
    """They are the record's alone."""
    with thunder_fx.config.patch(capture_inputs="values"):
        compiled = called()
    (info,) = get_subgraph_info(compiled)
    recorded = weakref.ref(info._inputs.values[0])
    assert recorded() is not None
    del compiled, info
    gc.collect()
    assert recorded() is None


def test_environment_turns_capture_on(tmp_path):
    """THUNDER_FX_CAPTURE_INPUTS=values; any other word is an error that says what it takes."""
    code = (
        "import torch, thunder_fx; f = thunder_fx.thunderfx(lambda x: x + 1); f(torch.ones(3)); "
        f"print(len(thunder_fx.save_reproducer(f, {str(tmp_path)!r}, inputs='real').scripts))"
    )
    assert run_python(code, env={"THUNDER_FX_CAPTURE_INPUTS": "values"}) == "2\n"
    done = run_python("import thunder_fx; thunder_fx.config", env={"THUNDER_FX_CAPTURE_INPUTS": "all"}, check=False)
    assert "THUNDER_FX_CAPTURE_INPUTS takes one of 'off', 'values'; found 'all'" in done.stderr


def test_a_graph_that_was_not_split_gives_its_own_script(tmp_path, monkeypatch):
    """Where compiling ended before there were regions, with the error."""
    from thunder_fx.graph import partition

    def fails(*args):
        raise RuntimeError("no split today")

    monkeypatch.setattr(partition, "split", fails)
    compiled = thunderfx(sine)
    with pytest.raises(Exception, match="no split today"):
        compiled(torch.ones(3))
    bundle = save_reproducer(compiled, tmp_path)
    assert [script.name for script in bundle.scripts] == ["graph0_repro.py"]
    assert bundle.manifest["graphs"][0]["error"] == "RuntimeError: no split today"
    assert "RuntimeError: no split today" in bundle.scripts[0].read_text()


def test_the_peers_name_writes_the_peers_files(tmp_path):
    """ThunderCompiler.save_reproducer_to_folder(), and its two switches."""
    backend = ThunderCompiler()
    torch.compile(sine, backend=backend)(torch.rand(3))
    backend.save_reproducer_to_folder(tmp_path / "a")
    assert {"graph0_repro.py", "graph0_thunder_0_repro.py"} <= files_in(tmp_path / "a").keys()
    backend.save_reproducer_to_folder(tmp_path / "b", use_pytest_benchmark=True)
    scripts = {name for name in files_in(tmp_path / "b") if name.endswith(".py")}
    assert scripts == {"graph0_benchmark.py", "graph0_thunder_0_benchmark.py"}
    with pytest.raises(ValueError, match="no inputs were recorded"):
        backend.save_reproducer_to_folder(tmp_path / "c", serialize_inputs=True)
    with pytest.raises(TypeError, match="has no graph yet"):
        ThunderCompiler().save_reproducer_to_folder(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_saving_compiles_nothing_and_keeps_nothing(tmp_path):
    """Counters stay, and the compiled callable goes when it is dropped."""
    compiled = called()
    (info,) = get_subgraph_info(compiled)
    save_reproducer(compiled, tmp_path)
    assert info.regions[0].compilations == 1
    backend = weakref.ref(thunder_fx.last_backend(compiled))
    del compiled, info
    gc.collect()
    assert backend() is None


def test_scripts_need_nothing_of_thunder_fx(tmp_path):
    """Where the package cannot be imported they run all the same."""
    bundle = save_reproducer(called(), tmp_path)
    (tmp_path / "thunder_fx.py").write_text("raise ImportError('not here')")
    for script in bundle.scripts:
        text = script.read_text()
        assert "import thunder_fx" not in text
        assert "from thunder_fx" not in text
        assert run(script, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}).returncode == 0
    assert run_here(bundle.scripts[0])[0] == 0
