"""Tables of papers: marks, tests, forms, what is missing, differences of two; some really run."""

import csv
import io
import json
import math
import shutil
import subprocess

import matplotlib.pyplot as plt
import pytest

from fedjax_nc import config, errors, paper_forms, paper_table, recipes
from fedjax_nc.cli import flags, main, run, table
from fedjax_nc.figures import curves
from fedjax_nc.figures import ranks as figures
from fedjax_nc.io import rundir
from fedjax_nc.paper_table import Run

# in per cent, of the seeds 0, 1 and 2
OURS = {
    "fedavg": {"Dir(0.05)": (50, 52, 51), "Dir(0.1)": (60, 61, 59), "Dir(0.5)": (70, 70, 71)},
    "fedetf": {"Dir(0.05)": (60, 62.1, 61), "Dir(0.1)": (65, 64, 66), "Dir(0.5)": (69, 71, 70)},
    "fedblade": {"Dir(0.05)": (55, 54, 50), "Dir(0.1)": (58, 62, 60)},
}


def runs_of(cells, ours=OURS):
    """What finished runs would leave, of the seeds whose numbers are given."""
    found = {}
    for cell in cells:
        values = ours.get(cell.row, {}).get(cell.column.removeprefix("cifar10, "), ())
        configs = [config.RunConfig(method=cell.spec, seed=seed) for seed in range(3)]
        summaries = [
            {"seed": seed, "global_accuracy": value / 100, "averaged_rounds": 10}
            for seed, value in enumerate(values)
        ]
        found[cell.argv] = Run(configs, summaries=summaries)
    return found


def chosen(*rows):
    columns = [f"cifar10, {name}" for name in OURS["fedavg"]]
    recipe = recipes.get("fedblade/T1")
    only = [f"{row} @ {column}" for row in rows for column in columns]
    return recipe, recipe.cells("full", only=only)


@pytest.fixture
def made():
    recipe, cells = chosen(*OURS)
    return paper_table.make(recipe, cells, runs=runs_of(cells))


def entry_of(made, row, column):
    (one,) = [e for e in made["cells"] if (e["row"], e["column"]) == (row, f"cifar10, {column}")]
    return one


def test_a_cell_has_ours_the_papers_and_the_difference(made):
    one = entry_of(made, "fedavg", "Dir(0.1)")
    assert (one["n"], one["mean"], one["sd"]) == (3, pytest.approx(60), pytest.approx(1))
    assert one["high95"] - 60 == pytest.approx(4.30265 / 3**0.5, abs=1e-5)
    assert one["paper"] == 69.26 and one["difference"] == pytest.approx(60 - 69.26)
    assert (one["lr"], one["lr_from"], one["last_rounds"]) == (0.01, "protocol", 10)


def test_best_and_second_of_every_column(made):
    places = {
        column: {row: entry_of(made, row, column)["place"] for row in OURS}
        for column in OURS["fedavg"]
    }
    assert places["Dir(0.05)"] == {"fedavg": None, "fedetf": 1, "fedblade": 2}
    assert places["Dir(0.1)"] == {"fedavg": 2, "fedetf": 1, "fedblade": 2}  # 60.0 twice
    assert places["Dir(0.5)"] == {"fedavg": 1, "fedetf": 2, "fedblade": None}


def test_tests_are_against_the_baseline_and_corrected(made):
    """Differences of 10, 10.1 and 10: t = 301, of two degrees of freedom."""
    sure = entry_of(made, "fedetf", "Dir(0.05)")
    assert sure["p"] < 1e-4 and sure["better"] is True
    count = sum(e["p"] is not None for e in made["cells"])
    assert sure["p_holm"] == pytest.approx(count * sure["p"]) and count == 5
    assert entry_of(made, "fedavg", "Dir(0.1)")["p"] is None
    other, cells = chosen(*OURS)
    swapped = paper_table.make(other, cells, runs=runs_of(cells), baseline="fedetf")
    assert entry_of(swapped, "fedavg", "Dir(0.05)")["better"] is False
    with pytest.raises(errors.UserError, match="unknown row of fedblade/T1 'fedavgg'"):
        paper_table.make(other, cells, runs={}, baseline="fedavgg")


