"""Whole runs with clients that fail, and with more clients than examples."""

import dataclasses
import shutil
from functools import partial

import numpy as np
import pytest
from runs import PLAIN, assert_same_run, directory_of, rows_of, steps_of, train

import fedjax_nc as fnc
from fedjax_nc import config, tables
from fedjax_nc.cli import flags, main
from fedjax_nc.data import partition
from fedjax_nc.errors import UserError
from fedjax_nc.host import assemble, records
from fedjax_nc.host.passes import Cost
from fedjax_nc.io import left as on_disk

RUN = {
    "dataset": "digits",
    "model": "mlp",
    "rounds": 4,
    "data": {"limit": 300, "partition": "iid"},
    "local": {"epochs": 3},
    "evaluation": {"personal": False, "finetune": False, "every": 4},
    "progress": False,
}
FEW = {"clients": 8, "participants": 6}
ODD = ["--federation.dropout=0.3", "--federation.straggler=0.5", "--federation.nan=skip"]
COMMAND = ["--method=scaffold", "--dataset=digits", "--model=mlp", "--data.limit=300", *PLAIN, *ODD]
COMMAND += ["--rounds=4", "--local.epochs=3", "--evaluation.every=4", "--evaluation.last=1"]
COMMAND += ["--federation.clients=8", "--federation.participants=6"]
COMMAND += ["--execution.checkpoint_every=2"]


def test_resumed_run_has_the_same_clients_fail(tmp_path):
    whole = train(tmp_path / "whole", COMMAND)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    stopped = directory_of(tmp_path / "cut", COMMAND)
    (stopped / "summary.json").unlink()
    shutil.rmtree(stopped / "ckpt" / "4")
    assert steps_of(stopped) == [2]
    assert_same_run(train(tmp_path / "cut", COMMAND), whole)
    rows, summary = rows_of(whole), on_disk.summary(whole / "summary.json")
    for name in ("dropped", "stragglers", "diverged"):
        assert summary[name] == sum(row[name] for row in rows)
    assert summary["dropped"] and summary["stragglers"] and summary["diverged"] == 0
    sent = 4 * 6 - summary["dropped"]
    assert summary["bytes_up"] == sent * summary["bytes_up_per_client"]
    assert summary["bytes_down"] == 4 * 6 * summary["bytes_down_per_client"]


def test_streamed_examples_change_nobody():
    odd = FEW | {"dropout": 0.3, "straggler": 0.5}
    here, there = (
        fnc.run("moon", federation=odd, execution={"pool_mb": mb, "client_state_mb": mb}, **RUN)
        for mb in (4000, 0)
    )
    for left, right in zip(here.rows[0], there.rows[0], strict=True):
        assert "diverged" not in left
        for name in ("dropped", "stragglers"):
            assert left[name] == right[name]
        np.testing.assert_allclose(left["loss"], right["loss"], rtol=1e-3)


def test_a_run_of_diverging_clients_goes_on_and_says_so(tmp_path, capfd):
    argv = [word for word in COMMAND if word not in ODD]
    diverging = ["--local.lr=1e38", "--local.clip=0"]
    directory = train(tmp_path, [*argv, *diverging, "--federation.nan=skip"])
    rows = rows_of(directory)
    assert [(row["diverged"], row["loss"]) for row in rows] == [(6, None)] * 4
    said = "seed 0: 24 of 24 answers were left out as not finite (--federation.nan=skip)"
    assert said in capfd.readouterr().err
    assert main.train([*argv, *diverging, f"--out={tmp_path}"]) == 2
    assert "the update is NaN or infinite" in capfd.readouterr().err


def test_who_never_answers_sends_nothing():
    evaluation = config.Evaluation(last=3, stop_at=0.5)
    people = config.Federation(10, participants=5, dropout=0.3)
    cfg = config.RunConfig(rounds=4, evaluation=evaluation, federation=people)
    rows = [
        {"round": n, "seconds": 1.0, "compiled": False, "dropped": n, "global_loss": 1.0}
        | {"global_accuracy": 0.2 * n}
        for n in range(1, 5)
    ]
    found = records.summarise(cfg, rows, traffic={"model": (100, 110)}, seeds=1, cost=Cost(2e6, 50))
    assert (found["dropped"], found["rounds_to_target"]) == (10, 3)
    assert (found["bytes_up"], found["bytes_up_to_target"]) == (1000, 900)
    assert (found["bytes_down"], found["bytes_down_to_target"]) == (2200, 1650)
    assert "10 clients, dropout 0.3, cnn" in tables.in_words(cfg)


