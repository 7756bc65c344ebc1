"""The worked example of CONTRIBUTING.md: in a copy of the package, and as a plugin."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SMALL = (
    "--dataset=digits",
    "--data.limit=300",
    "--rounds=2",
    "--federation.clients=4",
    "--federation.participants=4",
    "--evaluation.no-personal",
)


@pytest.fixture
def run(tmp_path):
    """Runs the command with the package of a folder, and returns what it prints."""

    def run(package, *argv):
        return subprocess.run(
            [sys.executable, "-m", "fedjax_nc", *argv],
            cwd=tmp_path,
            env={"PYTHONPATH": str(package), "PATH": "", "COLUMNS": "200"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    return run


@pytest.fixture
def train(run, tmp_path):
    """Trains a method, and returns its losses and what the run directory says of itself."""

    def train(package, spec, *argv):
        out = tmp_path / "runs"
        run(package, "run", f"--method={spec}", *SMALL, *argv, f"--out={out}")
        (name,) = out.rglob("metrics.jsonl")
        losses = [json.loads(line)["global_loss"] for line in name.read_text().splitlines()]
        facts = json.loads((name.parent / "environment.json").read_text())
        shutil.rmtree(out)
        return losses, facts

    return train


@pytest.mark.slow
def test_worked_example_is_a_method(run, train, tmp_path):
    shutil.copytree(ROOT / "fedjax_nc", tmp_path / "copy" / "fedjax_nc")
    blocks = re.findall(r"at the end of `(fedjax_nc/\S+?)`.*?```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    for name, code in blocks:
        with open(tmp_path / "copy" / name, "a") as file:
            file.write("\n\n" + code)
    (plugin,) = re.findall(r"say `smooth.py`.*?```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "smooth.py").write_text(plugin)
    own = "--plugin=smooth.py"
    copy = tmp_path / "copy"

    assert re.search(r"\bfedsmooth\b", run(copy, "list", "methods"))
    listed = run(ROOT, "list", "methods", own)
    assert re.search(r"\bmysmooth\b", listed) and "fedsmooth" not in listed
    assert "--hp.share" in run(ROOT, "run", "--method=mysmooth", own, "--help")

    fedavg, facts = train(ROOT, "fedavg")
    assert "plugins" not in facts
    none, _ = train(copy, "fedsmooth(share=0.0)")
    assert none == pytest.approx(fedavg, rel=1e-4)
    inside, _ = train(copy, "fedsmooth(share=0.2) | fd")
    outside, facts = train(ROOT, "mysmooth(share=0.2) | fd", own)
    assert inside != fedavg and outside == pytest.approx(inside, rel=1e-6)
    (recorded,) = facts["plugins"]
    assert recorded["path"] == str(tmp_path / "smooth.py") and len(recorded["sha256"]) == 64
