"""Documents that are generated, or that promise commands, keep their word."""

import re
import shlex
from pathlib import Path

from fedjax_nc.cli import flags, manual
from fedjax_nc.methods import catalogue

ROOT = Path(__file__).parents[1]


def test_methods_manual_is_fresh():
    assert (ROOT / "docs/methods.md").read_text() == manual.markdown(), "run: make docs"


def test_manual_has_a_page_for_everything():
    pages = re.findall(r"^## (\w+)$", manual.markdown(), re.MULTILINE)
    assert pages == [*catalogue.bases(), *catalogue.regularisers()]


def test_readme_commands_parse():
    """Every run.py line of the README is understood by the real parser."""
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^python experiments/run\.py (.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        assert flags.parse(shlex.split(line)).configs


def test_readme_first_screen_has_two_commands():
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    commands = [line for line in first_block.splitlines()[1:] if line.strip()]
    targets = [re.match(r"make (\w+)", command) for command in commands]
    makefile = (ROOT / "Makefile").read_text()
    assert len(commands) == 2
    assert all(t and re.search(rf"^{t[1]}:", makefile, re.MULTILINE) for t in targets)


def test_no_registry_host_is_named():
    for file in (*ROOT.glob("constraints*.txt"), *ROOT.rglob("requirements.txt")):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        pinned = [re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", line) for line in lines]
        assert lines and all(pinned), file
