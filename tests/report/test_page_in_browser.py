"""The page in a real browser: it opens, is searched, is used by keyboard and on a phone, and asks nobody for anything.

`make test-browser` runs these, with Debian's Chromium.
"""

import dataclasses
import shutil
import time

import pytest

from tests.report.test_page import HOSTILE, hostile
from tests.report.test_text import explanation
from thunder_fx.report import page
from thunder_fx.report.model import Edge, Operator, Stage

playwright = pytest.importorskip("playwright.sync_api", reason="the browser extra is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Trace:
    def __init__(self, lines):
        self.lines = lines

    def __str__(self):
        return "\n".join(f"  t{n} = torch.sin(t{n - 1})  # t{n}: 'cpu f32[4, 4]'" for n in range(self.lines))


def with_traces(made, lines=30):
    """The same with traces, values between regions, and lines of a program."""
    graphs = []
    for graph in made.graphs:
        regions = [
            dataclasses.replace(
                region,
                operators=tuple(
                    Operator(f"{region.name}_n{i}", f"op_{i}", f"model.py:{i}, in forward")
                    for i in range(len(region.operators))
                ),
                forward=(Stage("Tracing", None, Trace(lines)), Stage("Dead Code Elimination", 0.001, Trace(lines + 1))),
            )
            for region in graph.regions
        ]
        pairs = zip(graph.regions, graph.regions[1:], strict=False)
        edges = [Edge("x", a.name, b.name, "float32", (4, 4)) for a, b in pairs]
        graphs.append(dataclasses.replace(graph, regions=tuple(regions), edges=tuple(edges)))
    return dataclasses.replace(made, graphs=tuple(graphs))


@pytest.fixture
def opened(browser, tmp_path):
    """Opens an explanation's page; whatever the page asks for, and says on its console, is kept."""
    contexts = []

    def open_page(made, **options):
        path = tmp_path / "page.html"
        made.to_html(path)
        context = browser.new_context(**options)
        contexts.append(context)
        tab = context.new_page()
        tab.asked, tab.said = [], []
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.on("dialog", lambda dialog: (tab.said.append(dialog.message), dialog.dismiss()))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()


def test_a_region_of_the_picture_opens_it(opened):
    """A click on it shows its operators, their lines and its traces; nothing is asked of anybody."""
    tab = opened(with_traces(explanation()))
    region = tab.locator("details#g0-thunder_1")
    assert not region.get_by_text("model.py:2, in forward").is_visible()
    tab.locator('svg a[href="#g0-thunder_1"] rect').click()
    assert region.get_by_text("model.py:2, in forward").is_visible()
    # The final trace of a small region is open, the others are not.
    assert "torch.sin(t29)" in region.locator("pre.code").last.inner_text()
    assert not region.locator("pre.code").first.is_visible()
    region.get_by_text("Tracing").click()
    assert "torch.sin(t28)" in region.locator("pre.code").first.inner_text()
    assert tab.locator("path.arrow").count() == 2
    assert [url for url in tab.asked if not url.startswith("file:")] == []
    assert tab.said == []


def test_search(opened):
    """What is typed leaves the rows that have it, and says how many; Escape brings all back."""
    tab = opened(with_traces(explanation(regions=3, operators=20)))
    tab.keyboard.press("/")
    tab.keyboard.type("thunder_1_n7")
    tab.locator("#found", has_text="1 row").wait_for()
    assert tab.locator("tr[data-row]:visible").count() == 1
    assert tab.locator("details.region:visible").count() == 1
    tab.keyboard.press("Escape")
    assert tab.locator("details.region:visible").count() == 3
    assert tab.locator("#found").inner_text() == ""


def test_search_finds_regions_by_their_heading_and_a_click_ends_it(opened):
    """All rows of such a region stay; a region that the search hides is opened by its place in the picture."""
    tab = opened(with_traces(explanation(regions=3, operators=20)))
    tab.locator("#search").fill("run by eager")
    tab.locator("#found", has_text="20 rows").wait_for()
    assert tab.locator("details.region:visible").count() == 1
    tab.locator('svg a[href="#g0-thunder_0"] rect').click()
    assert tab.locator("#search").input_value() == ""
    assert tab.locator("details#g0-thunder_0").get_by_text("model.py:2, in forward").is_visible()


def test_keyboard_alone(opened):
    """Tab reaches the search, each region of the picture and its details; Enter opens one and goes there."""
    tab = opened(with_traces(explanation()))
    names = []
    for _ in range(6):
        tab.keyboard.press("Tab")
        names.append(tab.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id"))
    assert names[0] == "Search operators, lines and reasons"
    assert names[2:5] == [
        "thunder_0, 4 operators, run by thunder",
        "thunder_1, 4 operators, run by inductor",
        "thunder_2, 4 operators, run by eager",
    ]
    tab.locator('svg a[href="#g0-thunder_2"]').focus()
    tab.keyboard.press("Enter")
    assert tab.locator("details#g0-thunder_2").get_attribute("open") is not None
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    tab.keyboard.press("Enter")
    assert tab.locator("details#g0-thunder_2").get_attribute("open") is None


def test_five_thousand_operators(opened):
    """Opened, searched and unfolded, each within two seconds."""
    made = with_traces(explanation(regions=10, operators=500), lines=2000)
    seconds = {}
    start = time.perf_counter()
    tab = opened(made)
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    loaded = tab.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    seconds["open"] = max(loaded / 1000, 0)
    assert time.perf_counter() - start < 60

    def search(text, found):
        tab.locator("#search").fill(text)
        tab.wait_for_function("(text) => document.getElementById('found').textContent === text", arg=found)

    def unfold():
        tab.locator('svg a[href="#g0-thunder_5"]').focus()
        tab.keyboard.press("Enter")

    acts = {"search": lambda: search("op_499", "10 rows"), "back": lambda: search("", ""), "unfold": unfold}
    for name, act in acts.items():
        start = time.perf_counter()
        act()
        tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seconds[name] = time.perf_counter() - start
    assert max(seconds.values()) <= 2, seconds
    assert tab.locator("details#g0-thunder_5 tr[data-row]").count() == 500


def test_what_is_the_users_is_text(opened):
    """No script of theirs runs, and they see what they wrote."""
    tab = opened(hostile())
    tab.wait_for_timeout(200)
    assert tab.said == []
    assert [url for url in tab.asked if not url.startswith("file:")] == []
    assert HOSTILE in tab.locator("h1").inner_text()
    assert tab.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(opened, scheme):
    """Text, and what stands on the regions' colours, is far enough from what is behind it (WCAG AA: 4.5)."""
    tab = opened(with_traces(explanation()), color_scheme=scheme)
    ratio = tab.evaluate(
        """() => {
            const number = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
                .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const contrast = (a, b) => {
                const [x, y] = [light(number(a)), light(number(b))].sort((p, q) => q - p);
                return (x + 0.05) / (y + 0.05);
            };
            const back = getComputedStyle(document.body).backgroundColor;
            const found = [contrast(getComputedStyle(document.body).color, back)];
            found.push(contrast(getComputedStyle(document.querySelector("dt")).color, back));
            for (const chip of document.querySelectorAll(".chip")) {
                const style = getComputedStyle(chip);
                found.push(contrast(style.color, style.backgroundColor));
            }
            return Math.min(...found);
        }"""
    )
    assert ratio >= 4.5
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(255, 255, 255)") is (scheme == "light")


def test_on_a_phone_nothing_is_wider_than_it(opened):
    """The picture and tables scroll by themselves; the page does not."""
    tab = opened(with_traces(explanation(width=20, regions=30)), viewport={"width": 390, "height": 800})
    tab.locator('svg a[href="#g0-thunder_0"]').focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_on_paper_regions_are_open(opened):
    """Operators are printed, and the search is not."""
    tab = opened(with_traces(explanation()))
    tab.emulate_media(media="print")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details.region[open]").count() == 3
    assert not tab.locator("#search").is_visible()
    assert len(tab.pdf()) > 10_000


def test_a_place_in_the_page_can_be_sent(browser, tmp_path):
    """An address with a region's name opens it."""
    with_traces(explanation()).to_html(tmp_path / "page.html")
    tab = browser.new_page()
    tab.goto((tmp_path / "page.html").as_uri() + "#g0-thunder_1")
    assert tab.locator("details#g0-thunder_1").get_attribute("open") is not None
    tab.close()


def test_a_notebooks_frame_works(browser):
    """The page in its frame has its script."""
    tab = browser.new_page()
    tab.set_content(page.for_notebook(with_traces(explanation())))
    frame = tab.frame_locator("iframe")
    frame.locator('svg a[href="#g0-thunder_1"]').focus()
    tab.keyboard.press("Enter")
    assert frame.locator("details#g0-thunder_1").get_attribute("open") is not None
    tab.close()
