"""The scripts of experiments/examples run as they are, from any directory."""

import ast
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from importlib import util
from pathlib import Path

import numpy as np
import pytest

import fedjax_nc as fnc
from fedjax_nc import plugins
from fedjax_nc.cli import main
from fedjax_nc.io import records
from fedjax_nc.methods import catalogue

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "experiments/examples"
ANGLE = EXAMPLES / "own_regulariser.py"
CHANCE = 0.1  # of guessing one of ten digits


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    """Runs in another directory; what an example registers is gone after its test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    plugins.forget()
    catalogue.forget(str(ANGLE))


def script(name):
    """Runs a file as a program and returns the names it leaves."""
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_says_what_it_is():
    paths = sorted(EXAMPLES.glob("*.py"))
    assert len(paths) >= 4
    for path in paths:
        assert re.search(r"seconds|minute", ast.get_docstring(ast.parse(path.read_text())) or "")
        assert len(path.read_text().splitlines()) <= 50


def test_ten_lines(tmp_path, capsys, monkeypatch):
    """With fewer rounds: as it is, it runs from the wheel."""
    monkeypatch.setattr(fnc, "run", partial(fnc.run, rounds=4, evaluation={"personal": False}))
    results = script("ten_lines.py")["results"]
    code = (EXAMPLES / "ten_lines.py").read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    rows = re.findall(r"^\| `(.+?)` \| (\d+\.\d) ± \d", capsys.readouterr().out, re.MULTILINE)
    assert [name.replace("\\|", "|") for name, _ in rows] == [r.config.method for r in results]
    assert len(rows) == 3
    for result, (_, shown) in zip(results, rows, strict=True):
        assert result.config.data.alpha == 0.3 and result.config.data.partition == "dirichlet"
        assert result.curves["global_accuracy"].shape == (3, 4)
        assert abs(float(shown) - 100 * result.summary["global_accuracy"]) < 0.06
        assert result.summary["final_accuracy"] > 2 * CHANCE
        assert result.directory is None
    assert (tmp_path / "ten_lines.png").stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["ten_lines.png"]


def test_own_network(capsys):
    result = script("own_network.py")["result"]
    assert result.summary["global_accuracy"] > 5 * CHANCE
    assert re.fullmatch(r"arrays@[0-9a-f]{8}", result.config.dataset)
    assert re.fullmatch(r"Net@[0-9a-f]{8}", result.config.model)
    for statistics in result.weights.stats.values():
        assert np.abs(statistics["mean"]).max() > 0 and np.abs(statistics["var"] - 1).max() > 0
    assert "BatchNorm_1 running means (1, 32)" in capsys.readouterr().out


def test_own_loop_is_the_loop_of_run(capsys):
    script("own_loop.py")
    found = re.findall(r"round (\d+): .* accuracy (\S+), average (\S+)", capsys.readouterr().out)
    assert [int(number) for number, _, _ in found] == [5, 10, 15, 20, 25, 30]
    assert float(found[-1][2]) > 5 * CHANCE
    words = {"dataset": "digits", "rounds": 10, "evaluation": {"personal": False}}
    result = fnc.run("fedavg", progress=False, **words)
    expected = result.curves["global_accuracy"][0, [4, 9]]
    assert [accuracy for _, accuracy, _ in found[:2]] == [f"{x:.3f}" for x in expected]


def test_own_regulariser_by_python():
    angle = util.spec_from_file_location("own_regulariser", ANGLE)
    module = util.module_from_spec(angle)
    sys.modules["own_regulariser"] = module
    angle.loader.exec_module(module)
    fedavg = fnc.methods.fedavg()
    few = {"clients": 4, "participants": 2}
    words = {"dataset": "digits", "rounds": 3, "federation": few, "progress": False}
    plain, same, other = (
        fnc.run(method, **words)
        for method in (fedavg, module.angle(beta=1.0)(fedavg), module.angle(beta=0.5)(fedavg))
    )
    assert re.fullmatch(r"fedavg \| angle\(beta=0\.5\)@[0-9a-f]{8}", other.config.method)
    assert np.array_equal(plain.curves["global_loss"], same.curves["global_loss"])
    assert not np.array_equal(plain.curves["global_loss"], other.curves["global_loss"])
    turned = [result.curves["angle"].max() for result in (same, other)]
    assert 0 < turned[1] < turned[0] <= 2
    del sys.modules["own_regulariser"]


def test_own_regulariser_by_command(tmp_path):
    spec = "fedavg | angle(beta=0.8)"
    argv = [f"--plugin={ANGLE}", f"--method={spec}", "--dataset=digits", "--rounds=2"]
    assert main.main(["run", *argv, "--evaluation.no-personal", f"--out={tmp_path}"]) == 0
    (directory,) = tmp_path.glob("*/*/*/seed0")
    facts = json.loads((directory / "environment.json").read_text())
    checksum = hashlib.sha256(ANGLE.read_bytes()).hexdigest()
    assert facts["plugins"] == [{"path": str(ANGLE), "sha256": checksum}]
    assert f"method: {spec}" in (directory / "config.yaml").read_text()
    rows = records.read(directory / "metrics.jsonl")
    assert len(rows) == 2 and all(0 < row["angle"] < 2 for row in rows)


@pytest.mark.slow
def test_own_regulariser_as_a_script(capsys):
    results = script("own_regulariser.py")["results"]
    assert all(result.summary["global_accuracy"] > 3 * CHANCE for result in results)
    said = capsys.readouterr().out
    assert "`fedavg \\| angle@" in said and "fedavg | angle: " in said


def wheel_of(folder):
    """Builds the wheel from a copy of the sources, which keeps the checkout clean."""
    source = folder / "source"
    shutil.copytree(ROOT / "fedjax_nc", source / "fedjax_nc", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    how = ["--no-build-isolation"] if util.find_spec("hatchling") else []
    pip("wheel", *how, "--no-deps", f"--wheel-dir={folder}", str(source))
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel


ignore = shutil.ignore_patterns("__pycache__")


def pip(*words):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


def test_class_mixes():
    """The counts in the picture of FedDW's figure 4 are those of the examples."""
    made = runpy.run_path(str(EXAMPLES.parent / "papers/class_mixes.py"))
    labels = np.repeat(np.arange(4), (30, 20, 30, 10))
    (held,) = made["mix"](labels, 1, seed=3)
    counts = made["draw_counts"](np.bincount(labels), seed=3)
    assert len(set(held)) == len(held) and [*np.bincount(labels[held], minlength=4)] == [*counts]
    assert 0 < counts.sum() <= 30 and len(set(counts)) > 1
    both = np.stack([counts, made["draw_counts"](np.bincount(labels), seed=4)])
    figure = made["draw"](both, np.full((2, 4), 0.25), np.array([-0.5, 0.2]), title="x")
    assert len(figure.axes[0].texts) == 8  # a norm for every class of every mix


