"""save_reproducer(): a folder of scripts that run what was compiled, an index for people and a manifest for programs.

What is in a script is script.py's; here is which scripts there are, and that a folder is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from filelock import FileLock

from thunder_fx import _files
from thunder_fx.compiler import ThunderCompiler
from thunder_fx.errors import NotCompiledError, OptionValueError, ReproducerError, ThunderFXWarning
from thunder_fx.inspection import why_no_graph
from thunder_fx.options import THUNDER_DEFAULTS, describe_callable
from thunder_fx.registry import resolve
from thunder_fx.repro import SCHEMA_VERSION, script, verify
from thunder_fx.repro.values import Inexpressible, Writer
from thunder_fx.subgraph import SubgraphInfo

INPUTS = ("synthetic", "real")
KINDS = ("repro", "benchmark")

# A bundle is saved over an earlier one of the same compiler, and never over another's.
_saving = threading.RLock()
_token_of: weakref.WeakKeyDictionary[ThunderCompiler, str] = weakref.WeakKeyDictionary()


@dataclass
class ReproducerBundle:
    """What save_reproducer() has written.

    Attributes:
        folder: where; an absolute path.
        scripts: absolute paths of the scripts, named *_repro.py or *_benchmark.py.
        manifest: what manifest.json has: schema version, files and why each exists, options, versions, hardware, error.
    """

    folder: pathlib.Path
    scripts: list[pathlib.Path] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    def verify(self, *, timeout: float = 600, on_result: Callable[[str, str], None] | None = None) -> dict[str, str]:
        """Run each *_repro.py in a process of its own, and note in index.md and manifest.json what came of it.

            bundle = thunder_fx.save_reproducer(tfoo, "folder")
            bundle.verify()     # {'graph0_repro.py': 'agrees', 'graph0_thunder_0_repro.py': 'agrees'}

        A script that fails as was recorded, or that differs from eager where no error was recorded, `reproduced the
        error`; others are a `different error`; one that stops before its graph runs, `does not run`.

        Args:
            timeout: how long one script may take, in seconds.
            on_result: called with a script's name and its outcome as soon as it is known.

        Raises:
            OSError: a file of the bundle cannot be read, or the outcome not be written; or another bundle is there now.
        """
        self._read()
        files = {entry["path"]: entry for entry in self.manifest["files"] if entry["kind"] == "repro"}
        outcomes = {}
        for name, result in verify.run_all(self.folder, files, timeout):
            files[name]["verified"], files[name]["found"] = result.outcome, result.found
            outcomes[name] = result.outcome
            if on_result is not None:
                on_result(name, result.outcome)
        with _alone(self.folder):
            self._read()
            for entry in self.manifest["files"]:
                if entry["path"] in outcomes:
                    entry["verified"], entry["found"] = files[entry["path"]]["verified"], files[entry["path"]]["found"]
            for name, text in _index_files(self.manifest).items():
                _files.write_whole(self.folder / name, text)
        return dict(sorted(outcomes.items()))

    def _read(self) -> None:
        """What is there now, where the same compiler has been saved once more since."""
        path = self.folder / "manifest.json"
        if _token_in(self.folder) != self.manifest["token"]:
            why = f"the bundle of {self.manifest['callable']} is not there any more: save it once more"
            raise ReproducerError(errno.ENOENT, why, str(path))
        self.manifest = json.loads(path.read_text())
        self.scripts = [self.folder / entry["path"] for entry in self.manifest["files"] if entry["kind"] in KINDS]


def save_reproducer(
    fn: Callable[..., Any],
    folder: str | os.PathLike[str],
    *,
    inputs: str = "synthetic",
    benchmark: bool = False,
    verify: bool = False,
) -> ReproducerBundle:
    """Write scripts that run what was compiled of a callable, where only torch and lightning-thunder are installed.

        tfoo = thunderfx(foo)
        tfoo(x)
        bundle = thunder_fx.save_reproducer(tfoo, "folder")
        bundle.scripts      # graph0_repro.py: the whole graph; graph0_thunder_0_repro.py, ...: one for each region

    A script compiles its graph as it was compiled, runs it forward and backward, and compares with eager. It can be
    moved, with its folder. Graphs whose compilation or run failed give scripts too, which fail in the same way.

    Args:
        fn: what get_subgraph_info() takes.
        folder: made if it is not there. What another callable has left in it stays: this one then goes into a folder
            of its own inside.
        inputs: "synthetic", made up from dtypes, shapes and strides, so that no value of yours is in any file; or
            "real", those that were recorded while `thunder_fx.config.capture_inputs` was "values", or at a failure.
        benchmark: write for each script one that pytest-benchmark runs, too.
        verify: run each script at once; the same as verify() on the result.

    Returns:
        A ReproducerBundle: .folder, .scripts, .manifest and .verify().

    Raises:
        NotCompiledError: (a TypeError) no ThunderCompiler is known for `fn`, or it has no graph; the text says why.
        OptionValueError: (a ValueError) `inputs` is neither of its values, or "real" and none were recorded.
        OSError: the folder is a file, or cannot be made or written. Then nothing is left half-written.

    Warns (ThunderFXWarning) where the bundle went into a folder of its own, where a script needs something from you
    before it runs, and where recorded inputs are not all there.

    In "synthetic" bundles the values that remain are those of the program: numbers among the inputs, constants of the
    graph, options with their state, and the texts of errors.
    """
    compiler = resolve(fn)
    if not compiler.subgraph_infos:
        raise NotCompiledError(f"save_reproducer: there is nothing to save: {why_no_graph(fn, compiler)}")
    kinds = KINDS if benchmark else ("repro",)
    bundle = save(compiler, describe_callable(fn), folder, inputs=inputs, kinds=kinds)
    if verify:
        bundle.verify()
    return bundle


def save(
    compiler: ThunderCompiler,
    name: str | None,
    folder: str | os.PathLike[str],
    *,
    inputs: str,
    kinds: Sequence[str],
    about: str | None = None,
) -> ReproducerBundle:
    """save_reproducer() for a ThunderCompiler; without a name the bundle is called as the first captured function.

    `about` says what left it, for the index: a test that failed.
    """
    infos = [info for info in compiler.subgraph_infos if info.original_graph_module is not None]
    if not infos:
        raise NotCompiledError(f"{name or 'this ThunderCompiler'} has no graph yet: call the compiled function first")
    name = name or next((info.source.function for info in infos if info.source is not None), "callable")
    _check_inputs(inputs, infos)
    root = pathlib.Path(os.path.abspath(os.fspath(folder)))
    if "\0" in str(root):
        why = f"the reproducer of {name} cannot be saved in {str(root)!r}: no path has a null character"
        raise ReproducerError(errno.EINVAL, why, str(root))
    scripts = [each for kind in kinds for each in _scripts(compiler, infos, real=inputs == "real", kind=kind)]
    with _alone(root):
        token = _token_of.setdefault(compiler, uuid.uuid4().hex)
        manifest = {**_manifest(compiler, infos, scripts, name, token, inputs), "about": about}
        target = _place(root, name, token, [entry["path"] for entry in manifest["files"]])
        with _written_whole(target) as draft:
            _write_files(draft, scripts, manifest)
    _warn_of_what_to_know(scripts, root, target, is_real=inputs == "real")
    return ReproducerBundle(target, [target / _file_of(each) for each in scripts], manifest)


@contextlib.contextmanager
def _alone(root: pathlib.Path) -> Iterator[None]:
    """Inside, no other thread or process of this user and machine places a bundle in a folder.

    Not by a file in the folder, which would stay there; processes are not kept apart where no temporary file can be
    made, which is no reason not to save.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
    with _saving, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = FileLock(pathlib.Path(tempfile.gettempdir()) / f"thunder_fx-{user}-{name}.lock")
            stack.enter_context(lock)
        yield


