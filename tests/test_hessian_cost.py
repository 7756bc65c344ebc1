"""The benchmark of Hessian-vector products: a tiny run and its table, and bad input."""

import json
import sys
from pathlib import Path

import jaxtyping
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import chart
import hessian as benchmark
import verdict

from fedjax_nc.errors import UserError


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    """No images from disk; the command's settings end with the test."""

    def missing(*_, **__):
        raise UserError("not here")

    monkeypatch.setattr(benchmark.datasets, "load", missing)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # `lower` has no arrays
    for name in ("NPROC", "XLA_FLAGS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "")


def test_tiny_run(tmp_path, capsys):
    path = tmp_path / "hessian.json"
    flags = ["--model=mlp", "--images=7", "--batch_size=4", "--products=6", "--chunk=3"]
    assert benchmark.main([*flags, "--repeats=1", f"--out={path}"]) == 0
    assert "6 products in one program" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert set(result) == {"command", "date", "machine", "hessian"}
    found = result["hessian"]
    assert found["of"].startswith("random") and found["parameters"] == 641_618
    (row,) = found["rows"]
    assert row["ratio"] == row["product"] / row["gradient"] > 0
    assert row["ratio_in_program"] * row["gradient"] * 6 == pytest.approx(found["seconds"])
    torch = row | {"name": "torch", "over_ours": 2.0, "over_ours_in_program": 0.5}
    found["rows"].append(torch)
    (sheet,) = chart.sheets(result)
    assert len(sheet.rows) == 3
    lines = verdict.sheet({"hessian": result}).rows
    assert [line[2] for line in lines[:2]] == ["2.00x", "0.50x"] and len(lines) == 4


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--model=resnet21", "did you mean"),
        ("--model=bilstm", "reads no 32x32 images"),
        ("--products=1", "above one"),
        ("--conv=wino", "winograd"),
        ("--against=touch", "torch"),
    ],
)
def test_bad_input_is_one_line(capfd, tmp_path, flag, said):
    assert benchmark.main([flag, "--images=4", f"--out={tmp_path / 'x.json'}"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and said in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_peer_that_is_not_there(capfd, tmp_path):
    flags = ["--model=mlp", "--images=4", "--products=2", "--against=torch"]
    for python, said in (("/nowhere", "does not run"), (sys.executable, "has no torch")):
        out = f"--out={tmp_path / 'x.json'}"
        assert benchmark.main([*flags, f"--peer_python={python}", out]) == 2
        assert said in capfd.readouterr().err.splitlines()[-1]
