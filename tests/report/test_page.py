"""The page as a file: it needs nothing else, and escapes what is the user's."""

import dataclasses
import html.parser
import re

import pytest
import torch

from tests.helpers import needs_cxx, splits
from tests.report.test_text import explanation
from thunder_fx import explain, thunderfx
from thunder_fx.report import page
from thunder_fx.report.model import Split

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def hostile():
    """What is the user's, wherever it stands."""
    made = explanation(options=1)
    (graph,) = made.graphs
    region = dataclasses.replace(
        graph.regions[0],
        error=HOSTILE,
        warning=HOSTILE,
        operators=(dataclasses.replace(graph.regions[0].operators[0], node=HOSTILE, target=HOSTILE, source=HOSTILE),),
    )
    split = Split(HOSTILE, HOSTILE, None, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    graph = dataclasses.replace(
        graph, function=HOSTILE, file=HOSTILE, graph_break=HOSTILE, recompile=HOSTILE, error=HOSTILE,
        regions=(region, *graph.regions[1:]), splits=(split,),
    )  # fmt: skip
    return dataclasses.replace(made, callable=HOSTILE, diagnosis=HOSTILE, graphs=(graph,))


class Elements(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.handlers = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "xlink:href", "action"):
                self.addresses.append(value)
            if name.startswith("on"):
                self.handlers.append(name)


def test_what_is_the_users_is_escaped_and_nothing_is_fetched():
    """One script and one style, both of the page's own; addresses are places in the page."""
    text = page.rendered(hostile())
    found = Elements()
    found.feed(text)
    assert (found.tags.count("script"), found.tags.count("style"), found.tags.count("img")) == (1, 1, 0)
    assert found.handlers == []
    assert all(address.startswith("#") for address in found.addresses)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text


@needs_cxx
def test_traces_are_in_it_coloured(tmp_path):
    """Each that differs from the one before, with the passes that made it; lines of the program; reasons."""
    compiled = thunderfx(splits)
    compiled(torch.rand(4, requires_grad=True))
    explain(compiled).to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<span class="p-' in text
    assert "Dead Code Elimination" in text
    assert "helpers.py:" in text
    assert "only has an automatic torch fallback" in text
    assert text.count('<rect class="thunder') == 2
    assert text.count('<path class="arrow"') == 2
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_path_that_cannot_be_written(tmp_path):
    """An OSError that names it; what was there stays."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (folder, tmp_path / "missing" / "page.html", f"{tmp_path}/a\0b"):
        with pytest.raises(OSError, match="the page of a callable cannot be written") as caught:
            explanation().to_html(path)
        assert caught.value.filename
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_half_a_character_is_written(tmp_path):
    """An error's text may have what no encoding has."""
    made = dataclasses.replace(explanation(), callable="half \udc80")
    made.to_html(tmp_path / "page.html")
    assert "half \\udc80" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_in_a_notebook_it_is_in_a_frame_of_its_own():
    """So that neither meets the other's style."""
    shown = explanation()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert "<script" not in shown


def test_long_traces_are_cut_and_say_so():
    """A browser has to lay them out."""
    short, long, longest = ("x = 1\n" * count for count in (10, page.COLOURED // 5, page.SHOWN // 5))
    assert '<span class="p-' in page._coloured(short)
    assert '<span class="p-' not in page._coloured(long)
    assert "more characters: Region.traces has all of it" in page._coloured(longest)
