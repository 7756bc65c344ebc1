"""Whole runs: what they leave on disk, and that stopping them anywhere changes nothing."""

import dataclasses
import json
import shutil
import statistics

import jax
import numpy as np
import pytest
import yaml
from runs import (
    COMMAND,
    DATA,
    FEDETF,
    FEW,
    PLAIN,
    assert_same_run,
    directory_of,
    files_of,
    rows_of,
    state_of,
    steps_of,
    train,
)

from fedjax_nc import config
from fedjax_nc.cli import flags, main
from fedjax_nc.data import datasets, federated
from fedjax_nc.methods import catalogue


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of two seeds; tests that change files take a copy."""
    out = tmp_path_factory.mktemp("finished")
    train(out, COMMAND)
    return out


@pytest.fixture
def copied(finished, tmp_path):
    """(out, directory of seed 0) of a copy of the finished run."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    return out, directory_of(out, COMMAND)


# --- what a run leaves


def test_run_leaves_all_its_files(finished):
    directory = directory_of(finished, COMMAND)
    names = {
        "config.yaml",
        "command.txt",
        "environment.json",
        "partition.npz",
        "metrics.jsonl",
        "summary.json",
        "curves.png",
        "finetuned.png",
        "labels.png",
        "ckpt",
    }
    assert {p.name for p in directory.iterdir()} == names
    assert steps_of(directory) == [4, 5]
    assert (directory / "command.txt").read_text().strip()
    environment = json.loads((directory / "environment.json").read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert environment["devices"] == [str(d) for d in jax.devices()]


def test_config_gives_the_configuration_back(finished):
    content = yaml.safe_load((directory_of(finished, COMMAND) / "config.yaml").read_text())

    def load(cls, values):
        types = {f.name: f.default_factory for f in dataclasses.fields(cls)}
        made = {k: load(types[k], v) if isinstance(v, dict) else v for k, v in values.items()}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in made.items()})

    assert load(config.RunConfig, content) == flags.parse(COMMAND).configs[0]


def test_metrics_have_one_row_per_round(finished):
    rows = rows_of(directory_of(finished, COMMAND))
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["round"] for row in rows if "global_accuracy" in row] == [4, 5]
    assert all(np.isfinite(value).all() for row in rows for value in row.values())


def test_summary_says_what_the_run_came_to(finished):
    directory = directory_of(finished, COMMAND)
    summary, rows = json.loads((directory / "summary.json").read_text()), rows_of(directory)
    named = {k: summary[k] for k in ("method", "dataset", "model", "protocol", "seed", "rounds")}
    assert named == {
        "method": "fedetf(cycles=1, finetune_epochs=1)",
        "dataset": "digits",
        "model": "mlp",
        "protocol": "quick",
        "seed": 0,
        "rounds": 5,
    }
    last = [row["global_accuracy"] for row in rows[-2:]]
    assert summary["global_accuracy"] == statistics.fmean(last)
    assert (summary["averaged_rounds"], summary["final_accuracy"]) == (2, last[-1])
    assert 0 <= summary["personal_accuracy"] <= 1 and 0 <= summary["finetuned_accuracy"] <= 1
    assert summary["seconds_per_round"] > 0 and summary["compile_seconds"] >= 0
    # body 64-200-128 and the projector to 10 with their biases, and the scale; no head
    floats = 64 * 200 + 200 + 200 * 128 + 128 + 128 * 10 + 10 + 1
    assert summary["bytes_up_per_client"] == 4 * floats
    assert summary["bytes_up"] == summary["bytes_down"] == 4 * floats * 5 * 2


def test_curves_are_a_picture(finished):
    from PIL import Image

    with Image.open(directory_of(finished, COMMAND) / "curves.png") as picture:
        picture.verify()
        assert picture.format == "PNG" and min(picture.size) > 300


def test_seeds_run_in_directories_of_their_own(finished):
    first, second = (directory_of(finished, COMMAND, seed) for seed in (0, 1))
    assert first.parent == second.parent
    assert (second / "summary.json").exists()
    assert rows_of(first) != rows_of(second)


def test_partition_reads_back(finished, tmp_path):
    first = directory_of(finished, COMMAND)
    argv = [*COMMAND[:-3], f"--data.partition_file={first / 'partition.npz'}"]
    arrays = datasets.load("digits")
    y = arrays.train_y[federated.limit_examples(arrays.train_y, 300)]
    splits = []
    for cfg in (flags.parse(COMMAND).configs[0], flags.parse(argv).configs[0]):
        splits.append(
            federated.split_clients(
                cfg.data, 4, seed=cfg.partition_seed, train_y=y, test_y=arrays.test_y
            )
        )
    assert splits[0].pool == splits[1].pool
    for left, right in zip(
        (*splits[0].train, *splits[0].test), (*splits[1].train, *splits[1].test), strict=True
    ):
        np.testing.assert_array_equal(left, right)
    again = train(tmp_path, argv)
    assert "digits-file" in str(again)
    assert rows_of(again) == rows_of(first)


# --- the same command again