def test_seeds_that_both_have_are_paired():
    recipe, cells = chosen("fedavg", "fedetf")
    few = {row: dict(OURS[row]) for row in ("fedavg", "fedetf")}
    few["fedavg"]["Dir(0.1)"] = (60, 61)
    made = paper_table.make(recipe, cells, runs=runs_of(cells, few))
    one = entry_of(made, "fedavg", "Dir(0.1)")
    assert one["n"] == 2 and one["missing"] == "of 3 seeds 1 not trained yet"
    two = entry_of(made, "fedetf", "Dir(0.1)")
    assert paper_table.on_common(two, one) == ([65, 64], [60, 61])
    # differences 5 and 3: t = 4, of one degree of freedom, whose distribution is Cauchy's
    assert two["p"] == pytest.approx(1 - 2 * math.atan(4) / math.pi)


def test_what_is_missing_is_said(made):
    assert paper_table.missing(made) == {"not trained yet": ["fedblade @ cifar10, Dir(0.5)"]}
    text = paper_forms.render(made)
    assert "Missing (not trained yet): fedblade @ cifar10, Dir(0.5)." in text
    recipe = recipes.get("feddr_plus/T12")
    cells = recipe.cells("full", only=["fedavg +prox"])
    empty = paper_table.make(recipe, cells, runs={})
    assert all("best of eight values" in e["missing"] for e in empty["cells"])
    assert "| - (0.999) |" in paper_forms.render(empty)


def test_ranks_leave_out_rows_with_gaps(made):
    found = made["ranks"]
    assert found["left_out"] == ["fedblade"] and len(found["settings"]) == 3
    assert found["average"] == pytest.approx({"fedavg": 5 / 3, "fedetf": 4 / 3})
    assert found["critical_difference"] == pytest.approx(1.960 / 3**0.5, abs=1e-3)
    assert found["p"] is None  # two methods


def test_markdown(made):
    text = paper_forms.render(made)
    lines = text.splitlines()
    header = "| method | cifar10, Dir(0.05) | cifar10, Dir(0.1) | cifar10, Dir(0.5) | lr |"
    assert header in lines
    (row,) = [line for line in lines if line.startswith("| `fedetf` | **61.0")]
    assert row.startswith("| `fedetf` | **61.0 ± 1.1**⁺ (") and row.endswith("| 0.01 |")
    assert "<u>53.0 ± 2.6</u>" in text and "95 % interval" in text
    assert "Holm's correction over the table" in text and "the mean of the last 10 rounds" in text
    assert "lr: the first round's learning rate, the protocol's, not tuned here." in text


def test_csv_and_json_hold_every_number(made):
    rows = list(csv.DictReader(io.StringIO(paper_forms.render(made, "csv"))))
    assert len(rows) == len(made["cells"]) == 9
    assert (rows[0]["row"], rows[0]["values"]) == ("fedavg", "50.0 52.0 51.0")
    assert json.loads(paper_forms.render(made, "json"))["cells"][0]["values"] == [50, 52, 51]
    with pytest.raises(errors.UserError, match="unknown form of a table 'html'"):
        paper_forms.render(made, "html")


def test_latex_is_escaped(made):
    text = paper_forms.render(made, "latex")
    assert r"\textbf{61.0 $\pm$ 1.1}$^{+}$ (" in text and r"\underline{53.0 $\pm$ 2.6}" in text
    assert r"\toprule" in text and text.count("\\\\\n") == 4
    recipe = recipes.get("feddr_plus/T2")
    cells = recipe.cells("full", only=["dot_regression +fd"])
    assert r"dot\_regression +fd & " in paper_forms.render(
        paper_table.make(recipe, cells, runs={}), "latex"
    )


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles(made, tmp_path):
    body = paper_forms.render(made, "latex")
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 5000


def test_columns_that_are_the_same_runs_are_shown_once():
    recipe = recipes.get("fedblade/T1")
    cells = recipe.cells("pocket", only=["fedavg", "fedblade"])
    made = paper_table.make(recipe, cells, runs={})
    assert [c["name"] for c in made["columns"]] == [
        f"cifar10, Dir({alpha})" for alpha in ("0.05", "0.1", "0.5")
    ]
    assert made["columns"][0]["same"] == ["cifar100, Dir(0.05)", "tinyimagenet, Dir(0.05)"]
    text = paper_forms.render(made)
    assert "Columns that are the same runs at this scale: cifar10, Dir(0.05): cifar100," in text
    assert "Not the paper's settings" in text
    assert "| for cifar10, Dir(0.05) and 2 more | for cifar10, Dir(0.1) and 2 more |" in text
    assert all(e["difference"] is None for e in made["cells"])


