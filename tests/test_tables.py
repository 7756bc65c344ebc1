"""Tables and pictures of several runs: spread, seconds, headings, labels, panels."""

import dataclasses
import json
import re
import statistics

import pytest
import yaml

from fedjax_nc import config, errors, tables
from fedjax_nc.cli import console, curves, main, run
from fedjax_nc.figures import comparison
from fedjax_nc.io import rundir
from fedjax_nc.tables import Row


def test_results_have_the_sample_standard_deviation(capsys):
    values = (0.2487, 0.2037, 0.1387)  # newcomer's: 5.5, of which the population has 4.5
    assert f"{100 * statistics.stdev(values):.1f}" == "5.5"
    base = dict.fromkeys(("method", "dataset", "model", "protocol"), "x") | {"rounds": 1}
    summaries = [base | {"seed": i, "global_accuracy": v} for i, v in enumerate(values)]
    console.show_results(summaries)
    text = " ".join(capsys.readouterr().out.split())
    assert "19.7±5.5" in text and "sample standard deviation over seeds" in text
    console.show_results(summaries[:1])
    assert "deviation" not in capsys.readouterr().out


# --- compare


def summary(**own):
    return {
        "method": "fedavg | fd",
        "seed": 0,
        "global_accuracy": 0.5,
        "seconds_per_round": 1.0,
        "seeds_in_parallel": 1,
        "bytes_up_per_client": 1000,
        "bytes_down_per_client": 3000,
    } | own


def markdown(rows):
    return tables.render(tables.compare(rows))


def test_table_keeps_seconds_of_several_seeds_apart():
    cfg = config.RunConfig()
    alone = [summary(seed=i, seconds_per_round=1.0 + i) for i in range(2)]
    both = [summary(seed=i, seconds_per_round=3.0, seeds_in_parallel=2) for i in range(2)]
    mixed = [alone[0], both[1]]
    lines = markdown([Row(cfg, alone), Row(cfg, both), Row(cfg, mixed)]).splitlines()
    assert lines[0] == "| method | global | lr | s/round | kB up | kB down |"
    cells = [line.split(" | ")[3] for line in lines[2:5]]
    assert cells == ["1.50", "3.00 (2 seeds at once)", "1.00, 3.00 (2 seeds at once)"]
    assert all(line.startswith(r"| `fedavg \| fd` | 50.0 ± 0.0 | 0.01 |") for line in lines[2:5])
    assert "mean ± sample standard deviation over seeds 0, 1;" in lines[-1]
    one = markdown([Row(cfg, alone[:1])])
    assert "Accuracies in per cent, seed 0;" in one and "±" not in one


def test_settings_in_words():
    data = config.Data(alpha=0.1, rule="lda")
    cfg = config.RunConfig(dataset="cifar10", data=data)
    said = "cifar10, dirichlet with alpha 0.1 (lda's rule), 20 of 20 clients, cnn, 30 rounds"
    assert tables.in_words(cfg) == said
    other = dataclasses.replace(cfg, data=dataclasses.replace(data, alpha=5.0))
    assert tables.in_words(other) != said
    words = {
        tables.partition_in_words(config.Data(partition=p, per_client=3, alpha=2.0))
        for p in ("iid", "shards", "classes", "quantity")
    }
    assert words == {"iid", "3 shards per client", "3 classes per client", "quantity with alpha 2"}


def test_two_settings_have_two_headings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "execute", lambda asked: [summary(method=asked.configs[0].method)])
    file = tmp_path / "table.md"
    for alpha in ("0.1", "5"):
        rest = ["--dataset=digits", "--data.partition=dirichlet", f"--data.alpha={alpha}"]
        assert main.main(["compare", "fedavg", "moon", f"--to={file}", "--", *rest]) == 0
    headings = [line for line in file.read_text().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) == 2
    assert "dirichlet with alpha 0.1" in headings[0] and "alpha 5" in headings[1]
    assert "fedjax-nc compare fedavg moon" in file.read_text()


def test_nobody_can(monkeypatch, capsys):
    def execute(asked):
        raise errors.UserError("no")

    monkeypatch.setattr(run, "execute", execute)
    assert main.main(["compare", "all", "--", "--dataset=digits"]) == 2
    assert re.search(r"none of \d+ methods can do this, such as `\w+`: no", capsys.readouterr().err)


