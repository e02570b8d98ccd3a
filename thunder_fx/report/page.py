"""An Explanation as one HTML file, which needs nothing else and asks nothing of any server.

What it looks like is templates/page.html.jinja's: escaped by jinja2, traces coloured by pygments.
"""

from __future__ import annotations

import errno
import functools
import html
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import jinja2
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from thunder_fx import _files
from thunder_fx.errors import ReportError
from thunder_fx.report.explanation import Explanation
from thunder_fx.report.model import GraphReport, RegionReport, Stage, described_input
from thunder_fx.report.text import many, seconds_in_words

# A longer trace is shown without colours, and a very long one up to there: a browser has to lay it out.
COLOURED, SHOWN = 150_000, 1_000_000


def write(explanation: Explanation, path: str | os.PathLike[str]) -> None:
    """Write the page; an OSError names the path."""
    target = pathlib.Path(os.path.abspath(os.fspath(path)))
    text = rendered(explanation)
    try:
        _files.write_whole(target, text)
    except OSError as error:
        why = f"the page of {explanation.callable} cannot be written: {error.strerror}"
        raise ReportError(error.errno or errno.EIO, why, str(target)) from error
    except ValueError as error:  # a null character
        raise ReportError(
            errno.EINVAL, f"the page of {explanation.callable} cannot be written: {error}", str(target)
        ) from error


def rendered(explanation: Explanation) -> str:
    return _template().render(
        explanation=explanation,
        seconds=seconds_in_words(explanation.seconds),
        graphs=[(graph, _picture(graph)) for graph in explanation.graphs],
        described=described_input,
        stages=_stages,
        many=many,
        colours=_colours(),
    )


def for_notebook(explanation: Explanation) -> str:
    """The page in a frame of its own, whose style and script do not meet the notebook's."""
    page = html.escape(rendered(explanation), quote=True)
    return f'<iframe srcdoc="{page}" style="width: 100%; height: 36em; border: 1px solid #8888"></iframe>'


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("thunder_fx.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja")


# Traces


@dataclass
class _Shown:
    title: str
    code: Markup


def _stages(stages: tuple[Stage, ...]) -> Iterator[_Shown]:
    """Each trace that differs from the one before, with the passes that made it."""
    titles: list[str] = []
    for number, stage in enumerate(stages):
        took = f" ({stage.seconds * 1000:.0f} ms)" if stage.seconds else ""
        titles.append(stage.name + took)
        code = _without_heading(stage)
        following = stages[number + 1] if number + 1 < len(stages) else None
        if following is None or _without_heading(following) != code:
            yield _Shown(", ".join(titles), _coloured(code))
            titles = []


def _without_heading(stage: Stage) -> str:
    """A trace without the line that names the pass, which stands above it."""
    first, _, rest = stage.code.strip().partition("\n")
    return rest.strip() if first == stage.name or first.startswith("# Constructed by") else f"{first}\n{rest}".strip()


def _coloured(code: str) -> Markup:
    rest = len(code) - SHOWN
    if rest > 0:
        code = code[:SHOWN] + f"\n# ... {rest} more characters: Region.traces has all of it"
    if len(code) > COLOURED:
        return Markup(html.escape(code))
    return Markup(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True, classprefix="p-")))


@functools.cache
def _colours() -> Markup:
    """pygments' styles for light and for dark."""
    light, dark = (
        str(HtmlFormatter(style=style, classprefix="p-").get_style_defs(".code"))
        for style in ("default", "github-dark")
    )
    own = [line for line in dark.split("\n") if ".p-" in line]
    plain = [line for line in light.split("\n") if ".p-" in line]
    return Markup("\n".join([*plain, "@media (prefers-color-scheme: dark) {", *own, "}"]))


# The picture: regions in order, as wide as they have operators, and the values that go between them


_HEIGHT, _TOP, _LEAST = 34, 6, 26


@dataclass
class _Box:
    region: RegionReport
    x: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class _Arrow:
    path: str
    title: str
    thickness: float


@dataclass
class _Picture:
    width: float
    height: float
    boxes: list[_Box]
    arrows: list[_Arrow]
    top: int = _TOP
    box_height: int = _HEIGHT


def _picture(graph: GraphReport) -> _Picture:
    regions = graph.regions
    total = max(graph.operators, 1)
    room = max(960.0, (_LEAST + 8.0) * len(regions))
    shares = [max(_LEAST, (room - 8 * len(regions)) * len(region.operators) / total) for region in regions]
    scale = (room - 8 * len(regions)) / sum(shares) if shares else 1.0
    boxes, x = [], 4.0
    for region, share in zip(regions, shares, strict=True):
        width = max(_LEAST, share * scale)
        boxes.append(_Box(region, x, width))
        x += width + 8
    arrows, depth = _arrows(graph, {box.region.name: box for box in boxes})
    # A curve reaches three quarters of the way to its handles.
    return _Picture(max(x, 40), _TOP + _HEIGHT + 0.75 * depth + 8, boxes, arrows)


def _arrows(graph: GraphReport, boxes: dict[str, _Box]) -> tuple[list[_Arrow], float]:
    between: dict[tuple[str, str], list[str]] = {}
    for edge in graph.edges:
        if edge.start in boxes and edge.end in boxes:
            shape = f": {edge.dtype}[{', '.join(map(str, edge.shape))}]" if edge.shape is not None else ""
            between.setdefault((edge.start, edge.end), []).append(f"{edge.value}{shape}")
    arrows, deepest, bottom = [], 0.0, _TOP + _HEIGHT
    for (start, end), values in between.items():
        a, b = boxes[start], boxes[end]
        depth = min(70.0, 14 + abs(b.middle - a.middle) / 12)
        deepest = max(deepest, depth)
        low = bottom + depth
        ends = f"{a.middle:.1f} {low:.1f}, {b.middle:.1f} {low:.1f}, {b.middle:.1f} {bottom + 4}"
        path = f"M {a.middle:.1f} {bottom} C {ends}"
        shown = values[:6] + ([f"and {len(values) - 6} more"] if len(values) > 6 else [])
        arrows.append(_Arrow(path, f"{start} to {end}\n" + "\n".join(shown), min(4.0, 0.8 + 0.4 * len(values))))
    return arrows, deepest
