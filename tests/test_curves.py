"""Curves of runs over rounds, and figures that leave the user's backend alone."""

import subprocess
import sys

import numpy as np
import pytest
from test_figures import check_layout

from fedjax_nc.figures import curves


def rounds_of(seed, rounds=6, every=2):
    """Records of a run in which every second round is tested."""
    random, rows = np.random.default_rng(seed), []
    for n in range(1, rounds + 1):
        rows.append({"round": n, "loss": 2.0 / n})
        if n % every == 0:
            accuracy = float(random.uniform(0.2, 0.8))
            rows[-1] |= {
                "global_accuracy": accuracy,
                "global_loss": 1.0 / n,
                "client_accuracy": accuracy,
                "client_accuracy_std": 0.1,
            }
    return rows


def bands_of(axis):
    """Lower and upper ends of every band, at every round."""
    found = []
    for band in axis.collections:
        points = band.get_paths()[0].vertices
        rounds = sorted(set(points[:, 0]))
        found.append([[f(points[points[:, 0] == n, 1]) for n in rounds] for f in (min, max)])
    return found


def test_curves_are_means_over_seeds_in_a_band_of_the_samples_deviation():
    seeds = [rounds_of(0), rounds_of(1), rounds_of(2, rounds=5)]  # the last was stopped early
    figure = curves.together({"three $": seeds, "one": [rounds_of(3)]}, title="costs $5")
    (axis,) = figure.axes
    values = 100 * np.array([[row["global_accuracy"] for row in s[1:4:2]] for s in seeds])
    three, one = axis.lines
    np.testing.assert_array_equal(three.get_xdata(), [2, 4])
    np.testing.assert_allclose(three.get_ydata(), values.mean(0))
    np.testing.assert_array_equal(one.get_xdata(), [2, 4, 6])
    std = np.sqrt(((values - values.mean(0)) ** 2).sum(0) / 2)
    ((low, high),) = bands_of(axis)  # a single seed has none
    np.testing.assert_allclose([low, high], [values.mean(0) - std, values.mean(0) + std])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [r"three \$ (3 seeds)", "one"]
    check_layout(figure)


def test_curves_from_arrays_are_the_same():
    seeds = [rounds_of(0), rounds_of(1)]
    values = np.array(
        [[row["global_accuracy"] for row in s if "global_loss" in row] for s in seeds]
    )
    figures = [
        curves.together({"a": seeds}, title="t"),
        curves.accuracy({"a": ([2, 4, 6], values)}, "t"),
    ]
    left, right = (figure.axes[0] for figure in figures)
    np.testing.assert_array_equal(left.lines[0].get_xydata(), right.lines[0].get_xydata())
    np.testing.assert_array_equal(bands_of(left), bands_of(right))


@pytest.mark.parametrize("datasets", [1, 2, 3])
def test_fourteen_curves_can_be_told_apart(datasets):
    labels = [f"a method with many hyperparameters, number {i}" for i in range(14)]
    panels = {label: f"dataset {i % datasets}" for i, label in enumerate(labels)}
    figure = curves.together({k: [rounds_of(0), rounds_of(1)] for k in labels}, panels=panels)
    assert [axis.get_title() for axis in figure.axes] == [f"dataset {i}" for i in range(datasets)]
    for i, axis in enumerate(figure.axes):
        assert len(axis.lines) == len(labels[i::datasets])
    lines = [line for axis in figure.axes for line in axis.lines]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 14
    check_layout(figure)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 14
    top = legend.get_window_extent().y1
    assert all(axis.get_tightbbox().y0 >= top - 3 for axis in figure.axes)  # it hides no curve
    assert all(axis.bbox.height > 150 for axis in figure.axes)


def test_one_run_shows_the_test_set_in_front():
    figure = curves.one_run(rounds_of(0), "costs $5 and $6")
    left, right = figure.axes
    clients, test = left.lines
    assert test.get_label() == "global test set" and test.get_linewidth() < clients.get_linewidth()
    cross_entropy, training = right.lines
    assert test.get_color() == cross_entropy.get_color() != training.get_color()
    check_layout(figure)


def test_finetuning_begins_with_the_global_model():
    figure = curves.finetuning(0.25, [0.5, 0.75], title="fedetf on digits")
    (axis,) = figure.axes
    (line,) = axis.lines
    assert [*line.get_xdata()] == [0, 1, 2] and [*line.get_ydata()] == [25, 50, 75]
    check_layout(figure)


BACKEND = """
import sys, matplotlib
matplotlib.use("svg")
matplotlib.rcParams["lines.linewidth"] = 7
before = dict(matplotlib.rcParams)
sys.path.insert(0, "tests")
import made_up, test_curves
from fedjax_nc.figures import bias, canvas, cost, curves
folder = __import__("pathlib").Path(sys.argv[1])
rows = test_curves.rounds_of(0)
curves.one_run(rows, "title").savefig(folder / "curves.png")
curves.together({"a": [rows]}).savefig(folder / "together.png")
bias.labels([[1, 2], [3, 4]], "title").savefig(folder / "labels.png")
for name, content in canvas.encoded(cost.draw({"a": made_up.cost(0)})):
    (folder / name).write_bytes(content)
assert matplotlib.get_backend() == "svg"
assert dict(matplotlib.rcParams) == before
assert "matplotlib.pyplot" not in sys.modules
figure = curves.together({"a": [rows]})
assert figure._repr_png_().startswith(b"\\x89PNG")
"""


def test_backend_and_settings_stay_the_users(tmp_path):
    """A notebook's inline plots are not broken by ours, and it shows our figures by itself."""
    subprocess.run([sys.executable, "-c", BACKEND, str(tmp_path)], check=True)
    assert {p.name for p in tmp_path.iterdir()} == {
        "curves.png",
        "together.png",
        "labels.png",
        "cost.png",
        "cost.svg",
    }
