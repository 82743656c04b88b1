"""Reports in Chromium: they open without errors and can be searched, clicked, zoomed, read by keyboard, in the dark, on
a phone and on paper."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sardonyx.report import Finding, Measurement, ReportData, Table, write_report
from sardonyx.report.collect.drawing import drawn
from sardonyx.report.collect.families import family_of
from sardonyx.report.page import page
from sardonyx.report.records import GraphNode, Layer, Machine
from tests.report.browser import Browser, why_not
from tests.report.test_page import HOSTILE, hostile_model

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

ALERTS = "window.alerted = []; window.alert = (text) => window.alerted.push(text);"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    made.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": ALERTS})
    yield made
    made.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    path = tmp_path_factory.mktemp("digits") / "report.html"
    write_report(
        root / "demo" / "digits.onnx",
        path,
        measurements=[Measurement(f"engine {i}", "batch 1", 0.01 * i, 0.009 * i, 0.011 * i) for i in (1, 2)],
        verdict="engine 1 is faster",
        tables=[Table("Accuracy", ("model", "accuracy"), (("float", 0.98), ("int8", 0.97), ("int4", 0.99)))],
        findings=[Finding("warning", "a finding", "its evidence", "its fix")],
    )
    return path


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about a graph of 2,000 nodes in 200 blocks, with edges that skip many layers."""
    operators = (
        "MatMul",
        "Add",
        "Softmax",
        "Transpose",
        "Mul",
        "LayerNormalization",
        "Reshape",
        "Relu",
        "Gather",
        "Erf",
    )
    nodes = [
        GraphNode(
            f"/block.{i // 10}/{op}", op, family_of(op), kernel="fused_loop" if i % 3 else "", seconds=1e-6 * (i % 7)
        )
        for i in range(2000)
        for op in [operators[i % 10]]
    ]
    edges = [(i, i + 1, "f32[1, 128, 768]") for i in range(1999)]
    edges += [(10 * b, 10 * b + 9, "f32") for b in range(200)] + [(0, 10 * b + 5, "mask") for b in range(1, 200)]
    graph = drawn("Kernels", "Many nodes.", nodes, edges)
    layers = [
        Layer(n.label, n.kernel, n.family, n.seconds or 1e-9, 1e6, 1e4, 1e-7, "memory", i) for i, n in enumerate(nodes)
    ]
    data = ReportData(
        "deep.onnx", "now", (("nodes", "2000"),), (("processor", "one"),), (graph, graph), tuple(layers), 0.002,
        Machine(1e12, 1e10, 2), (),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("deep") / "report.html"
    path.write_text(page(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_without_errors_and_fits(browser: Browser, digits: Path, width: int, scheme: str) -> None:
    browser.open(digits, width=width, scheme=scheme)
    assert browser.errors() == []
    titles = browser.script("return [...document.querySelectorAll('section h2')].map((h) => h.textContent)")
    assert titles[:4] == ["Summary", "Findings", "Graph", "Time by layer"] and "Benchmark" in titles
    assert browser.script("return document.documentElement.scrollWidth") <= width
    background = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 100) == (scheme == "dark")
    assert browser.script("return performance.getEntriesByType('resource').length") == 0


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a table that fits on a desk and not on a phone."""
    columns = tuple(f"a long heading {i}" for i in range(6))
    table = Table("Many figures", columns, (tuple(f"figure{i}" for i in range(6)),))
    graph = drawn("Kernels", "One node.", [GraphNode("add", "Add", family_of("Add"))], [])
    data = ReportData("m.onnx", "now", (), (), (graph,), (), 1e-3, Machine(1e12, 1e10, 2), (), tables=(table,))
    path = tmp_path_factory.mktemp("wide") / "report.html"
    path.write_text(page(data), encoding="utf-8")
    return path


SHADES = """return ['::before', '::after'].map((end) =>
    getComputedStyle(document.querySelector('#section-tables .scrollable'), end).opacity === '1')"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_that_scroll_sideways_show_it(browser: Browser, wide: Path, scheme: str) -> None:
    browser.open(wide, width=390, scheme=scheme)
    browser.until(lambda: browser.script(SHADES) == [False, True])
    box = browser.find("#section-tables .scroll")
    assert (box.get_attribute("role"), box.get_attribute("aria-label")) == ("region", "Many figures, scrolls sideways")
    browser.script("arguments[0].focus({focusVisible: true})", box)
    assert browser.script("return document.activeElement === arguments[0]", box)
    browser.press("\ue014")  # the right arrow
    browser.until(lambda: browser.script("return arguments[0].scrollLeft > 1", box))
    browser.until(lambda: browser.script(SHADES) == [True, True])
    browser.script("arguments[0].scrollLeft = arguments[0].scrollWidth", box)
    browser.until(lambda: browser.script(SHADES) == [True, False])


def test_tables_that_fit_show_no_sign_of_scrolling(browser: Browser, wide: Path) -> None:
    browser.open(wide, width=1280)
    assert browser.script(SHADES) == [False, False]
    assert browser.find("#section-tables .scroll").get_attribute("tabindex") is None
    browser.script("document.querySelector('#section-tables .scroll').style.width = '200px'")
    browser.until(lambda: browser.script(SHADES) == [False, True])


def test_the_switch_changes_the_colours_and_is_remembered(browser: Browser, digits: Path) -> None:
    browser.open(digits, scheme="light")
    for theme, is_dark in (("Light", False), ("Dark", True)):
        browser.find("#theme").click()
        assert theme in browser.text("#theme")
        assert browser.script("return document.documentElement.hasAttribute('data-dark')") == is_dark
    browser.driver.refresh()
    assert browser.script("return document.documentElement.hasAttribute('data-dark')")


def test_search_finds_nodes_and_selects_them(browser: Browser, digits: Path) -> None:
    browser.open(digits)
    browser.find("input[type=search]").send_keys("conv relu")
    assert browser.text(".results").startswith("3 found")
    browser.find(".results button").click()
    assert browser.text(".details h3") == "Conv + Relu" and "f32[" in browser.text(".details")
    browser.find("input[type=search]").send_keys(" nothing of this kind")
    assert browser.text(".results") == "Nothing found"


def test_a_click_shows_the_node_under_it(browser: Browser, digits: Path) -> None:
    browser.open(digits)
    nodes = browser.data()["graphs"][-1]["nodes"]
    for i in (0, 2):
        browser.click_node(i)
        browser.until(lambda i=i: browser.canvas("selected") == str(i))  # type: ignore[misc]
        assert browser.text(".details h3") == nodes[i]["op_type"] and nodes[i]["outputs"][0] in browser.text(".details")


def test_a_node_of_the_file_leads_to_its_kernel(browser: Browser, digits: Path) -> None:
    browser.open(digits)
    browser.find("#tab-0").click()
    browser.find("input[type=search]").send_keys("conv0")
    browser.find(".results button").click()
    jumps = [b for b in browser.driver.find_elements("css selector", ".details button") if "conv_nhwc" in b.text]
    jumps[0].click()
    assert browser.find("#tab-2").get_attribute("aria-selected") == "true"
    assert "Computes" in browser.text(".details")


def test_buttons_wheel_and_keys_zoom(browser: Browser, digits: Path) -> None:
    browser.open(digits)
    before = float(browser.canvas("scale"))
    browser.find("[aria-label='Zoom in']").click()
    browser.until(lambda: float(browser.canvas("scale")) > before)
    browser.find("[aria-label='Show everything']").click()
    browser.until(lambda: float(browser.canvas("scale")) <= 1.25)
    whole = float(browser.canvas("scale"))
    browser.script("document.getElementById('graph').focus()")
    browser.press("+")
    browser.until(lambda: float(browser.canvas("scale")) > whole)
    near = float(browser.canvas("scale"))
    browser.script(
        "document.getElementById('graph').dispatchEvent(new WheelEvent('wheel', {deltaY: 300, cancelable: true}))"
    )
    browser.until(lambda: float(browser.canvas("scale")) < near)


def test_a_drag_moves_the_graph_and_selects_nothing(browser: Browser, digits: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(digits)
    browser.script("document.getElementById('graph').scrollIntoView({block: 'center', behavior: 'instant'})")
    before = float(browser.canvas("x"))
    ActionChains(browser.driver).drag_and_drop_by_offset(browser.find("#graph"), 60, 30).perform()
    browser.until(lambda: abs(float(browser.canvas("x")) - before - 60) < 2)
    assert browser.canvas("selected") == ""


def test_the_graph_by_keyboard(browser: Browser, digits: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(digits)
    for _ in range(40):
        if browser.script("return document.activeElement.id") == "graph":
            break
        browser.press(Keys.TAB)
    assert browser.script("return document.activeElement.id") == "graph", "the graph cannot be reached with the tab key"
    browser.press(Keys.ARROW_DOWN)
    browser.until(lambda: browser.canvas("selected") != "")
    first = int(browser.canvas("selected"))
    edges = browser.data()["graphs"][-1]["edges"]
    browser.press(Keys.ARROW_DOWN)
    browser.until(lambda: browser.canvas("selected") != str(first))
    assert [first, int(browser.canvas("selected"))] in [edge[:2] for edge in edges]
    browser.press(Keys.ARROW_UP)
    browser.until(lambda: browser.canvas("selected") == str(first))
    browser.press(Keys.ESCAPE)
    browser.until(lambda: browser.canvas("selected") == "")
    browser.script("document.getElementById('tab-2').focus()")
    browser.press(Keys.ARROW_RIGHT)
    assert browser.script("return document.activeElement.id") == "tab-0"


def test_tables_sort_and_layers_open_the_graph(browser: Browser, digits: Path) -> None:
    browser.open(digits)
    sort = "document.querySelectorAll('#section-tables th button')[1].click()"
    column = "return [...document.querySelectorAll('#section-tables td:last-child')].map((c) => c.textContent)"
    browser.script(sort)
    assert browser.script(column) == ["0.97", "0.98", "0.99"]
    browser.script(sort)
    assert browser.script(column) == ["0.99", "0.98", "0.97"]
    browser.script("document.querySelector('.bar').click()")
    browser.until(lambda: browser.canvas("selected") != "")
    slowest = max(browser.data()["layers"], key=lambda layer: layer["seconds"])
    assert browser.canvas("selected") == str(slowest["node"])


def test_a_long_table_is_cut_until_all_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    rows = tuple((f"/block/layer.{i}/a/long/name", 10.0**-i) for i in range(30))
    path = tmp_path / "long.html"
    write_report(hostile_model("plain"), path, tables=[Table("Errors", ("layer", "error"), rows)], diagnose=False)
    browser.open(path, width=390)
    count = "return document.querySelectorAll('#section-tables tbody tr').length"
    assert browser.script(count) == 20
    assert browser.script("return document.documentElement.scrollWidth") <= 390
    browser.script("document.querySelector('#section-tables > button').click()")
    assert browser.script(count) == 30 and "1.00e-29" in browser.text("#section-tables")


def test_two_thousand_nodes(browser: Browser, deep: Path) -> None:
    browser.open(deep)
    assert browser.errors() == []
    browser.find("input[type=search]").send_keys("block.150/softmax")
    assert browser.text(".results").startswith("1 found")
    browser.find(".results button").click()
    browser.until(lambda: browser.canvas("selected") == "1502")
    browser.find("[aria-label='Show everything']").click()
    browser.until(lambda: float(browser.canvas("scale")) < 0.05)
    pixels = (
        "const c = document.getElementById('graph'), image = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
    )
    pixels += "return new Set(image.data).size"
    assert browser.script(pixels) > 20, "nothing is drawn"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_not_run(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.html"
    write_report(hostile_model(name), path, title=name, diagnose=False)
    browser.open(path)
    browser.press("")
    assert browser.errors() == [] and browser.script("return window.alerted") == []
    assert browser.text("h1") == " ".join(name.replace("\u2028", "\ufffd").replace("\u2029", "\ufffd").split())
    browser.find("input[type=search]").send_keys("relu")
    browser.find(".results button").click()
    assert browser.script("return window.alerted") == [] and browser.script("return document.images.length") == 0


def test_a_script_that_is_not_the_page_s_own_does_not_run(browser: Browser, digits: Path, tmp_path: Path) -> None:
    """The page's policy holds even if markup came in."""
    changed = tmp_path / "changed.html"
    changed.write_text(digits.read_text("utf-8").replace("</main>", "<script>alert(1)</script></main>"), "utf-8")
    browser.open(changed)
    assert browser.script("return window.alerted") == [] and any("Content Security" in e for e in browser.errors())


def test_a_page_prints(browser: Browser, digits: Path) -> None:
    browser.open(digits, scheme="dark")
    printed = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not browser.find("nav").is_displayed() and browser.find("#section-layers").is_displayed()


def test_on_paper_the_graph_is_light_and_plots_fit(browser: Browser, digits: Path) -> None:
    browser.open(digits, scheme="dark")
    darkness = """
        const canvas = document.getElementById("graph");
        const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const pixels = Array.from({ length: all.length / 4 }, (_, i) => all.slice(4 * i, 4 * i + 4));
        return pixels.filter((pixel) => pixel[3] === 255 && pixel[0] + pixel[1] + pixel[2] < 200).length;
    """
    before = browser.script(darkness)
    printed = browser.script(f"dispatchEvent(new Event('beforeprint')); {darkness}")
    browser.script("dispatchEvent(new Event('afterprint'))")
    assert printed < before / 4
    assert browser.script("return [...document.querySelectorAll('svg')].every((plot) => plot.hasAttribute('viewBox'))")


def test_the_top_of_a_slanted_graph_is_shown(browser: Browser, tmp_path: Path) -> None:
    """Its first boxes are far from the middle of all."""
    nodes = [GraphNode(f"n{i}", "Relu", family_of("Relu"), kernel="k") for i in range(40)]
    chain = drawn("Kernels", "A chain.", nodes, [(i, i + 1, "f32") for i in range(39)])
    slanted = replace(chain, x=tuple(-60.0 * i for i in range(40)))
    data = ReportData("s.onnx", "now", (), (), (slanted,), (), 0.002, Machine(1e12, 1e10, 2), ())
    path = tmp_path / "slanted.html"
    path.write_text(page(data), encoding="utf-8")
    browser.open(path)
    scale, left = float(browser.canvas("scale")), float(browser.canvas("x"))
    assert 0 <= left + scale * slanted.x[0] <= browser.script("return document.getElementById('graph').clientWidth")