def _write_files(draft: pathlib.Path, scripts: Sequence[script.Script], manifest: Mapping[str, Any]) -> None:
    for each in scripts:
        _files.write(draft / _file_of(each), each.text)
        for file, tensor in each.tensors.items():
            save_tensor(draft / file, tensor)
    for file, text in _index_files(manifest).items():
        _files.write(draft / file, text)


def _scripts(
    compiler: ThunderCompiler, infos: Sequence[SubgraphInfo], *, real: bool, kind: str
) -> Iterator[script.Script]:
    options = {**THUNDER_DEFAULTS, **compiler.thunder_options}
    told = compiler.torch_compile_options
    request = script.Request(options, told, real, kind == "benchmark", compiler._states)
    for index, info in enumerate(infos):
        yield script.of_graph(info, index, request)
        if info.original_split_graph_module is not None:
            yield from (script.of_region(info, index, region, request) for region in info.regions)


def _file_of(each: script.Script) -> str:
    return f"{each.name}_{each.kind}.py"


def _check_inputs(inputs: str, infos: Sequence[SubgraphInfo]) -> None:
    if inputs not in INPUTS:
        raise OptionValueError(
            f"save_reproducer: inputs= takes one of {', '.join(map(repr, INPUTS))}; found {inputs!r}"
        )
    if inputs == "synthetic":
        return
    recorded = [info._inputs for info in infos if info._inputs is not None]
    recorded += [region._inputs for info in infos for region in info.regions if region._inputs is not None]
    if not recorded:
        is_recording = any(info.is_recording for info in infos)
        found = (
            "set when they were compiled, and they have not run" if is_recording else "not set when they were compiled"
        )
        raise OptionValueError(
            f"save_reproducer: inputs='real', and no inputs were recorded: config.capture_inputs was {found}. "
            'Compile and call the function inside `with thunder_fx.config.patch(capture_inputs="values"):`, or with '
            "THUNDER_FX_CAPTURE_INPUTS=values in the environment; a call that fails is recorded by itself"
        )