# --- curves


def made_up(folder, accuracies, **settings):
    """A run directory with these accuracies, one per round."""
    data = config.Data(**settings.pop("data", {}))
    local = config.Local(**settings.pop("local", {}))
    cfg = config.RunConfig(**settings, data=data, local=local)
    directory = rundir.path_of(str(folder), cfg)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(config.to_dict(cfg)))
    rows = [
        {"round": i, "seconds": 1.0, "global_accuracy": a, "client_accuracy": a / 2}
        for i, a in enumerate(accuracies, 1)
    ]
    rows.insert(0, {"round": 0, "seconds": 9.0})  # not tested
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_curves_drop_nothing(tmp_path, capsys):
    out = tmp_path / "runs"
    directories = [
        *(
            made_up(out, [0.1, 0.2 + seed / 10], method="fedavg", seed=seed, data={"alpha": alpha})
            for alpha in (0.1, 5.0)
            for seed in (0, 1)
        ),
        made_up(out, [0.1, 0.7], method="fedavg", dataset="digits"),
        made_up(out, [0.1, 0.5], method="fedetf", local={"lr": 0.5}),
        made_up(tmp_path / "again", [0.1, 0.6], method="fedavg", data={"alpha": 5.0}),
    ]
    to = tmp_path / "curves.png"
    argv = ["curves", *map(str, directories), f"--to={to}"]
    panels = curves.arrange([curves.open_run(d) for d in directories])
    assert sum(len(seeds) for groups in panels.values() for seeds in groups.values()) == 7
    assert list(panels) == [
        "mnist5k, cnn",
        "digits, dirichlet with alpha 0.1 (fedetf's rule), cnn",
    ]
    first, second = panels.values()
    assert {label: len(seeds) for label, seeds in first.items()} == {
        "fedavg, data.alpha=0.1": 2,
        f"fedavg, data.alpha=5.0, {directories[2]}": 2,
        "fedetf, data.alpha=0.1": 1,
        f"fedavg, data.alpha=5.0, {directories[-1]}": 1,
    }
    assert list(second) == ["fedavg"]
    assert main.main(argv) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 5 and lines[0].startswith("| dataset | method | seeds | rounds |")
    spread = "25.0 ± 7.1"  # of 20 and 30 per cent
    assert lines[2].startswith(f"| mnist5k | `fedavg, data.alpha=0.1` | 0, 1 | 2 | {spread} |")
    assert lines[-1].split(" | ")[4:8] == ["70.0", "40.0", "70.0", "35.0"]
    assert to.stat().st_size > 10_000


def test_a_panel_per_dataset_and_a_band_per_configuration():
    seeds = [{1: 0.1, 2: 0.4, 3: 0.6}, {1: 0.3, 2: 0.4}]
    figure = comparison.draw({"a": {"x": seeds, "y": [{1: 0.5}]}, "b": {"y": [{1: 0.2}]}}, "both")
    left, right = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["a", "b"]
    mean = left.lines[0]
    assert list(mean.get_xdata()) == [1, 2, 3]
    assert list(mean.get_ydata()) == pytest.approx([20, 30, 40])  # trailing means of 20, 40, 60
    low, high = left.collections[0].get_paths()[0].vertices[:, 1].min(), 34.142136
    assert low == pytest.approx(20 - 14.142136) and high == pytest.approx(20 + 14.142136)
    assert len(left.collections) == 1 and not right.collections
    colour = {line.get_label(): line.get_color() for line in left.lines}
    assert right.lines[0].get_color() == colour["y"] != colour["x (2 seeds)"]
    assert figure.get_suptitle() == "both"


def test_many_lines_are_told_apart():
    figure = comparison.draw({"a": {str(i): [{1: 0.1, 2: 0.2, 3: 0.3}] for i in range(14)}})
    looks = {
        (x.get_color(), x.get_linestyle()) for x in figure.axes[0].lines if x.get_linewidth() == 2
    }
    assert len(looks) == 14


def test_run_that_has_not_been_tested_yet(tmp_path, capsys):
    directory = made_up(tmp_path, [])
    assert main.main(["curves", str(directory)]) == 2
    assert "has no evaluated round yet" in capsys.readouterr().err