def test_same_command_does_nothing_when_finished(finished, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    before = files_of(finished)
    train(finished, COMMAND)
    printed = capfd.readouterr()
    assert printed.err.count("already finished") == 2
    assert "mean±std" in printed.out
    assert files_of(finished) == before


def test_overwrite_starts_again(copied, finished):
    out, directory = copied
    (directory / "stray.txt").write_text("old")
    before = (directory / "summary.json").stat().st_mtime_ns
    train(out, [*COMMAND[:-3], "--overwrite"])
    assert not (directory / "stray.txt").exists()
    assert (directory / "summary.json").stat().st_mtime_ns > before
    assert_same_run(directory, directory_of(finished, COMMAND))


def test_run_stopped_after_its_last_round_is_finished(copied, finished, capfd):
    out, directory = copied
    (directory / "summary.json").unlink()
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "lo')  # torn by a kill
    train(out, COMMAND)
    assert "resuming after round 5" in capfd.readouterr().err
    assert_same_run(directory, directory_of(finished, COMMAND))


def test_run_of_another_configuration_is_left_alone(copied, capfd):
    out, directory = copied
    path = directory / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.05", "lr: 0.06"))
    shutil.rmtree(directory / "ckpt")  # which would say that only config.yaml is wrong
    before = files_of(out)
    assert main.train([*COMMAND, f"--out={out}"]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ") and "another configuration" in printed
    assert printed.count("\n") == 1
    assert files_of(out) == before


# --- checkpoints that cannot be read


def damage(directory, step, how):
    """Spoil the arrays of a checkpoint."""
    for path in (directory / "ckpt" / str(step) / "state").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if how == "cut":
                path.write_bytes(data[: len(data) // 2])
            elif how == "garbage":
                path.write_bytes(bytes(len(data)))
            elif path.parent.name == "d":
                path.unlink()


@pytest.mark.parametrize("how", ["cut", "garbage", "lost"])
def test_damaged_checkpoint_falls_back_to_the_last_good_one(copied, finished, how, capfd):
    out, directory = copied
    (directory / "summary.json").unlink()
    damage(directory, 5, how)
    train(out, COMMAND)
    printed = capfd.readouterr().err
    assert "warning: checkpoint of round 5 is damaged" in printed
    assert "the last good checkpoint is round 4: 1 round is computed again" in printed
    assert "resuming after round 4" in printed
    assert (directory / "ckpt" / "5.damaged").is_dir() and steps_of(directory) == [4, 5]
    assert_same_run(directory, directory_of(finished, COMMAND))


def test_nothing_but_damaged_checkpoints(copied, finished, capfd):
    out, directory = copied
    (directory / "summary.json").unlink()
    for step in (4, 5):
        damage(directory, step, "cut")
    train(out, COMMAND)
    assert "no checkpoint is good: 5 rounds are computed again" in capfd.readouterr().err
    assert {"4.damaged", "5.damaged"} < {p.name for p in (directory / "ckpt").iterdir()}
    assert_same_run(directory, directory_of(finished, COMMAND))


# --- clients that go wrong


def test_client_without_data_is_skipped_with_a_warning(tmp_path, capfd):
    parts = tmp_path / "parts.json"
    parts.write_text(
        json.dumps({"0": list(range(0, 300, 2)), "1": [], "2": list(range(1, 300, 2))})
    )
    argv = [
        "--method=fedavg",
        *DATA,
        *PLAIN,
        f"--data.partition_file={parts}",
        "--rounds=2",
        "--federation.clients=3",
        "--federation.participants=3",
    ]
    assert main.train([*argv, f"--out={tmp_path / 'out'}", "--strict"]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: 1 of 3 clients have no training data (1)")
    assert printed.count("\n") == 1 and not (tmp_path / "out").exists()
    directory = train(tmp_path / "out", argv)
    warning = "warning: 1 of 3 clients have no training data (1): they are skipped"
    assert warning in capfd.readouterr().err
    assert [row["round"] for row in rows_of(directory)] == [1, 2]


def test_update_that_is_not_finite_stops_the_run(tmp_path, capfd):
    argv = [
        "--method=fedavg",
        *DATA,
        *FEW,
        *PLAIN,
        "--rounds=30",
        "--local.schedule=exponential",
        "--local.decay=1e6",
        "--execution.checkpoint_every=1",
    ]
    assert main.train([*argv, f"--out={tmp_path}"]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: round ") and "NaN or infinite" in line
    bad, client = (int(word.strip(":,")) for word in line.split()[2:5:2])
    assert 1 < bad < 30 and 0 <= client < 4
    directory = directory_of(tmp_path, argv)
    assert line.endswith(f"Last good checkpoint: round {bad - 1}")
    assert steps_of(directory)[-1] == bad - 1
    state = state_of(directory)
    assert int(state["round"]) == bad - 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state["weights"]))
    assert [row["round"] for row in rows_of(directory)] == list(range(1, bad))
    assert not (directory / "summary.json").exists()


# --- many runs, real photographs


def test_compare_writes_one_table(finished, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    rest = [*COMMAND[1:], f"--out={out}"]
    file = tmp_path / "table.md"
    methods = [FEDETF.removeprefix("--method="), "fedavg"]
    assert main.compare([*methods, "--to", str(file), "--", *rest]) == 0
    text = file.read_text()
    assert "fedjax-nc compare" in text and "--seeds 0 1" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines == [line for line in capsys.readouterr().out.splitlines() if line[:1] == "|"]
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    summaries = [
        json.loads((directory_of(out, COMMAND, s) / "summary.json").read_text()) for s in (0, 1)
    ]
    values = [100 * s["global_accuracy"] for s in summaries]
    mean = f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
    assert lines[2].startswith(f"| `{methods[0]}` | {mean} |")
    assert lines[3].startswith("| `fedavg` | ")
    # `all` leaves out what this network cannot do, and says why
    two = {name: catalogue.bases()[name] for name in ("fedavg", "fedalign")}
    monkeypatch.setattr(catalogue, "bases", lambda: two)
    assert main.compare(["all", "--", *rest]) == 0
    text = capsys.readouterr().out
    assert lines[3] in text and "- `fedalign`: fedalign narrows the last stage" in text
