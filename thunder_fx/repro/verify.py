"""Running the scripts of a bundle, each in a process of its own, and judging whether it did what was recorded."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

AGREES = "agrees"
REPRODUCED = "reproduced the error"
DIFFERENT = "different error"
DOES_NOT_RUN = "does not run"


@dataclass(frozen=True)
class Result:
    """What a script did, and in its own words: the error, or what differs from eager."""

    outcome: str
    found: str | None = None


def run_all(
    folder: pathlib.Path, files: Mapping[str, Mapping[str, Any]], timeout: float
) -> Iterator[tuple[str, Result]]:
    """Run scripts, as many at a time as there are CPUs for two each, and give each result as it comes."""
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        futures = {pool.submit(run, folder / name, entry.get("error"), timeout): name for name, entry in files.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()


def run(path: pathlib.Path, recorded: str | None, timeout: float) -> Result:
    """Run one script, and judge what it did."""
    try:
        found = report_of(path, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Result(DOES_NOT_RUN, f"no end in {timeout:.0f} s")
    return Result(DOES_NOT_RUN, found) if isinstance(found, str) else judge(found, recorded)


def report_of(path: pathlib.Path, arguments: Sequence[str] = (), timeout: float | None = None) -> dict[str, Any] | str:
    """Run a script from a folder that is not its own: what it reports, or, if it made no report, its last words."""
    with tempfile.TemporaryDirectory() as elsewhere:
        report = pathlib.Path(elsewhere) / "report.json"
        command = [sys.executable, str(path.absolute()), *arguments, "--json", str(report)]
        done = subprocess.run(
            command, cwd=elsewhere, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        try:
            return dict(json.loads(report.read_text()))
        except (FileNotFoundError, ValueError):
            return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def judge(found: Mapping[str, Any], recorded: str | None) -> Result:
    """What a script's report means, beside the error that was recorded."""
    if found["outcome"] == "agrees":
        return Result(AGREES, "; ".join(found.get("remarks", ())) or None)
    if found["outcome"] == "differs":
        what = "; ".join(found["differences"])
        # Where nothing was raised, wrong numbers are what is to be reproduced.
        return Result(DIFFERENT if recorded else REPRODUCED, what)
    error = found["error"]
    if error.startswith("SystemExit") or recorded is None:
        return Result(DOES_NOT_RUN, error)
    return Result(REPRODUCED if are_alike(error, recorded) else DIFFERENT, error)


def are_alike(a: str, b: str) -> bool:
    """Whether two errors, as `Type: text`, are the same but for addresses, paths and numbers of lines."""
    return plain(a) == plain(b)


def plain(error: str) -> str:
    """An error's text without what changes from process to process."""
    # Where in the program it was is no part of it; a number of so many digits is an id or an address.
    text = re.split(r"\s*(?:Original traceback|Set TORCHDYNAMO_VERBOSE|from user code):", error)[0]
    text = re.sub(r"0x[0-9a-fA-F]+|\b\d{9,}\b", "0x", text)
    text = re.sub(r"(/[\w.+-]+)+", "/", text)
    text = re.sub(r"line \d+", "line", text)
    return " ".join(text.split())
