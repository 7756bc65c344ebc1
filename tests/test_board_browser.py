"""The board in a real browser: clicks, keys, a phone's width, the dark, and no request."""

import json
import re
import shutil
import statistics
import urllib.parse

import pytest
from scipy import stats
from test_board import HOSTILE, copy, small, written  # noqa: F401

selenium = pytest.importorskip("selenium", reason="pip install selenium")

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

PROGRAMS = [shutil.which("chromium"), shutil.which("chromedriver")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(PROGRAMS), reason="no chromium and chromedriver: apt-get install"),
]
METHODS, ALPHAS, SEEDS = ("fedavg", "fedprox", "moon"), (0.1, 1.0), (0, 1, 2)

# text of the page and of all of Bokeh's shadow trees
TEXTS = """
const found = [];
function look(root) {
  for (const e of root.querySelectorAll("*")) { if (e.shadowRoot) look(e.shadowRoot); }
  found.push(root === document ? document.body.innerText : [...root.children].map(
    (e) => e.localName === "style" ? "" : e.innerText).join(" "));
}
look(document);
return found.join(" ");
"""
TAGS = """
const found = [];
function look(root) {
  for (const e of root.querySelectorAll("*")) {
    found.push(e.localName);
    if (e.shadowRoot) look(e.shadowRoot);
  }
}
look(document);
return found;
"""
# of what has the focus, in shadow trees too
OUTLINE = """
let e = document.activeElement;
while (e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
return getComputedStyle(e).outlineStyle;
"""
# where a point of a drawn curve is on the screen
PLACE = """
const [line, point] = arguments;
const { xs, ys } = model("lines").data;
document.getElementById("curves").scrollIntoView({ block: "center" });
const view = [...Bokeh.index.roots].find(({ model: m }) => m.name === "curves");
const box = view.canvas_view.el.getBoundingClientRect();
const x = view.frame.x_scale.compute(xs[line][point]);
const y = view.frame.y_scale.compute(ys[line][point]);
return [box.left + x, box.top + y];
"""


