"""The worked example of CONTRIBUTING.md, added to a copy of the package."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_worked_example_is_a_method(tmp_path):
    shutil.copytree(ROOT / "fedjax_nc", tmp_path / "fedjax_nc")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"at the end of `(fedjax_nc/\S+?)`.*?```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3  # a method touches at most three files
    for name, code in blocks:
        with open(tmp_path / name, "a") as file:
            file.write("\n\n" + code)

    def run(*argv):
        command = "import sys; from fedjax_nc.cli import main; sys.exit(main.train(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", command, *argv],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert re.search(r"\bfedsmooth\b", run("--list"))
    small = [
        "--dataset=digits",
        "--data.limit=300",
        "--rounds=2",
        "--federation.clients=4",
        "--federation.participants=4",
        "--evaluation.no-personal",
    ]
    losses = {}
    for spec in ("fedavg", "fedsmooth(share=0.0)", "fedsmooth(share=0.2) | fd"):
        run(f"--method={spec}", *small, f"--out={tmp_path / 'runs'}")
        (name,) = (tmp_path / "runs").rglob("metrics.jsonl")
        losses[spec] = [json.loads(line)["global_loss"] for line in name.read_text().splitlines()]
        shutil.rmtree(tmp_path / "runs")
    assert losses["fedsmooth(share=0.0)"] == pytest.approx(losses["fedavg"], rel=1e-4)
    assert losses["fedsmooth(share=0.2) | fd"] != losses["fedavg"]
