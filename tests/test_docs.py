"""Documents that are generated, or that promise commands, keep their word."""

import re
import shlex
from pathlib import Path

import pytest

from fedjax_nc.cli import analyse, compare, curves, flags, listing, manual, prepare
from fedjax_nc.methods import catalogue

ROOT = Path(__file__).parents[1]


def test_methods_manual_is_fresh():
    assert (ROOT / "docs/methods.md").read_text() == manual.markdown(), "run: make docs"


def test_manual_has_a_page_for_everything():
    pages = re.findall(r"^## (\w+)$", manual.markdown(), re.MULTILINE)
    assert pages == [*catalogue.bases(), *catalogue.regularisers()]


COMMAND = re.compile(
    r"^(?:python experiments/(\w+)\.py|(?:fedjax-nc|python -m fedjax_nc) (\w+)) (.*?)(?:\s+#.*)?$",
    re.MULTILINE,
)


def commands(path):
    """Every command in a document, as (name, words)."""
    for script, name, line in COMMAND.findall(path.read_text()):
        name = name or {"prepare_data": "prepare"}.get(script, script)
        if "(the same)" not in line:  # as the line above it
            yield name, shlex.split(line.replace("METHOD", "fedavg"))


def parsed(name, words):
    """The command as the real parser understands it."""
    if name == "run":
        return flags.parse(words)
    if name == "compare":
        split = words.index("--") if "--" in words else len(words)
        methods = [m for m in compare.parse(words[:split]).methods if m != "all"] or ["fedavg"]
        return [flags.parse([f"--method={m}", *words[split + 1 :]]) for m in methods]
    words = [f"{w}{i}" if w == "RUN_DIR" else w for i, w in enumerate(words)]
    modules = {"analyse": analyse, "curves": curves, "prepare": prepare, "list": listing}
    return modules[name].parse(words)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_shows_every_command():
    assert {"run", "compare", "curves", "analyse", "prepare"} <= {n for n, _ in commands(PAGES[0])}
    assert sum(name == "run" for name, _ in commands(PAGES[0])) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_of_documents_are_understood(page, monkeypatch):
    """By the real parsers, so that no document has a flag that is gone or has no effect."""
    monkeypatch.chdir(ROOT)
    for name, words in commands(page):
        assert parsed(name, words), (name, words)


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
