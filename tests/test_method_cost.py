"""The methods' cost beside FedAvg: every case can be built, and a tiny run writes its table."""

import argparse
import json
import sys
from pathlib import Path

import jax
import jaxtyping
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import method_cost


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    """Lowering puts ArgInfo where a State has arrays; the command's settings end with the test."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setenv("XLA_FLAGS", "")


@pytest.mark.parametrize("method", method_cost.STEP)
def test_every_case_can_be_built(method):
    model = method_cost.MODEL.get(method, "cnn")
    job = method_cost.make_job(method, model, batch_size=4, batches=2)
    weights = jax.eval_shape(job.task.trainer.model.init, jax.random.key(0))
    out, _ = jax.eval_shape(
        lambda w, x: job.task.trainer.model.apply(w, x, train=False),
        weights,
        jax.ShapeDtypeStruct((4, 32, 32, 3), "float32"),
    )
    features = {"cnn": 128, "resnet8": 64, method_cost.WIDE: 1280}
    assert out.features.shape == (4, features[model])
    assert set(method_cost.MEMORY) | set(method_cost.MODEL) <= set(method_cost.STEP)


def test_tiny_run(tmp_path, capsys):
    path = tmp_path / "cost.json"
    flags = ["--model=mlp", "--batch_size=4", "--batches=1", "--repeats=2", f"--out={path}"]
    assert method_cost.main([*flags, "--methods", "feddw", "fedprox"]) == 0
    printed = capsys.readouterr().out
    assert "targets not met:" in printed
    result = json.loads(path.read_text())
    assert set(result) == {"command", "date", "machine", "method_cost"}
    rows = result["method_cost"]["rows"]
    assert [row["method"] for row in rows] == ["feddw", "fedprox"]
    assert [row["step_limit"] for row in rows] == [1.1, None]
    assert [row["memory_limit"] for row in rows] == [1.1, None]
    for row in rows:
        assert row["model"] == "mlp" and len(row["step_ratios"]) == 2
        for field in ("step_ms", "step_ratio", "round_ratio", "memory_mb", "memory_ratio"):
            assert row[field] > 0, field


def test_terms(tmp_path, capsys, monkeypatch):
    path = tmp_path / "terms.json"
    flags = ["--model=mlp", "--batch_size=4", "--repeats=2", f"--out={path}", "--terms"]
    assert method_cost.main([*flags, "--methods", "fedprox"]) == 0
    assert "ms per" in capsys.readouterr().out
    rows = json.loads(path.read_text())["method_cost"]["terms"]
    assert [r["term"] for r in rows] == ["all together", "cross_entropy", "prox", "network"]
    # a term costs the whole less what the others take, in the same turn
    times = {"all together": [9.0, 5.0, 6.0], "prox": [9.0, 2.0, 5.0], "network": [9.0, 1.0, 1.0]}
    left = {name: iter(seconds) for name, seconds in times.items()}
    made = {name: lambda name=name: next(left[name]) for name in times}
    monkeypatch.setattr(method_cost.terms, "programs", lambda job, phase: made)
    job = method_cost.make_job("fedprox", "mlp", batch_size=4, batches=1)
    rows = method_cost.terms.measure({("fedprox", "mlp"): job}, repeats=2)
    assert [r["ms"] for r in rows] == [5500.0, 2000.0, 1000.0]


def test_ratios_are_to_fedavg_in_the_same_turn(monkeypatch):
    """Whoever comes first: FedAvg takes 1, 2, 3, ... seconds and the method thrice that."""
    turns = {}

    def compiled(method):
        def seconds():
            turns[method] = turns.get(method, 0) + 1
            return turns[method] * (1.0 if method == "fedavg" else 3.0)

        return seconds, seconds, 10.0 if method == "fedavg" else 15.0

    monkeypatch.setattr(method_cost, "make_job", lambda method, *_, **size: method)
    monkeypatch.setattr(method_cost, "compiled", compiled)
    flags = argparse.Namespace(model="mlp", methods=["moon"], batch_size=4, batches=2, repeats=4)
    (row,) = method_cost.measure(flags)
    assert row["step_ratios"] == [3.0] * 4 and row["round_ratio"] == 3.0
    assert row["memory_ratio"] == 1.5
    assert method_cost.verdict(row, "step") == ["1.80x", "not met"]
    assert method_cost.verdict(row, "memory") == ["", ""]


def test_bad_input(tmp_path, capsys):
    out = tmp_path / "x.json"
    for flags in (["--repeats=0"], ["--methods", "fedavgg"], ["--methods", "fedavg | align"]):
        assert method_cost.main([*flags, f"--out={out}"]) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert not out.exists()
