"""Training that stops at a target accuracy, and what it took to get there."""

import json

import pytest
import runs
from runs import rows_of, steps_of

import fedjax_nc as fnc
from fedjax_nc import config, metrics
from fedjax_nc.cli import flags, main, run
from fedjax_nc.host import records, session, track
from fedjax_nc.host.passes import Cost
from fedjax_nc.host.reporting import Quiet
from fedjax_nc.io import rundir

SMALL = {
    "dataset": "digits",
    "model": "mlp",
    "data": {"limit": 300, "partition": "iid"},
    "local": {"epochs": 1},
    "federation": {"clients": 4, "participants": 2},
}
PLAIN = {"personal": False, "finetune": False}


@pytest.fixture(scope="module")
def whole():
    """Six rounds of two seeds, with nothing to stop them."""
    return fnc.run("fedavg", rounds=6, seeds=(0, 1), evaluation=PLAIN, progress=False, **SMALL)


def curves(result):
    return [metrics.curve(rows) for rows in result.rows]


def test_cost_until_a_target():
    curve = [(2, 0.3), (4, 0.6), (6, 0.5), (8, 0.7)]
    assert metrics.to_target(curve, 0.6, per_round={"x": 3}) == {"round": 4, "x": 12}
    assert metrics.to_target(curve, 0.61, per_round={"x": 3}) == {"round": 8, "x": 24}
    assert metrics.to_target(curve, 0.8, per_round={"x": 3}) == {"round": None, "x": None}


def test_summary_of_a_run_with_a_target():
    evaluation = config.Evaluation(every=2, last=3, stop_at=0.5)
    cfg = config.RunConfig(
        rounds=9, evaluation=evaluation, federation=config.Federation(10, participants=5)
    )
    rows = [{"round": n, "seconds": 1.0, "compiled": False} for n in range(1, 5)]
    for row, accuracy in ((rows[1], 0.2), (rows[3], 0.6)):
        row |= {"global_accuracy": accuracy, "global_loss": 1.0}
    moved = {"model": (100, 110), "control": (7, 0)}
    found = records.summarise(cfg, rows, traffic=moved, seeds=1, cost=Cost(2e6, 50))
    assert found["rounds"] == 4 and found["bytes_up"] == 4 * 5 * 107
    assert found["global_accuracy"] == pytest.approx(0.4)  # of rounds 2 and 4, of the last three
    assert found["bytes_per_part"] == {"model": [100, 110], "control": [7, 0]}
    assert found["stop_at"] == 0.5 and found["rounds_to_target"] == 4
    assert found["bytes_up_to_target"] == 4 * 5 * 107
    assert found["bytes_down_to_target"] == 4 * 5 * 110
    assert found["mflops_to_target"] == 4 * 2.0 and found["stored_parameters"] == 50
    found = records.summarise(cfg, rows[:2], traffic=moved, seeds=1, cost=Cost(2e6, 50))
    assert found["rounds_to_target"] is None and found["mflops_to_target"] is None


def test_a_target_is_another_run_and_none_is_the_same():
    cfg = config.RunConfig()
    content = config.to_dict(cfg)
    del content["evaluation"]["stop_at"]  # as an older version wrote it
    assert config.identity(content) == config.identity(config.to_dict(cfg))
    aimed = config.changed(cfg, "evaluation", values={"stop_at": 0.6})
    assert config.config_hash(aimed) != config.config_hash(cfg)


def test_stops_where_the_target_is_reached_and_stays_finished(whole, tmp_path):
    """The rounds until then are those of a run without a target; seeds stop each for itself."""
    target = curves(whole)[0][3][1]
    expected = [next((n for n, a in c if a >= target), None) for c in curves(whole)]
    assert expected[0] is not None and expected[0] <= 4
    words = {"rounds": 6, "evaluation": PLAIN | {"stop_at": target}, "progress": False, **SMALL}
    result = fnc.run("fedavg", seeds=(0,), out=tmp_path, **words)
    summary, (first, *_) = result.summary, expected
    assert summary["rounds"] == summary["rounds_to_target"] == len(result.rows[0]) == first
    assert curves(result)[0] == curves(whole)[0][:first]
    assert (
        summary["bytes_up_to_target"]
        == summary["bytes_up"]
        == whole.summary["bytes_up"] * first / 6
    )
    assert summary["final_accuracy"] >= target
    directory = result.directory
    assert directory is not None and steps_of(directory)[-1] == first
    assert rundir.finished(directory)
    # killed before its summary was written, it trains no further
    rows = rows_of(directory)
    (directory / "summary.json").unlink()
    again = fnc.run("fedavg", seeds=(0,), out=tmp_path, **words)
    assert rows_of(directory) == rows and again.summary["rounds_to_target"] == first
    assert json.loads((directory / "summary.json").read_text())["rounds"] == first