@pytest.fixture(scope="module")
def runs(small, tmp_path_factory):  # noqa: F811
    """Three methods, two partitions, three seeds, and a method with a name that means harm."""
    folder = tmp_path_factory.mktemp("board")
    for i, method in enumerate(METHODS):
        for j, alpha in enumerate(ALPHAS):
            for seed in SEEDS:
                copy(
                    small,
                    folder / f"runs/{method}/{alpha}/seed{seed}",
                    rounds=20,
                    shift=0.1 * i - 0.05 * j + 0.01 * seed**2,
                    method=method,
                    data__alpha=alpha,
                    seed=seed,
                )
    copy(small, folder / "runs/harm", rounds=20, shift=0.5, method=HOSTILE, data__alpha=0.1)
    written(folder, folder / "runs")
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    options = ChromeOptions()
    options.binary_location = PROGRAMS[0]
    folder = tmp_path_factory.mktemp("chromium")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder}")
    options.add_argument("--window-size=1280,1400")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(PROGRAMS[1]))
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium, runs):
    """The page as it is when opened; afterwards nothing was asked for and nothing went wrong."""
    for kind in ("browser", "performance"):
        chromium.get_log(kind)  # of the test before
    chromium.get((runs / "board.html").as_uri())
    wait(chromium, lambda: "drawn" in told(chromium))
    yield chromium
    assert [entry for entry in chromium.get_log("browser") if entry["level"] != "INFO"] == []
    events = [json.loads(e["message"])["message"] for e in chromium.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert asked and all(re.match("file:|data:|blob:", url) for url in asked), asked


def wait(driver, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20).until(lambda _: condition())


def one(driver, css):
    return driver.find_element("css selector", css)


def told(driver):
    return one(driver, "#status").text


def column(driver, number):
    return [e.text for e in driver.find_elements("css selector", f"tbody td:nth-child({number})")]


def row(driver, method, alpha):
    for element in driver.find_elements("css selector", "tbody tr"):
        cells = element.find_elements("css selector", "td")
        if [cells[2].text, cells[3].text] == [method, alpha]:
            return element
    raise AssertionError((method, alpha))


def drawn(driver):
    return [e.text for e in driver.find_elements("css selector", "#drawn li > span:nth-of-type(2)")]


def source(driver, name):
    return driver.execute_script(f"return model({name!r}).data")


def summary(folder, method, alpha, seed):
    path = folder / f"runs/{method}/{alpha}/seed{seed}/summary.json"
    return 100 * json.loads(path.read_text())["global_accuracy"]


def test_filters(page):
    assert told(page) == "19 of 19 runs in 7 rows, 6 drawn"
    facet = one(page, "#facets details")
    facet.find_element("css selector", "summary").click()
    for box in facet.find_elements("css selector", "label"):
        if box.text.startswith("moon"):
            box.click()
    assert told(page).startswith("6 of 19 runs in 2 rows")
    assert set(column(page, 3)) == {"moon"}
    one(page, "#search").send_keys("0.1 SEED1")
    assert told(page).startswith("1 of 19 runs in 1 rows")
    one(page, "#form button[type=reset]").click()
    wait(page, lambda: told(page).startswith("19 of 19 runs in 7 rows"))


def test_groups(page, runs):
    one(page, "#clear").click()
    row(page, "fedprox", "0.1").click()
    details = one(page, "#groups").find_element("xpath", "..")
    details.find_element("css selector", "summary").click()
    by = {e.text: e for e in details.find_elements("css selector", "label")}
    assert list(by) == ["method", "data.alpha", "seed"]
    by["data.alpha"].click()
    assert told(page) == "19 of 19 runs in 4 rows, 1 drawn"  # what was drawn still is
    assert column(page, 4).count("0.1, 1") == 3
    by["seed"].click()
    assert told(page) == "19 of 19 runs in 10 rows, 3 drawn"
    by["data.alpha"].click()
    by["seed"].click()
    values = [summary(runs, "fedprox", "0.1", seed) for seed in SEEDS]
    half = stats.t.interval(0.95, 2, scale=stats.sem(values))[1]
    shown = row(page, "fedprox", "0.1").find_elements("css selector", "td.number")[1].text
    assert shown == f"{statistics.fmean(values):.1f} ± {half:.1f}"


def test_sorts(page):
    def means():
        return [float(text.split()[0]) for text in column(page, 7)]

    head = one(page, "th[data-column=global_accuracy]")
    assert head.get_attribute("aria-sort") == "descending"
    assert means() == sorted(means(), reverse=True)
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "ascending" and means() == sorted(means())
    one(page, "th[data-column=method] button").click()
    assert column(page, 3) == sorted(column(page, 3))
    one(page, "th[data-column='data.alpha'] button").click()
    assert column(page, 4) == sorted(column(page, 4), key=float)


def test_two_rows_are_drawn_over_each_other(page, runs):
    one(page, "#clear").click()
    assert drawn(page) == [] and one(page, "#nothing").is_displayed()
    row(page, "fedavg", "0.1").click()
    row(page, "moon", "1").click()
    assert drawn(page) == ["fedavg, data.alpha=0.1", "moon, data.alpha=1"]
    lines, bands = source(page, "lines"), source(page, "bands")
    assert len(lines["xs"]) == 2 and len(set(lines["colour"])) == 2
    assert lines["xs"][0] == [*range(1, 21)]
    values = [summary(runs, "fedavg", "0.1", seed) for seed in SEEDS]
    assert lines["ys"][0][-1] == pytest.approx(statistics.fmean(values), abs=0.01)
    half = stats.t.interval(0.95, 2, scale=stats.sem(values))[1]
    low, high = bands["ys"][0][19], bands["ys"][0][20]
    assert [low, high] == pytest.approx(
        [statistics.fmean(values) - half, statistics.fmean(values) + half], abs=0.05
    )
    row(page, "moon", "1").click()
    assert drawn(page) == ["fedavg, data.alpha=0.1"]
    one(page, "#metric").send_keys("global loss")
    wait(page, lambda: source(page, "lines")["ys"][0][0] == pytest.approx(2.0))


def test_links_lead_to_the_runs(page, runs):
    links = page.find_elements("css selector", "tbody td:nth-child(2) a")
    found = {urllib.parse.unquote(a.get_attribute("href")) for a in links}
    there = {f"{path.parent.as_uri()}/" for path in runs.rglob("config.yaml")}
    assert found == there and len(found) == 19


def test_clients_are_shown(page, runs):
    one(page, "#clear").click()
    row(page, "moon", "0.1").click()
    path = runs / "runs/moon/0.1/seed0/summary.json"
    found = json.loads(path.read_text())
    ends = source(page, "ends")
    assert ends["middle"] == pytest.approx([100 * found["client_accuracy"]], abs=0.01)
    assert ends["worst"] == pytest.approx([100 * found["client_accuracy_worst"]], abs=0.01)
    assert "worst tenth" in one(page, "#clients").get_attribute("aria-label")


def test_hovering_shows_a_value(page):
    for method, alpha in ((HOSTILE, "0.1"), ("fedavg", "0.1")):
        one(page, "#clear").click()
        row(page, method, alpha).click()
        wait(page, lambda: page.execute_script("return model('curves').inner_height > 0"))
        wait(page, lambda m=method: hovered(page, m, point=9))


def hovered(page, method, point):
    x, y = page.execute_script(PLACE, 0, point)
    mouse = ActionChains(page, duration=50)
    mouse.w3c_actions.pointer_action.move_to_location(int(x) + 30, int(y) + 30)
    mouse.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    mouse.perform()
    value = source(page, "points")["text"][point]
    texts = page.execute_script(TEXTS)
    assert "img" not in page.execute_script(TAGS)
    return f"{method}" in texts and re.search(rf"round:?\s*{point + 1}\s+value:?\s*{value}", texts)


def test_everything_by_keys(page):
    def focus():
        return page.switch_to.active_element

    def press(*keys):
        ActionChains(page).send_keys(*keys).perform()

    def tab_to(condition):
        for _ in range(80):
            press(Keys.TAB)
            assert page.execute_script(OUTLINE) != "none"
            if condition(focus()):
                return
        raise AssertionError("not reached")

    tab_to(lambda e: e.get_attribute("id") == "search")
    press("0.1")
    wait(page, lambda: told(page) == "10 of 19 runs in 4 rows, 3 drawn")
    tab_to(lambda e: e.tag_name == "summary" and e.text.startswith("seed"))
    press(Keys.ENTER, Keys.TAB, Keys.SPACE)  # opened, its first box, chosen
    wait(page, lambda: told(page).startswith("4 of 19 runs in 4 rows"))
    tab_to(lambda e: e.get_attribute("id") == "clear")
    press(Keys.ENTER)
    assert drawn(page) == []
    tab_to(lambda e: e.text == "data.alpha")
    press(Keys.SPACE)
    assert one(page, "th[data-column='data.alpha']").get_attribute("aria-sort") == "ascending"
    tab_to(lambda e: (e.get_attribute("aria-label") or "").startswith("draw fedavg"))
    press(Keys.SPACE)
    assert len(drawn(page)) == 1 and focus().get_attribute("aria-pressed") == "true"
    press(Keys.ENTER)
    assert drawn(page) == [] and focus().get_attribute("aria-pressed") == "false"
    press(Keys.SPACE)
    last = one(page, "#drawn output").text
    page.execute_script("document.getElementById('metric').focus()")
    tab_to(lambda e: e.get_attribute("id") == "slider")
    press(Keys.HOME)
    assert one(page, "#round").text == "1" and one(page, "#drawn output").text != last
    press(Keys.ARROW_RIGHT)
    assert one(page, "#slider").get_attribute("aria-valuetext") == "round 2"


def test_a_phone(page):
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.refresh()
        wait(page, lambda: "drawn" in told(page))
        wide = "return [innerWidth, document.documentElement.scrollWidth]"
        assert page.execute_script(wide) == [360, 360]
        page.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
        assert page.execute_script(wide) == [360, 360]
        canvas = "return document.querySelector('#curves').firstElementChild.offsetWidth"
        wait(page, lambda: 280 < page.execute_script(canvas) <= 340)
        button = one(page, "tbody button")
        before = len(drawn(page))
        button.click()
        assert len(drawn(page)) == before - 1
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def brightness(colour):
    return statistics.fmean(int(part) for part in re.findall(r"\d+", colour)[:3])


def test_the_dark(page):
    def seen(scheme):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        style = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        text, back = page.execute_script(style)
        axis = "return model('curves').left[0].major_label_text_color"
        wait(
            page,
            lambda: page.execute_script(axis) == page.execute_script("return colourOf('--text')"),
        )
        return brightness(text), brightness(back), source(page, "lines")["colour"]

    text, back, colours = seen("dark")
    assert text > 200 and back < 50
    day_text, day_back, day_colours = seen("light")
    assert day_text < 50 and day_back == 255
    assert not set(colours) & set(day_colours)