def test_class_mixes_are_trained(tmp_path):
    made = runpy.run_path(str(EXAMPLES.parent / "papers/class_mixes.py"))
    counts, vectors = made["train"]("digits", 2, epochs=1, out=str(tmp_path))
    assert counts.shape == (2, 10) and vectors.shape == (2, 10, 128)
    assert (counts[0] != counts[1]).any()
    for seed, directory in enumerate(sorted(tmp_path.glob("*/*/*/seed*"))):
        with np.load(directory / "partition.npz") as file:
            assert len(file["client0"]) == counts[seed].sum()


@pytest.mark.slow
def test_wheel_has_everything(tmp_path):
    """The wheel in an empty environment, which finds only the dependencies of this one.

    A line of a .pth file adds this environment's packages, but reads no .pth file there, by which
    the checkout would be found.
    """
    wheel = wheel_of(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python, command = (tmp_path / "env/bin" / name for name in ("python", "fedjax-nc"))
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    dependencies = [p for p in sys.path if p.endswith("site-packages") and Path(p) != ROOT]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    work = tmp_path / "work"
    work.mkdir()
    for name in ("ten_lines.py", "own_regulariser.py"):
        shutil.copy(EXAMPLES / name, work)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def said(*words):
        done = subprocess.run(words, cwd=work, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = said(python, "-c", "import fedjax_nc as f; print(f.__file__, f.__version__)").split()
    assert Path(where[0]).is_relative_to(packages) and where[1] in wheel.name
    for file in ("py.typed", "data/mnist5k.npz", "data/mnist5k.npz.license"):
        assert (packages / "fedjax_nc" / file).is_file(), file
    assert {"fedetf", "mnist5k", "resnet20"} <= set(said(command, "list").split())
    assert "fedetf on mnist5k" in said(command, "run", "--method=fedetf", "--rounds=2")
    assert list(work.glob("runs/mnist5k-classes2/fedetf/*/seed0/summary.json"))
    rows = re.findall(r"^\| `.+?` \| (\d+\.\d) ± \d", said(python, "ten_lines.py"), re.MULTILINE)
    assert len(rows) == 3 and min(map(float, rows)) > 300 * CHANCE
    spec = "fedavg | angle(beta=0.8)"
    few = ("--dataset=digits", "--rounds=2")
    said(command, "run", "--plugin=own_regulariser.py", f"--method={spec}", *few)
    assert list(work.glob("runs/digits-classes2/*angle*/*/seed0/summary.json"))
    code = "import own_regulariser as o, fedjax_nc as f; "
    code += "print(f.run(o.angle()(f.methods.fedavg()), dataset='digits', rounds=2))"
    assert "fedavg | angle" in said(python, "-c", code)
