"""Documents that are generated, or that promise commands, keep their word."""

import ast
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import fedjax_nc
from fedjax_nc import plugins, protocols, recipes
from fedjax_nc.cli import analyse, board, compare, curves, flags, main, manual, sweep_flags, table
from fedjax_nc.data import prepare as preparation
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.models.catalogue import MODELS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def blocks_of(text, language):
    """The code blocks of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_methods_manual_is_fresh():
    assert (ROOT / "docs/methods.md").read_text() == manual.markdown(), "run: make docs"


def test_manual_has_a_page_for_everything():
    pages = re.findall(r"^## (\w+)$", manual.markdown(), re.MULTILINE)
    assert pages == [*catalogue.bases(), *catalogue.regularisers()]


def lines_of(text, start):
    """Lines of a document that begin with a command, without their comments, as words."""
    found = re.findall(rf"^{start} (.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_scripts_of_all_pages_parse(monkeypatch):
    """Every line of run.py and compare.py in any page is understood by the real parser."""
    monkeypatch.chdir(ROOT)  # some write beside the pages
    count = 0
    for page in PAGES:
        text = page.read_text().replace("METHOD", "fedavg")
        for words in lines_of(text, r"python experiments/run\.py"):
            assert flags.parse(words).configs
            count += 1
        for words in lines_of(text, r"python experiments/compare\.py"):
            if "(the" not in words:  # "(the same)"
                check_compare(words)
                count += 1
    assert count >= 10
    assert lines_of(README, r"python experiments/run\.py") == [["--method=fedetf"]]


def check_compare(words):
    methods, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    for name in compare.parse(methods).methods:
        method = [] if name == "all" else [f"--method={name}"]
        assert flags.parse([*method, *rest]).configs


@pytest.fixture
def my_files(tmp_path, monkeypatch):
    """The directory that the README's commands speak of: a dataset, and the plugin it shows."""
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((30, 8, 8), np.uint8), np.arange(30) % 3
    np.savez("my_data.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    (plugin,) = (code for code in blocks_of(README, "python") if "@fnc.regulariser" in code)
    Path("my_file.py").write_text(plugin)
    yield
    plugins.forget()


@pytest.mark.parametrize("words", lines_of(README, "fedjax-nc"), ids=" ".join)
def test_readme_commands_parse(words, my_files, monkeypatch, capsys):
    """Every fedjax-nc line of the README is understood by the command's own parser."""
    name, *rest = words
    if name == "run":
        assert flags.parse(rest).configs
    elif name == "compare":
        check_compare(rest)
    elif name == "sweep":
        assert all(flags.parse(list(p.argv)).configs for p in sweep_flags.parse(rest).points)
    elif name == "analyse":
        assert analyse.parse(rest).runs
    elif name == "curves":
        assert curves.parse(rest).to
    elif name == "table":
        asked = table.parse(rest)
        assert asked.diff or recipes.get(asked.recipe).cells(asked.scale, only=asked.cells)
    elif name == "board":
        assert board.parse(rest).to == "board.html"
    elif name == "prepare":
        asked = []
        monkeypatch.setattr(preparation, "prepare", lambda *a, **k: asked.append(a) or "there")
        assert main.main(words) == 0 and asked
    else:
        assert main.main(words) == 0 and len(capsys.readouterr().out) > 200


def test_readme_names_every_command():
    assert {words[0] for words in lines_of(README, "fedjax-nc")} == set(main.COMMANDS)


def test_readme_plugin_is_a_regulariser(my_files):
    plugins.read(["my_file.py"])
    method = registry.build("fedavg | angle(beta=0.5)")
    assert [term.name for term in method.phases[0].terms] == ["cross_entropy", "angle"]
    assert [term.weight for term in method.phases[0].terms] == [0.5, 0.5]


def test_readme_shows_the_example():
    code = (ROOT / "experiments/examples/ten_lines.py").read_text().split('"""\n\n')[1]
    assert code in blocks_of(README, "python")


def test_readme_leads_with_fidelity():
    """In its first paragraph, with the numbers of that page."""
    page = (ROOT / "docs/fidelity.md").read_text()
    ((runs, names),) = re.findall(r"^(\d+) runs of (\d+) methods and regularisers\.$", page, re.M)
    lead = " ".join(README.split("\n\n")[1].split())
    assert f"[{runs} runs of {names} of its methods and regularisers](docs/fidelity.md)" in lead


def test_readme_counts():
    counts = {
        "methods": len(catalogue.bases()),
        "regularisers": len(catalogue.regularisers()),
        "papers": len(protocols.PROTOCOLS) - 1,  # `quick` is nobody's
        "networks": len(MODELS),
        "datasets": len(DATASETS),
    }
    for what, count in counts.items():
        found = re.findall(rf"(\d+) {what}", README)
        assert found and set(found) == {str(count)}, what


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/python.md"], ids=str)
def test_pages_use_public_names(page):
    names = set(re.findall(r"\bfnc\.(\w+)", page.read_text()))
    assert len(names) > 5 and names <= set(fedjax_nc.PUBLIC)


def test_type_checkers_see_the_public_names():
    """What is imported for type checkers alone is what is public, from the same places."""
    (block,) = (n for n in parsed(ROOT / "fedjax_nc/__init__.py").body if isinstance(n, ast.If))
    seen = {}
    for node in block.body:
        for alias in node.names:
            seen[alias.asname or alias.name] = (
                f"{node.module}.{alias.name}",
                node.module,
                alias.name,
            )
    assert seen.keys() == fedjax_nc.PUBLIC.keys()
    for name, (module, parent, attribute) in seen.items():
        assert fedjax_nc.PUBLIC[name] in (module, f"{parent}:{attribute}"), name


def test_walk_passes_what_exists():
    """Every path of the walk exists, and the names in parentheses behind it are defined there."""
    text = " ".join((ROOT / "docs/architecture.md").read_text().split())
    paths = re.findall(r"`([\w/.-]+?(?:\.py|/))`(?: \(((?:`\w+`(?:, )?)+)\))?", text)
    assert len(paths) > 30
    for name, inside in paths:
        path = next(
            (base / name for base in (ROOT / "fedjax_nc", ROOT) if (base / name).exists()), None
        )
        assert path, name
        defined = (
            {getattr(node, "name", "") for node in ast.walk(parsed(path))} if inside else set()
        )
        assert set(re.findall(r"\w+", inside)) <= defined, (name, inside)


def parsed(path):
    return ast.parse(path.read_text())


def test_picture_of_layers_is_fresh():
    tree = ElementTree.parse(ROOT / "docs/layers.svg")
    (shown,) = tree.iter("{http://purl.org/dc/elements/1.1/}description")
    assert shown.text == runpy.run_path(str(ROOT / "docs/layers.py"))["text"](), "run: make docs"


@pytest.mark.slow
def test_python_guide_runs(tmp_path, monkeypatch):
    """The code of the guide from top to bottom; what it says about the results holds."""
    monkeypatch.chdir(tmp_path)
    guide = ModuleType("python_guide")
    monkeypatch.setitem(sys.modules, "python_guide", guide)
    seen = []
    for code in blocks_of((ROOT / "docs/python.md").read_text(), "python"):
        exec(compile(code, "python.md", "exec"), vars(guide))
        seen.append(vars(guide).get("result"))
    first = seen[0]
    assert first.curves["global_accuracy"].shape == (2, 4) and first.config.local.lr == 0.05
    assert "collapse" in guide.numbers and str(guide.report).startswith("fedconfident")
    assert guide.again.directory.is_dir() and guide.last.shape == (2,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedprox.pdf", "runs"]
    assert [one.state for one in guide.found] == ["finished"] * 2
    assert guide.method.name == "fedavg | fd(beta=0.5)"
    assert all(len(r.config.dataset) == len("arrays@12345678") for r in seen[7:9])
    catalogue.forget("python_guide")


def test_readme_first_screen_has_two_commands():
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    commands = [line for line in first_block.splitlines()[1:] if line.strip()]
    targets = [re.match(r"make (\w+)", command) for command in commands]
    makefile = (ROOT / "Makefile").read_text()
    assert len(commands) == 2
    assert all(t and re.search(rf"^{t[1]}:", makefile, re.MULTILINE) for t in targets)


def test_no_registry_host_is_named():
    files = [*ROOT.glob("constraints*.txt"), *ROOT.glob("benchmarks/**/requirements*.txt")]
    assert len(files) >= 3
    for file in files:
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        pinned = [re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", line) for line in lines]
        assert lines and all(pinned), file