def test_rounds_to_a_target_come_from_the_records():
    recipe = recipes.get("fedblade/T12")
    cells = recipe.cells("smoke", only=["rounds to 40 %"])
    rows = [{"round": n, "global_accuracy": n / 10} for n in range(1, 7)]
    runs = {}
    for cell in cells:
        configs = [config.RunConfig(seed=seed) for seed in (0, 1)]
        left = {"fedavg": [rows, rows[1:]], "fedblade": [rows, rows[:2]]}.get(cell.row, [])
        summaries = [{"seed": seed} for seed in range(len(left))]
        runs[cell.argv] = Run(configs, summaries=summaries, records=left)
    made = paper_table.make(recipe, cells, runs=runs)
    first, second = made["cells"][0], made["cells"][1]
    assert (first["row"], first["values"], first["place"]) == ("fedavg", [4, 4], 1)
    assert (second["values"], second["missing"]) == ([4], "of 2 seeds 1 did not reach it")


def test_difference_of_two_tables(made, tmp_path, capsys):
    recipe, cells = chosen(*OURS)
    ours = {row: dict(columns) for row, columns in OURS.items()}
    ours["fedavg"]["Dir(0.05)"] = (51, 53.1, 52)  # one more on every seed
    ours["fedetf"]["Dir(0.1)"] = (65, 65, 65.5)
    ours["fedblade"]["Dir(0.1)"] = (58, 61)  # other seeds: Welch's interval
    other = paper_table.make(recipe, cells, runs=runs_of(cells, ours))
    found = paper_table.difference(made, other)
    (sure,) = [entry for entry in found if entry["differs"]]
    assert (sure["row"], sure["column"]) == ("fedavg", "cifar10, Dir(0.05)")
    assert sure["difference"] == pytest.approx(31 / 30) and sure["low95"] > 0
    files = []
    for name, content in (("a.json", made), ("b.json", other)):
        files.append(str(tmp_path / name))
        (tmp_path / name).write_text(paper_forms.render(content, "json"))
    assert main.main(["table", "--diff", *files]) == 0
    text = capsys.readouterr().out
    assert "3 of 9 cells differ, 1 of them beyond the 95 % interval" in text
    assert "5 are equal, 1 are missing" in text
    assert "| `fedavg` | cifar10, Dir(0.05) | 51.0 | 52.0 | +1.0 |" in text
    assert main.main(["table", "--diff", files[0], str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text("[]")
    assert main.main(["table", "--diff", files[0], str(tmp_path / "bad.json")]) == 2
    assert "bad.json is no table: give one that" in capsys.readouterr().err


def test_the_picture_of_ranks(made):
    found = {"fedavg": 3.0, "fedetf": 1.25, "fedblade": 1.75, "local": 4.0}
    spans = [(1.25, 1.75), (3.0, 4.0)]
    figure = figures.critical_difference(found, 1.2, together=spans, title="four $ methods")
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "critical difference 1.20" in words and "fedetf  1.25" in words
    assert "4.00  local" in words and r"four \$ methods" in figure.get_suptitle()
    thick = [line for line in figure.axes[0].lines if line.get_linewidth() == 4]
    spans = [tuple(line.get_xdata()) for line in thick]
    assert spans == [pytest.approx((1.21, 1.79)), pytest.approx((2.96, 4.04))]
    plt.close("all")


def test_curves_of_one_method_share_a_colour():
    """And an entry of the legend, in panels by setting, as in FedETF's figure 4."""
    rows = [{"round": n, "global_accuracy": n / 10} for n in (1, 2, 3)]
    names = {f"{m} @ {d}": m for d in ("cifar10", "cifar100") for m in ("fedavg", "fedetf")}
    panels = {label: label.split()[-1] for label in names}
    groups = {label: [rows, rows] for label in names}
    figure = curves.together(groups, panels=panels, names=names)
    assert [axis.get_title() for axis in figure.axes] == ["cifar10", "cifar100"]
    shades = [[line.get_color() for line in axis.lines] for axis in figure.axes]
    assert shades[0] == shades[1] and len(set(shades[0])) == 2
    (below,) = figure.legends
    assert [t.get_text() for t in below.get_texts()] == ["fedavg (2 seeds)", "fedetf (2 seeds)"]
    plt.close("all")


@pytest.mark.parametrize(
    "words, said",
    [
        (["feddw/T1", "--form=html"], "unknown form of a table 'html': choose from csv, json"),
        (["feddw/T1", "--scale=huge"], "unknown scale 'huge': choose from full, pocket, smoke"),
        (["feddw/T1", "--baseline=fedagv"], "unknown row of feddw/T1 'fedagv': did you mean"),
        (["feddw/T1", "--figure=ranks.gif"], "--figure=ranks.gif: give a name that ends in .png"),
        (["feddw/T1", "--to=/no/such/folder/t.md"], "give a file in a folder that exists"),
        (["feddw/T1", "--tuned=none.json"], "--tuned=none.json: "),
        (["feddr_plus/T12", "--figure=r.png"], "no cell of feddr_plus/T12 is run"),
        ([], "no recipe was given: name one, as "),
        (["feddw/T1", "--diff", "a", "b"], "'feddw/T1' has no effect with --diff"),
    ],
)
def test_what_is_refused(words, said, capsys, monkeypatch):
    monkeypatch.setattr(run, "execute", lambda asked: pytest.fail("nothing is trained"))
    assert main.main(["table", *words]) == 2
    assert said in capsys.readouterr().err


def test_seeds_and_tuned_rates_reach_the_runs(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(run, "execute", asked.append)
    rates = tmp_path / "rates.json"
    rates.write_text('{"fedavg": 0.5}')
    words = ["fedetf/T3", "--scale=smoke", "--seeds", "5", f"--tuned={rates}"]
    assert main.main(["table", *words, f"--out={tmp_path}"]) == 0
    first, second = (one.configs[0] for one in asked)
    assert (first.method, first.local.lr, first.seed) == ("fedavg", 0.5, 5)
    assert (second.method, second.local.lr) == ("fedetf", 0.05)
    assert "not trained yet" in capsys.readouterr().out
    rates.write_text('{"fedavvg": 0.5}')
    assert main.main(["table", *words]) == 2
    assert "did you mean 'fedavg'?" in capsys.readouterr().err
    rates.write_text('{"fedavg": "high"}')
    assert main.main(["table", *words]) == 2


# --- real runs

CHEAP = {  # of every paper a recipe, with the rows that other tests of this file do not train
    "fedetf/T3": ["fedavg", "fedetf"],
    "feddw/T4": ["fedavg", "fedavg +dw"],
    "feddr_plus/F3": ["dot_regression"],
    "fedalign/T10": ["fedalign mu=0.45"],
    "fedblade/T3": ["fedetf", "fedblade"],
}


@pytest.mark.slow
def test_recipes_at_the_smallest_scale(tmp_path, capsys, monkeypatch):
    """Trained to their end, written, and read again without training."""
    monkeypatch.chdir(tmp_path)
    for name, rows in CHEAP.items():
        words = ["table", name, "--scale=smoke", "--cells", *rows, "--form=json"]
        assert main.main([*words, f"--to={name.replace('/', '-')}.json"]) == 0
        made = json.loads((tmp_path / f"{name.replace('/', '-')}.json").read_text())
        assert made["rows"] == rows and not paper_table.missing(made), name
        assert all(0 <= e["mean"] <= 100 and e["n"] == 2 for e in made["cells"])
    capsys.readouterr()
    trained = list(tmp_path.glob("runs/*/*/*/seed*/summary.json"))
    assert len(trained) == 2 * 6  # FedETF once, though two papers ask for it
    monkeypatch.setattr(table, "_train", lambda commands: pytest.fail("nothing is trained"))
    words = ["table", "fedetf/T3", "--scale=smoke", "--only_report", "--figure=r.png"]
    assert main.main(words) == 0
    assert "| `fedetf` |" in capsys.readouterr().out and (tmp_path / "r.png").stat().st_size > 5000
    drawn = ["table", "feddr_plus/F3", "--scale=smoke", "--only_report", "--figure=c.png"]
    assert main.main(drawn) == 0 and (tmp_path / "c.png").stat().st_size > 5000
    cells = recipes.get("fedetf/T3").cells("smoke")
    cfg = flags.parse(list(cells[0].argv)).configs[0]
    shutil.rmtree(rundir.path_of("runs", cfg))
    assert main.main(words[:-1]) == 0
    assert "of 2 seeds 1 not trained yet" in capsys.readouterr().out