def _warn_of_what_to_know(
    scripts: Sequence[script.Script], root: pathlib.Path, target: pathlib.Path, *, is_real: bool
) -> None:
    problems = dict.fromkeys(problem for each in scripts for problem in each.problems)
    notes = dict.fromkeys(note for each in scripts for note in each.notes if is_real)
    told = []
    if target != root:
        told.append(f"{root} has another bundle, which stays: this one is in {target}")
    if problems:
        told.append(f"some scripts in {target} need something from you before they run: {'; '.join(problems)}")
    if notes:
        told.append(f"not all inputs in {target} are as they were: {'; '.join(notes)}")
    for text in told:
        warnings.warn(text, ThunderFXWarning, stacklevel=4)


# The manifest and the index


def _manifest(
    compiler: ThunderCompiler,
    infos: Sequence[SubgraphInfo],
    scripts: Sequence[script.Script],
    name: str,
    token: str,
    inputs: str,
) -> dict[str, Any]:
    files = [_file_entry(each) for each in scripts]
    tensors = dict.fromkeys(file for each in scripts for file in each.tensors)
    files += [
        {"path": file, "kind": file.partition("/")[0], "why": _WHY_TENSORS[file.partition("/")[0]]} for file in tensors
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "written_by": script.written_by(),
        "written_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "callable": name,
        "token": token,
        "inputs": inputs,
        "options": {
            "thunder": _shown(compiler.thunder_options, compiler._states),
            "torch_compile": _shown(compiler.torch_compile_options, compiler._states),
        },
        "versions": versions(),
        "hardware": hardware(),
        "graphs": [_graph_entry(index, info) for index, info in enumerate(infos)],
        "files": files,
    }


_WHY_TENSORS = {
    "inputs": "the elements of an input, as they were recorded",
    "constants": "a tensor that is a part of the graph",
}


def _file_entry(each: script.Script) -> dict[str, Any]:
    return {
        "path": _file_of(each),
        "kind": each.kind,
        "why": each.title,
        "run": f"python -m pytest {_file_of(each)}" if each.kind == "benchmark" else f"python {_file_of(each)}",
        "compiler": each.compiler,
        "region": each.region,
        "error": each.error,
        "to_be_supplied": each.problems,
        "notes": each.notes,
        "verified": None,
        "found": None,
    }


def _graph_entry(index: int, info: SubgraphInfo) -> dict[str, Any]:
    return {
        "index": index,
        "graph_id": info.graph_id,
        "compile_id": info.compile_id,
        "source": str(info.source) if info.source is not None else None,
        "graph_break_reason": info.graph_break_reason,
        "recompile_reason": info.recompile_reason,
        "error": info.error,
        "regions": [
            {"name": r.name, "compiler": r.compiler.name, "operators": len(r.nodes), "error": r.error}
            for r in info.regions
        ],
        "split_reasons": [
            {
                "node": r.node,
                "type": r.reason_type.name,
                "reason": script.without_addresses(r.info),
                "exception": r.exception,
                "source": r.source,
            }
            for r in info.split_reasons
        ],
    }


def _shown(options: Mapping[str, Any], states: Mapping[int, dict[str, Any]]) -> dict[str, str]:
    """Options as code; in words where there is none."""
    shown = {}
    for name, value in options.items():
        try:
            shown[name] = Writer(states=states).expression(value)
        except Inexpressible as error:
            shown[name] = f"not code: {error}"
    return shown


