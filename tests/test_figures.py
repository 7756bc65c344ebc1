"""Every figure of every study, and the page that holds them."""

import io
import math
import subprocess
import sys
from html.parser import HTMLParser

import made_up
import numpy as np
import pytest
from PIL import Image

from fedjax_nc.figures import (
    alignment,
    bias,
    canvas,
    collapse,
    cost,
    hessian,
    landscape,
    relations,
    report,
    spectrum,
)

STUDIES = {
    "hessian": hessian,
    "landscape": landscape,
    "collapse": collapse,
    "spectrum": spectrum,
    "alignment": alignment,
    "relations": relations,
    "bias": bias,
    "cost": cost,
}
LABELS = ("fedavg", "dot_regression | fd(beta=0.9)", "costs $5 and $6", "four", "five", "six")
PAPERS = ("FedAlign", "FedBlade", "FedETF", "FedDr+", "FedDW")


def runs_of(study, count, **options):
    return {LABELS[i]: getattr(made_up, study)(i, **options) for i in range(count)}


def without_some(value):
    """The same numbers with two fifths of every list missing, one as None and one as NaN."""
    if isinstance(value, dict):
        return {key: without_some(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[-1], float):
        gaps = {1: None, 3: math.nan}
        return [gaps.get(i % 5, item) for i, item in enumerate(value)]
    return [without_some(item) for item in value] if isinstance(value, list) else value


def without_scalars(value):
    """The same with all numbers missing that are neither in a list nor a place in a figure."""
    if isinstance(value, list):
        return [without_scalars(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = ("accuracy", "x", "y")
    return {
        key: None if isinstance(item, float) and key not in kept else without_scalars(item)
        for key, item in value.items()
    }


def words(figure):
    """All text of a figure: of its axes and its legends."""
    from matplotlib.text import Text

    return " ".join(text.get_text() for text in figure.findobj(Text))


def check_layout(figure):
    """Panels with their labels lie inside the figure and beside one another."""
    figure.draw_without_rendering()
    whole = figure.bbox
    places = [axis.get_tightbbox() for axis in figure.axes]
    for i, place in enumerate(places):
        assert place.x0 > -3 and place.y0 > -3, words(figure)
        assert place.x1 < whole.width + 3 and place.y1 < whole.height + 3, words(figure)
        for other in places[:i]:
            across = min(place.x1, other.x1) - max(place.x0, other.x0)
            down = min(place.y1, other.y1) - max(place.y0, other.y0)
            assert across < 6 or down < 6, words(figure)
    for axis in figure.axes:
        assert min(axis.bbox.width, axis.bbox.height) > 8, words(figure)


def named(axis, which):
    """Whether an axis, or one that shares its scale, has a label or names for its rows."""
    together = getattr(axis, f"get_shared_{which}_axes")().get_siblings(axis)
    ticks = [text.get_text() for other in together for text in other.get_yticklabels()]
    rows = which == "y" and any(text[:1].isalpha() for text in ticks)
    return rows or any(getattr(other, f"get_{which}label")() for other in together)


def check(drawn, labels):
    assert len({one.name for one in drawn}) == len(drawn)
    for one in drawn:
        check_layout(one.figure)
        for axis in one.figure.axes:
            if axis.get_label() != "<colorbar>":
                assert named(axis, "x") and named(axis, "y"), one.name
        text = words(one.figure).replace("\n", " ").replace(r"\$", "$")
        assert all(label in text for label in labels), one.name
        assert any(paper in one.caption for paper in PAPERS), one.name
        assert len(one.caption) > 100 and one.caption.endswith("."), one.name


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("study", STUDIES)
def test_says_what_it_shows(study, count):
    check(STUDIES[study].draw(runs_of(study, count)), LABELS[:count])


@pytest.mark.parametrize("less", [without_some, without_scalars])
@pytest.mark.parametrize("study", STUDIES)
def test_leaves_out_missing_numbers(study, less):
    runs = {label: less(numbers) for label, numbers in runs_of(study, 2).items()}
    for one in STUDIES[study].draw(runs):
        one.figure.draw_without_rendering()


@pytest.mark.parametrize("study", STUDIES)
def test_run_without_the_study_keeps_its_colour(study):
    runs = runs_of(study, 2)
    drawn = STUDIES[study].draw({LABELS[0]: {}, LABELS[1]: runs[LABELS[1]]})
    assert drawn
    check(drawn, LABELS[1:2])
    shades = canvas.colours({LABELS[0]: {}, LABELS[1]: {}})
    assert shades[LABELS[1]] == canvas.COLOURS[1]
    assert STUDIES[study].draw({LABELS[0]: {}}) == []


def test_parts_that_were_not_measured():
    bare = {**made_up.hessian(0), "clients": None}
    assert [d.name for d in hessian.draw({"a": bare})] == ["hessian_density", "hessian_sharpness"]
    bare = {**made_up.relations(0), "tsne": None, "distance": None, "correlation": None}
    assert [d.name for d in relations.draw({"a": bare})] == ["relations", "relations_norms"]
    for study in ("collapse", "spectrum", "alignment"):
        numbers = getattr(made_up, study)(0) | {"tracked": []}
        drawn = STUDIES[study].draw({"a": numbers})
        assert drawn and not any("rounds" in one.name for one in drawn)
    no_projector = {**made_up.spectrum(0), "projected": None}
    assert len(spectrum.draw({"a": no_projector})) == 3


def test_landscape_of_losses_far_apart():
    steep = made_up.landscape(0)
    loss = np.exp(20 * np.abs(np.linspace(-1, 1, 31)))[None] * np.ones((31, 1))
    loss[0, 0] = np.inf
    steep["planes"]["random"]["loss"] = loss.tolist()
    drawn = {one.name: one for one in landscape.draw({"a": steep})}
    assert "log10 of loss" in words(drawn["landscape_random_surface"].figure)
    assert "log10 of loss" not in words(drawn["landscape_clients_surface"].figure)


def test_many_clients_and_classes():
    runs = {"a": made_up.relations(0, classes=200, clients=100)}
    drawn = relations.draw(runs)
    check(drawn, ["a"])
    entries = [len(legend.get_texts()) for one in drawn for legend in one.figure.legends]
    assert entries == [2]
    check(bias.draw({"a": made_up.bias(0, clients=100, classes=200)}), ["a"])


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (100, 10), (5, 200), (100, 200)])
def test_labels(clients, classes):
    figure = bias.labels(made_up.bias(0, clients, classes)["counts"], "costs $5 and $6")
    assert figure.get_figwidth() <= 10 and figure.get_figheight() <= 10
    axis = figure.axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("client", "class")
    assert len(figure.legends[0].get_texts()) == 3
    figure.draw_without_rendering()


def test_labels_of_very_many_clients_show_some():
    counts = np.zeros((1_001, 3))
    counts[3::3] = [4, 0, 0]  # of the third client, the sixth, ...
    counts[1] = [0, 0, 4]
    axis = bias.labels(counts, "title").axes[0]
    assert axis.get_xlabel() == "client (334 of 1,001: one in 3)"
    drawn = axis.collections[0].get_offsets()
    assert len(drawn) == 333 and set(drawn[:, 1]) == {0}
    assert list(drawn[[0, -1], 0]) == [3, 999]


def test_labels_of_empty_clients():
    bias.labels([[0, 0], [0, 0]], "nothing").draw_without_rendering()


def test_encoded():
    first, again = (dict(canvas.encoded(cost.draw(runs_of("cost", 2)))) for _ in range(2))
    assert again["cost.svg"] == first["cost.svg"]
    with Image.open(io.BytesIO(first["cost.png"])) as image:
        assert image.width > 900


def test_show():
    shown = [canvas.show(x) for x in (None, math.nan, 0.0, 12345, 0.12345, 6240.4, 1e-7, -2.5e9)]
    assert shown == ["-", "-", "0", "12,345", "0.1235", "6,240", "1.000e-7", "-2.500e9"]
    assert canvas.show(6240.4, 123.0) == "6,240 ± 123"
    assert canvas.show(0.12345, 0.0067) == "0.1235 ± 0.0067"
    assert canvas.show(0.5, None) == "0.5000"
    assert canvas.show(math.inf) == "inf"


class Reader(HTMLParser):
    """Tags that are open, and every address."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.ids, self.text = [], [], set(), ""

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        given = dict(attrs)
        self.addresses += [given[name] for name in ("src", "href") if name in given]
        self.ids.add(given.get("id"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    for address in reader.addresses:
        assert address.startswith(("data:image/png;base64,", "#"))
        assert not address.startswith("#") or address[1:] in reader.ids
    return reader


def test_page_stands_alone_and_escapes():
    nasty = '<script>"&'
    drawn = [one._replace(caption=nasty) for one in cost.draw(runs_of("cost", 1))]
    table = report.Table([nasty, "b"], [[nasty, "1"]])
    sections = [
        report.Section(nasty, nasty, [table], drawn),
        report.Section("Second", "", [], hessian.draw(runs_of("hessian", 1))),
    ]
    html = report.page(nasty, {nasty: nasty}, sections)
    reader = read(html)
    assert "<script" not in html and "url(" not in html and "@import" not in html
    assert reader.text.count(nasty) == 10
    assert [f"Figure {i}." in reader.text for i in range(1, 7)] == [True] * 5 + [False]


@pytest.mark.slow
def test_page_of_six_large_runs_is_below_two_megabytes():
    sizes = {
        "relations": {"classes": 200, "clients": 100, "points": 2000},
        "bias": {"clients": 100, "classes": 200},
        "alignment": {"clients": 100},
        "hessian": {"clients": 100},
    }
    sections = []
    for study, module in STUDIES.items():
        runs = runs_of(study, 6, **sizes.get(study, {}))
        drawn = module.draw(runs)
        if study == "bias":
            drawn += [
                canvas.Drawn(f"labels{i}", bias.labels(run["counts"], "labels"), "")
                for i, run in enumerate(runs.values())
            ]
        sections.append(report.Section(study, "", [], drawn))
    html = report.page("six runs", {}, sections)
    read(html)
    assert len(html.encode()) < 2_000_000


def test_importing_needs_no_matplotlib():
    names = ", ".join(f"fedjax_nc.figures.{name}" for name in [*STUDIES, "report", "curves"])
    code = f"import sys, {names}\nprint('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_map_of_class_vectors_is_drawn():
    drawn = {d.name: d for d in bias.draw({"a": made_up.bias(0, clients=5, classes=10)})}
    assert list(drawn) == ["bias", "bias_map"]
    dots = drawn["bias_map"].figure.axes[0].collections[0]
    assert len(dots.get_offsets()) == 50 and len(np.unique(dots.get_facecolors(), axis=0)) == 10