def test_seeds_side_by_side_stop_together_and_count_apart(whole):
    best = min(max(a for _, a in c) for c in curves(whole))
    words = {"rounds": 6, "evaluation": PLAIN | {"stop_at": best - 0.005}, **SMALL}
    result = fnc.run("fedavg", seeds=(0, 1), seeds_parallel=True, progress=False, **words)
    reached = [s["rounds_to_target"] for s in result.summaries]
    assert None not in reached
    for found, curve in zip(reached, curves(result), strict=True):
        assert found == next(n for n, a in curve if a >= best - 0.005)
    assert {s["rounds"] for s in result.summaries} == {max(reached)}
    assert result.summary["rounds_to_target"] == sum(reached) / 2


def test_a_missed_target_is_told_in_one_line(whole):
    notes = []

    class Told(Quiet):
        def note(self, message):
            notes.append(message)

    cfg = config.changed(whole.config, "evaluation", values={"stop_at": 0.9999})
    request = session.Request((cfg,), out=None)
    (outcome,) = session.run_seeds(request, Told())
    (line,) = notes
    assert line.startswith("seed 0: accuracy 0.9999 (--evaluation.stop_at) was not reached in 6")
    assert outcome.summary["rounds_to_target"] is None
    assert len(outcome.rows) == 6


def test_a_table_of_results_has_rounds_to_targets(whole):
    first, second = ([a for _, a in c] for c in curves(whole))
    low, high = min(first[0], second[0]), max(first + second)
    text = fnc.table(whole, form="csv", targets=(low, high))
    header, row = (line.split(",") for line in text.splitlines())
    assert header[-4] == f"rounds to {100 * low:g} %" and row[-4:-2] == ["1", "1.0x"]
    reached = [next((n for n, a in c if a >= high), None) for c in curves(whole)]
    bound = sum(6 if n is None else n for n in reached) / 2
    assert row[-2:] == [f"{bound:.0f}{'+' * (None in reached)}", "-" if None in reached else "1.0x"]
    assert whole.table(form="csv", targets=(low, high)) == text
    with pytest.raises(
        fnc.UserError, match=r"targets=0.5: give a tuple of shares, as \(0.2, 0.3\)"
    ):
        whole.table(targets=0.5)


def test_stop_at_is_short_for_its_flag(monkeypatch):
    long = flags.parse(["--evaluation.stop_at=0.6"])
    for words in (["--stop_at=0.6"], ["--stop_at", "0.6"], ["--stop-at=0.6"]):
        short = flags.parse(words)
        assert short == long and "evaluation.stop_at" in short.given
    asked = []

    def execute(one):
        asked.append(one)
        raise fnc.UserError("enough")

    monkeypatch.setattr(run, "execute", execute)
    assert main.main(["compare", "fedavg", "--", "--stop_at=0.6"]) == 2
    assert asked[0].configs[0].evaluation.stop_at == 0.6


def test_seeds_of_different_length_share_their_first_rounds(whole):
    first, second = whole.outcomes
    shorter = fnc.Result((first, second._replace(rows=second.rows[:4])))
    assert list(shorter.rounds) == [1, 2, 3, 4]
    assert shorter.curves["global_accuracy"].shape == (2, 4)


def test_tracked_clients_and_examples_are_chosen(whole, monkeypatch):
    job = whole.outcomes[0].job
    assert list(track.spread(job, 2)) == [0, 3] and list(track.spread(job, 9)) == [0, 1, 2, 3]
    asked = []
    monkeypatch.setattr(track.examples, "choose", lambda job, count: asked.append(count))
    track.make_track(job, track.Track(("spectrum",), examples=20))
    assert asked == [20]
    with pytest.raises(fnc.UserError, match="track_clients=2 has no effect without track"):
        fnc.run("fedavg", track_clients=2)


def test_flags_of_tracking_reach_it(tmp_path, monkeypatch):
    asked, spread, choose = [], track.spread, track.examples.choose
    monkeypatch.setattr(track, "spread", lambda job, n: asked.append(n) or spread(job, n))
    monkeypatch.setattr(track.examples, "choose", lambda job, n: asked.append(n) or choose(job, n))
    flags = ["--track=consistency", "--track_every=1", "--track_clients=2", "--track_examples=30"]
    quick = [*runs.DATA, *runs.FEW, *runs.PLAIN, "--rounds=1"]
    runs.train(tmp_path, ["--method=fedavg", *quick, *flags])
    assert sorted(asked) == [2, 30]