def versions() -> dict[str, str | None]:
    import importlib.metadata

    return {
        "thunder_fx": importlib.metadata.version("thunder-fx"),
        "torch": torch.__version__,
        "lightning-thunder": importlib.metadata.version("lightning-thunder"),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }


def hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "gpus": gpus,
    }


def _index_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    return {
        "index.md": script.render("index.md.jinja", **manifest),
        "manifest.json": json.dumps(manifest, indent=1) + "\n",
    }


# The folder


def safe(name: str) -> str:
    """A name for a folder, on any system."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.")[:60] or "callable"


def _place(root: pathlib.Path, name: str, token: str, files: Sequence[str]) -> pathlib.Path:
    """Where a bundle goes: the folder itself, or a folder in it if what is there is not this compiler's."""
    for parent in (root, *root.parents):
        if parent.exists() and not parent.is_dir():
            why = f"the reproducer of {name} cannot be saved in {root}, since this is a file; give another folder"
            raise ReproducerError(errno.ENOTDIR, why, str(parent))
    names = {*files, "index.md", "manifest.json", *(file.partition("/")[0] for file in files)}
    base = safe(name)
    candidates = [root, *(root / (base if n == 1 else f"{base}_{n}") for n in range(1, 10_000))]
    for candidate in candidates:
        found = _token_in(candidate)
        if found == token and not _conflicts(candidate, names):
            return candidate
        if found is None and not any((candidate / file).exists() for file in names):
            return candidate
    why = f"the reproducer of {name} finds ten thousand others there; give another folder"
    raise ReproducerError(errno.EEXIST, why, str(root))


def is_free_for(compiler: ThunderCompiler, folder: pathlib.Path) -> bool:
    """Whether a folder has no bundle of another compiler's."""
    return _token_in(folder) in (None, _token_of.get(compiler))


def _conflicts(folder: pathlib.Path, names: set[str]) -> bool:
    """Whether somebody else's file has a name in an earlier bundle's folder that the new one needs."""
    earlier = json.loads((folder / "manifest.json").read_text())
    own = {"index.md", "manifest.json", *(entry["path"] for entry in earlier["files"])}
    folders = {name.partition("/")[0] for name in names if "/" in name}
    if any((folder / name).exists() and not (folder / name).is_dir() for name in folders):
        return True
    return any((folder / name).exists() for name in names - own - folders)


def _token_in(folder: pathlib.Path) -> str | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        token, _ = manifest["token"], [entry["path"] for entry in manifest["files"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "not ours"
    return str(token)


@contextlib.contextmanager
def _written_whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A draft beside which `target` stays as it was, until the draft is complete; then its files change places."""
    missing = [path for path in (target, *target.parents) if not path.exists()]
    aside = None
    try:
        target.mkdir(parents=True, exist_ok=True)
        aside = pathlib.Path(tempfile.mkdtemp(prefix=".draft-", dir=target))
        draft, earlier = aside / "draft", aside / "earlier"
        draft.mkdir()
        earlier.mkdir()
        yield draft
        # What else is in the folder is none of ours.
        own = [name for name in _files_of_earlier(target) if (target / name).is_file()]
        new = [str(path.relative_to(draft)) for path in sorted(draft.rglob("*")) if path.is_file()]
        try:
            _move(own, target, earlier)
            _move(new, draft, target)
        except BaseException:
            for name in new:
                if not (draft / name).exists():
                    (target / name).unlink(missing_ok=True)
            _move([name for name in own if (earlier / name).exists()], earlier, target)
            raise
    except BaseException:
        for folder in missing[-1:]:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _move(names: Sequence[str], source: pathlib.Path, target: pathlib.Path) -> None:
    """The manifest last: with it a bundle is there."""
    for name in sorted(names, key=lambda name: name == "manifest.json"):
        (target / name).parent.mkdir(exist_ok=True)
        os.replace(source / name, target / name)


def _files_of_earlier(target: pathlib.Path) -> list[str]:
    try:
        earlier = json.loads((target / "manifest.json").read_text())
    except FileNotFoundError:
        return []
    return ["manifest.json", "index.md", *(entry["path"] for entry in earlier["files"])]


def save_tensor(path: pathlib.Path, tensor: torch.Tensor) -> None:
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        torch.save(tensor.clone(), path)
