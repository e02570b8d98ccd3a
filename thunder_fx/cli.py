"""The command line: `thunder-fx`, also `python -m thunder_fx`.

    thunder-fx demo                      what `make demo` runs
    thunder-fx run SCRIPT_OR_FOLDER      run the scripts of a reproducer
    thunder-fx verify FOLDER             the same, beside what was recorded, and written down
    thunder-fx minify SCRIPT             shrink a graph that fails
    thunder-fx env                       versions, devices, adaptations

Exit status 0; 1 for a result that was checked and is bad; 2 for bad usage. A reproducer is code: what is run is said
before it runs. torch is imported by the commands that need it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from thunder_fx.repro import MARK, SCHEMA_VERSION
from thunder_fx.repro.verify import report_of

# Those of runner.py, which imports torch.
COMPILERS = ("thunder", "inductor", "eager")


class Usage(Exception):
    """What was asked for cannot be done: one line, and exit status 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of a command line."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (Usage, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `thunder-fx env | head`
            sys.stderr.close()
            return 1
        print(f"thunder-fx {options.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="thunder-fx", description="Reproducers of thunder_fx, and a demo.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("demo", _demo, "compile a small transformer, and look at what happened")
    run = command("run", _run, "run a script, or all scripts of a folder, and compare with eager")
    run.add_argument("path", type=pathlib.Path, metavar="SCRIPT_OR_FOLDER")
    run.add_argument("--compiler", choices=COMPILERS, help="compile all of it by this one")
    run.add_argument("--timeout", type=_seconds, default=600, metavar="SECONDS", help="of each script (600)")
    verify = command("verify", _verify, "run all scripts of a folder, and write down whether they do what was recorded")
    verify.add_argument("path", type=pathlib.Path, metavar="FOLDER")
    verify.add_argument("--timeout", type=_seconds, default=600, metavar="SECONDS", help="of each script (600)")
    minify = command("minify", _minify, "shrink the graph of a script that fails, while it fails in the same way")
    minify.add_argument("path", type=pathlib.Path, metavar="SCRIPT")
    minify.add_argument("--regex", metavar="TEXT", type=_pattern, help="the same way is an error whose text has this")
    minify.add_argument("--out", type=pathlib.Path, metavar="FILE", help="default: beside SCRIPT, *_minified_repro.py")
    minify.add_argument("--timeout", type=_seconds, default=300, metavar="SECONDS", help="of each try (300)")
    command("env", _env, "versions, devices, and which adaptations to them are active")
    return parser


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"takes seconds, at least 1; found {text}")
    return value


def _demo(options: argparse.Namespace) -> int:
    from thunder_fx.demo import main as demo

    return demo()


# Scripts


def _run(options: argparse.Namespace) -> int:
    is_script = options.path.is_file()
    scripts = [options.path] if is_script else [s for folder in _bundles_in(options.path) for s in _scripts_of(folder)]
    for script in scripts:
        _check_script(script)
    arguments = ["--compiler", options.compiler] if options.compiler else []
    results = []
    for number, script in enumerate(scripts, 1):
        print(f"[{number}/{len(scripts)}] running {script}", flush=True)
        results.append((script.name, *_result_of(script, arguments, options.timeout)))
    width = max(len(name) for name, *_ in results)
    print()
    for name, outcome, seconds, found in results:
        print(f"{name:<{width}}  {outcome:<7}  {seconds:6.1f} s")
        _print_wrapped(found)
    return int(any(outcome != "agrees" for _, outcome, *_ in results))


def _result_of(script: pathlib.Path, arguments: list[str], timeout: float) -> tuple[str, float, str]:
    """What a script says came of it, how long it took, and the error or the difference."""
    start = time.perf_counter()
    try:
        found = report_of(script, arguments, timeout)
    except subprocess.TimeoutExpired:
        return "hangs", time.perf_counter() - start, f"no end in {timeout:.0f} s"
    seconds = time.perf_counter() - start
    if isinstance(found, str):
        return "died", seconds, found
    return found["outcome"], seconds, found["error"] or "; ".join(found["differences"])


def _verify(options: argparse.Namespace) -> int:
    folders = _bundles_in(options.path)
    for folder in folders:
        for script in _scripts_of(folder):
            _check_script(script)
    return max(_verify_bundle(folder, options.timeout) for folder in folders)


def _verify_bundle(folder: pathlib.Path, timeout: float) -> int:
    manifest = _manifest_of(folder)
    entries = {entry["path"]: entry for entry in manifest["files"] if entry["kind"] == "repro"}
    from thunder_fx.repro.bundle import ReproducerBundle

    folder = folder.absolute()
    print(f"running {len(entries)} scripts in {folder}", flush=True)
    bundle = ReproducerBundle(folder, [folder / name for name in entries], manifest)
    width = max(map(len, entries))
    bundle.verify(timeout=timeout, on_result=lambda name, outcome: print(f"  {name:<{width}}  {outcome}", flush=True))
    entries = {entry["path"]: entry for entry in bundle.manifest["files"] if entry["kind"] == "repro"}
    bad = {name: why for name, entry in entries.items() if (why := _not_as_recorded(entry, manifest)) is not None}
    for name, why in bad.items():
        print(f"not as recorded: {name}")
        _print_wrapped(why)
    if not bad:
        print(f"all {len(entries)} do what was recorded")
    return int(bool(bad))


