"""README and the pages under docs: every snippet runs, and prints what the page says that it prints."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers import needs_cxx, run_python

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


@needs_cxx
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_print_what_the_page_says(page, tmp_path):
    """All snippets of a page, in order, in one process, as a reader would run them."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert without_times(done.stdout) == without_times("".join(blocks(page, "text")))


def without_times(text):
    """What differs from run to run."""
    return re.sub(r"in \d+\.\d+ s: .*|\d+\.\d+", "...", text)


def test_commands_are_targets_of_the_makefile():
    """Each command of the README is one that make knows; what they run is tested beside this."""
    commands = [line.split("#")[0].split() for text in blocks(ROOT / "README.md", "sh") for line in text.splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    if shutil.which("make"):
        for command in commands:
            subprocess.run([command[0], "-n", *command[1:]], cwd=ROOT, check=True, capture_output=True)


@needs_cxx
def test_demo_agrees_with_eager_and_fits_a_terminal():
    """What `make demo` runs: the numbers are eager's, and no line is longer than 80 columns."""
    out = run_python("import sys; from thunder_fx.demo import main; sys.exit(main())")
    assert out.rstrip().endswith("The numbers are eager's.")
    assert "inductor_1" in out
    assert "not run by thunder: sinc" in out
    assert "fix first  sinc: 1 place, 2 of 3 regions exist only because of it" in out
    page = re.search(r"to_html\(\.\.\.\): (\S+)", out)[1]
    assert "<svg" in pathlib.Path(page).read_text()
    assert max(map(len, out.splitlines())) <= 80


def test_links_lead_somewhere():
    """Within the repository."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
