"""The models' cost: a tiny run in this process, and what its table says."""

import sys
from pathlib import Path

import jaxtyping

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import models


def test_tiny_run(monkeypatch, capsys):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # `lower` has no arrays
    monkeypatch.setenv("COLUMNS", "120")
    found = models.measure("mlp", batch_size=4, batches=1, repeats=1)
    assert found["parameters"] == 641_618 and len(found["seconds"]) == 1
    assert min(found[k] for k in ("images_per_second", "gflops", "memory_mb")) > 0
    row = {"model": "mlp", "mflops": 0.64, "cold": 61.0, "cold_cpu": 30.0, "warm": 1.0} | found
    models.show([row])
    printed = capsys.readouterr().out
    assert "641,618" in printed and "warm: mlp (cold)" in printed


def test_bad_input_is_one_line(capsys):
    assert models.main(["--models", "resnet21"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown model 'resnet21': did you mean")
    assert models.main(["--repeats=0"]) == 2
