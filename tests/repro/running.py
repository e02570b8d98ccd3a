"""Running what a bundle consists of, in this process or in one of its own."""

import contextlib
import io
import pathlib
import runpy
import subprocess
import sys


def loaded(script):
    """The names of a script, which runs nothing when it is imported."""
    return runpy.run_path(str(script), run_name="loaded")


def run_here(script, *arguments):
    """Exit status and output of a script, run in this process: what is shown is the same, and a second sooner."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = loaded(script)["reproducer"].main(list(arguments))
    return status, out.getvalue()


def assert_agree(bundle):
    """Every script of a bundle agrees with eager."""
    assert bundle.scripts
    for script in bundle.scripts:
        status, out = run_here(script)
        assert status == 0, f"{script.name}: {out}"
        assert "agrees with eager" in out


def run(script, *arguments, cwd, **kwargs):
    """A script as a person runs it."""
    command = [sys.executable, str(pathlib.Path(script).absolute()), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, **kwargs)
