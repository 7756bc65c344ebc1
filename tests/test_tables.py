"""Tables and pictures of several runs: spread, seconds, headings, labels, panels."""

import dataclasses
import json
import re
import statistics

import pytest
import yaml
from matplotlib.figure import Figure

from fedjax_nc import config, errors, tables
from fedjax_nc.cli import console, curves, main, run
from fedjax_nc.figures import curves as figures
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


def test_columns_are_chosen_by_name(monkeypatch, capsys):
    one = summary(global_macro_f1=0.25, global_loss=1.25, global_class_accuracy=[0.5, None])
    monkeypatch.setattr(run, "execute", lambda asked: [one])
    names = ["global_macro_f1", "global_loss", "finetuned_accuracy"]
    assert main.main(["compare", "fedavg", "--columns", *names, "--", "--dataset=digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| method | global_macro_f1 | global_loss | fine-tuned | lr |")
    assert " | 25.0 | 1.25 | - | 0.02 |" in lines[2]
    for wrong in ("global_f1", "global_class_accuracy"):  # no metric, and not one number
        assert main.main(["compare", "fedavg", f"--columns={wrong}"]) == 2
        assert f"unknown column '{wrong}': did you mean 'global_" in capsys.readouterr().err
    assert "macro_f1" not in markdown([Row(config.RunConfig(), [one])])  # unless asked for


def test_rounds_to_a_target_and_speed_up():
    cfg = config.RunConfig(rounds=30)

    def row(*found):
        own = [summary(seed=i, stop_at=0.6, rounds_to_target=n) for i, n in enumerate(found)]
        return Row(cfg, own)

    rows = [row(20, 24), row(10, 12), row(28, None), row(None, None)]
    table = tables.compare(rows)
    assert table.header[-2:] == ["rounds to target", "speed-up"]
    shown = [["22", "1.0x"], ["11", "2.0x"], ["29+", "<0.8x"], ["30+", "<0.7x"]]
    assert [cells[-2:] for cells in table.rows] == shown
    assert "Target: 60 per cent" in table.note
    never = tables.compare(rows[::-1])
    assert [cells[-1] for cells in never.rows] == ["-"] * 4  # beside what is not known
    assert "speed-up" not in tables.compare([Row(cfg, [summary()])]).header


def records(accuracies):
    """The rows of a run, of which every other round is tested."""
    rows = [{"round": n} for n in range(1, 2 * len(accuracies) + 1)]
    for row, accuracy in zip(rows[1::2], accuracies, strict=True):
        row["global_accuracy"] = accuracy
    return rows


def aimed_at(curves, rounds=8, **evaluation):
    """A row of a table from the curves of its seeds."""
    cfg = config.RunConfig(rounds=rounds, evaluation=config.Evaluation(every=2, **evaluation))
    found = [summary(seed=i) for i in range(len(curves))]
    return Row(cfg, found, records=[records(curve) for curve in curves])


def test_rounds_to_several_targets_of_the_same_runs():
    rows = [
        aimed_at([[0.3, 0.5, 0.4, 0.6], [0.1, 0.2, 0.5, 0.4]]),
        aimed_at([[0.5, 0.5, 0.5, 0.5], [0.2, 0.4, 0.3, 0.6]]),
        aimed_at([[0.1, 0.1, 0.3, 0.4], [0.1, 0.2, 0.2, 0.2]]),
    ]
    table = tables.compare(rows, targets=(0.2, 0.45, 0.6))
    assert table.header[-6:] == [
        *("rounds to 20 %", "speed-up to 20 %"),
        *("rounds to 45 %", "speed-up to 45 %"),
        *("rounds to 60 %", "speed-up to 60 %"),
    ]
    assert [cells[-6:] for cells in table.rows] == [
        # 2 and 4; 4 and 6; 8 and never, beside which nothing is known
        ["3", "1.0x", "5", "1.0x", "8+", "-"],
        ["2", "1.5x", "5", "1.0x", "8+", "-"],  # 2 and 2; 2 and 8; never and 8
        ["5", "0.6x", "8+", "<0.6x", "8+", "-"],  # 6 and 4; never
    ]
    assert "Target: 20 or 45 or 60 per cent, the mean over seeds of the first tested" in table.note
    assert tables.compare(rows).header[-1] == "kB down"  # only if asked for


def test_targets_stand_in_place_of_where_runs_stopped():
    row = aimed_at([[0.3, 0.5]], stop_at=0.5)
    row.summaries[0].update(stop_at=0.5, rounds_to_target=4)
    table = tables.compare([row], targets=(0.3,))
    assert table.header[-2:] == ["rounds to 30 %", "speed-up to 30 %"]
    assert table.rows[0][-2:] == ["2", "1.0x"]
    with pytest.raises(errors.UserError, match=r"target 0.6 is above 0.5, where the runs end"):
        tables.compare([row], targets=(0.3, 0.6))


def test_targets_of_the_command_are_read_from_the_runs(tmp_path, monkeypatch, capsys):
    curves_of = {"fedavg": [0.1, 0.3], "moon": [0.3, 0.5]}

    def execute(asked):
        (cfg,) = asked.configs
        directory = rundir.path_of(asked.out, cfg)
        directory.mkdir(parents=True)
        rows = "".join(json.dumps(row) + "\n" for row in records(curves_of[cfg.method]))
        (directory / "metrics.jsonl").write_text(rows)
        return [summary(method=cfg.method)]

    monkeypatch.setattr(run, "execute", execute)
    rest = ["--dataset=digits", "--rounds=4", f"--out={tmp_path}"]
    words = ["compare", "fedavg", "moon", "--targets", "0.3", "0.5"]
    assert main.main([*words, "--", *rest]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| rounds to 50 % | speed-up to 50 % |")
    assert lines[2].endswith("| 4 | 1.0x | 4+ | - |") and lines[3].endswith("| 2 | 2.0x | 4 | - |")
    stops = [*words, "--", *rest, "--stop_at=0.4"]
    for given, said in (
        (["compare", "fedavg", "--targets", "0.3", "60"], "target 60.0: give shares between 0 and"),
        (["compare", "fedavg", "--targets=nan"], "target nan: give shares between 0 and 1, as 0.2"),
        (["compare", "fedavg", "--targets", "0.3", "0.3"], "targets 30 30 %: give each once"),
        (["compare", "fedavg", "--targets", "0.3", "x"], "x"),
        (stops, "target 0.5 is above 0.4, where the runs end (--evaluation.stop_at): give targets"),
    ):
        assert main.main(given) == 2
        said_in_full = capsys.readouterr().err
        assert said in said_in_full and said_in_full.count("\n") == 1


@pytest.mark.parametrize("given", [0.5, "0.5", ("0.5",), (True,), (1.0,), (float("nan"),)])
def test_targets_are_shares(given):
    with pytest.raises(errors.UserError, match=r"give (a tuple of )?shares"):
        tables.compare([aimed_at([[0.3, 0.5]])], targets=given)


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


def test_a_line_per_configuration_and_a_panel_per_dataset(tmp_path, monkeypatch):
    drawn = {}

    def together(groups, title, panels):
        drawn.update(groups=groups, title=title, panels=panels)
        return Figure()

    monkeypatch.setattr(figures, "together", together)
    directories = [
        made_up(tmp_path, [0.1, 0.2], method="fedavg", dataset=dataset, seed=seed)
        for dataset in ("digits", "mnist5k")
        for seed in (0, 1)
    ]
    directories.append(made_up(tmp_path, [0.3], method="moon"))
    to = tmp_path / "curves.svg"
    assert main.main(["curves", *map(str, directories), f"--to={to}", "--title=both"]) == 0
    assert to.is_file() and drawn["title"] == "both"
    assert {name: len(seeds) for name, seeds in drawn["groups"].items()} == {
        "fedavg on digits": 2,
        "fedavg on mnist5k": 2,
        "moon": 1,
    }
    assert [panel.split(",")[0] for panel in drawn["panels"].values()] == [
        "digits",
        "mnist5k",
        "mnist5k",
    ]
    assert [row["global_accuracy"] for row in drawn["groups"]["moon"][0]] == [0.3]


def test_run_that_has_not_been_tested_yet(tmp_path, capsys):
    directory = made_up(tmp_path, [])
    assert main.main(["curves", str(directory)]) == 2
    assert "has no evaluated round yet" in capsys.readouterr().err


def test_cost_to_a_target_can_be_a_column():
    own = summary(stop_at=0.6, rounds_to_target=2, bytes_up_to_target=14e8, mflops_to_target=174.6)
    names = ("bytes_up_to_target", "mflops_to_target")
    table = tables.compare([Row(config.RunConfig(), [own])], names)
    assert table.rows[0][1:3] == ["1400000000", "175"]