def test_names_of_runs_stay():
    cfg = config.RunConfig()
    content = config.to_dict(cfg)
    for name in ("dropout", "straggler", "nan"):  # as an older version wrote it
        del content["federation"][name]
    assert config.identity(content) == config.identity(config.to_dict(cfg))
    assert config.from_dict(content) == cfg
    hashes = {config.config_hash(cfg)}
    for values in ({"dropout": 0.4}, {"straggler": 0.7}, {"nan": "skip"}):
        hashes.add(config.config_hash(config.changed(cfg, "federation", values=values)))
    assert len(hashes) == 4


# --- more clients than examples


@pytest.mark.parametrize(
    "options, held",
    [
        ({"partition": "iid"}, 300),
        ({"partition": "dirichlet", "rule": "fedetf"}, 300),
        ({"partition": "dirichlet", "rule": "feddw"}, 2000),  # example 0 for whoever has none
    ],
)
def test_more_clients_than_examples(options, held):
    cfg = dataclasses.replace(config.RunConfig(), dataset="digits", model="mlp")
    cfg = config.changed(cfg, "federation", values={"clients": 2000, "participants": 9})
    cfg = config.changed(cfg, "data", values=options | {"limit": 300, "client_test": "matched"})
    cfg = config.changed(cfg, "evaluation", values={"finetune": False})
    job = assemble.assemble(dataclasses.replace(cfg, method="fedavg"))
    assert sum(map(len, job.splits[0].train)) >= held
    empty = sum(not len(part) for part in job.splits[0].train)
    assert empty == 0 if held == 2000 else empty >= 1700
    told = f"{empty} of 2000 clients have no training data"
    assert [told in warning for warning in job.warnings] == [True] * (empty > 0)
    if empty:
        with pytest.raises(UserError, match=told):
            assemble.assemble(dataclasses.replace(cfg, method="fedavg"), strict=True)


def test_a_run_of_mostly_empty_clients(tmp_path):
    """Nobody has tests of its own either: their accuracy is not a number."""
    options = RUN | {"data": {"limit": 12, "partition": "iid", "client_test": "split"}}
    many = {"clients": 40, "participants": 20, "dropout": 0.2, "straggler": 0.5}
    result = fnc.run("scaffold", federation=many, out=tmp_path, **options)
    assert np.isfinite(result.summary["global_accuracy"])
    assert np.isnan(result.summary["client_accuracy"])


@pytest.mark.parametrize(
    "deal, said",
    [
        (partition.shards, "class 0 has 30 train samples for 400 shards: use fewer clients"),
        (partition.classes_per_client, "class 0 has 30 samples for 400 clients that hold it"),
        (partial(partition.quantity_skew, alpha=1.0), "2000 clients are too many for 300 samples"),
        (partial(partition.dirichlet, alpha=1.0, rule="lda"), "use at most 30"),
    ],
)
def test_partitions_in_which_nobody_may_be_empty(deal, said):
    with pytest.raises(UserError, match=said):
        deal(np.arange(300) % 10, 2000)


# --- what is refused


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--federation.dropout=1"], "--federation.dropout=1.0: give a share from 0 to below 1"),
        (["--federation.dropout=-0.1"], "--federation.dropout=-0.1: give a share"),
        (["--federation.dropout=nan"], "--federation.dropout=nan: give a share"),
        (["--federation.straggler=1.5"], "--federation.straggler=1.5: give a share from 0 to 1"),
        (["--federation.nan=ignore"], "--federation.nan"),
        (
            ["--federation.straggler=0.5", "--local.epochs=1"],
            "--federation.straggler has no effect with --local.epochs=1",
        ),
        (
            ["--federation.straggler=0.5", "--local.steps=1"],
            "--federation.straggler has no effect with --local.steps=1",
        ),
        (
            ["--federation.dropout=0.5", "--method=centralised"],
            "--federation.dropout has no effect with --method=centralised",
        ),
    ],
)
def test_refused(refused, argv, said):
    assert said in refused(*argv)


def test_taken():
    for argv in (["--federation.straggler=0.5", "--local.steps=5"], ODD):
        assert flags.parse(argv).configs
    (cfg,) = flags.parse(["--method=centralised", *ODD], beside=True).configs
    assert cfg.federation == dataclasses.replace(config.Federation(1, 1), norm=cfg.federation.norm)