def _not_as_recorded(entry: dict[str, Any], manifest: dict[str, Any]) -> str | None:
    """In words; None for a script that did what was recorded of it."""
    outcome, error = entry["verified"], entry.get("error")
    if outcome == ("reproduced the error" if error else "agrees"):
        return None
    if outcome == "reproduced the error":
        return f"it differs from eager, where no error was recorded: {entry['found']}"
    if outcome == "agrees":
        hint = "; made-up inputs may not fail as yours did: record them with THUNDER_FX_CAPTURE_INPUTS=values"
        return f"it agrees with eager, where {error} was recorded{hint if manifest['inputs'] == 'synthetic' else ''}"
    return f"{entry['found']}" + (f", where {error} was recorded" if error else "")


def _minify(options: argparse.Namespace) -> int:
    _check_script(options.path)
    out = options.out or options.path.with_name(options.path.name.removesuffix("_repro.py") + "_minified_repro.py")
    print(f"running {options.path}, and smaller graphs like it", flush=True)
    from thunder_fx.errors import MinifyError
    from thunder_fx.repro.minify import minify

    out.parent.mkdir(parents=True, exist_ok=True)
    is_terminal, last = sys.stdout.isatty(), 0

    def progress(tries: int, nodes: int) -> None:
        nonlocal last
        if is_terminal or nodes != last:
            print(f"  after {tries} tries: {_operators(nodes)}", end="\r" if is_terminal else "\n", flush=True)
        last = nodes

    try:
        result = minify(options.path, out, pattern=options.regex, timeout=options.timeout, on_progress=progress)
    except (MinifyError, OSError) as error:
        raise Usage(str(error)) from error
    stopped = "" if result.is_complete else "stopped before the end: "
    print(f"{stopped}{_operators(result.before)} became {result.after}, in {result.tries} tries: {result.path}")
    _print_wrapped(f"{result.failure.kind}: {result.failure.text}")
    return int(not result.is_complete)


def _operators(count: int) -> str:
    return f"{count} operator{'s' if count != 1 else ''}"


# What a path is


def _bundles_in(path: pathlib.Path) -> list[pathlib.Path]:
    """A bundle's folder, or all below a folder that failing tests have left."""
    if path.is_dir() and not (path / "manifest.json").exists():
        below = sorted(manifest.parent for manifest in path.rglob("manifest.json"))
        if below:
            return below
    _manifest_of(path)
    return [path]


def _manifest_of(folder: pathlib.Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise Usage(
            f"expected the folder of a reproducer, found {'a file' if folder.exists() else 'nothing'}: {folder}"
        )
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        version = manifest["schema_version"]
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise Usage(
                f"expected a manifest of schema {SCHEMA_VERSION} at most, found {version} in {folder}: a newer "
                f"thunder_fx wrote it ({manifest.get('written_by')})"
            )
        _, entries = manifest["token"], [(entry["path"], entry["kind"]) for entry in manifest["files"]]
        if any(pathlib.PurePath(path).is_absolute() or ".." in pathlib.PurePath(path).parts for path, _ in entries):
            raise ValueError("a path that leads out of the folder")
    except FileNotFoundError:
        raise Usage(f"expected a folder that save_reproducer() wrote, found no manifest.json in {folder}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Usage(
            f"expected a manifest of thunder_fx, found another in {folder / 'manifest.json'} ({error!r})"
        ) from None
    return dict(manifest)


def _scripts_of(folder: pathlib.Path) -> list[pathlib.Path]:
    files = [folder / entry["path"] for entry in _manifest_of(folder)["files"] if entry["kind"] == "repro"]
    if not files:
        raise Usage(f"{folder} has no *_repro.py; those for pytest-benchmark are run by python -m pytest")
    return files


def _check_script(script: pathlib.Path) -> None:
    """Only what thunder_fx wrote is executed."""
    try:
        is_ours = MARK in script.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Usage(f"expected a script of a reproducer, found {script}, which cannot be read: {error}") from None
    if not is_ours:
        raise Usage(f"expected a script of a reproducer, found one that thunder_fx did not write: {script}")


def _print_wrapped(text: str, lines: int = 6) -> None:
    for line in textwrap.wrap(text, 76, max_lines=lines, placeholder=" ..."):
        print(f"    {line}")


# The environment


def _env(options: argparse.Namespace) -> int:
    import platform

    import torch

    import thunder_fx
    from thunder_fx.repro.bundle import hardware, versions

    print(f"thunder_fx {thunder_fx.__version__}")
    for name, version in {**versions(), "python": platform.python_version()}.items():
        if version and name != "thunder_fx":
            print(f"{name} {version}")
    for name, value in hardware().items():
        if value:
            print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    print("adaptations:")
    from thunder_fx import _torch

    for what, active in _torch.adaptations().items():
        lines = textwrap.wrap(what, 72)
        print(f"  {'on ' if active else 'off'} {lines[0]}", *(f"\n      {line}" for line in lines[1:]), sep="")
    print(f"devices: cpu{''.join(f', cuda:{i}' for i in range(torch.cuda.device_count()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
