"""Who may import whom inside the package, and a few rules that keep it readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedjax_nc"
FILES = sorted(PACKAGE.rglob("*.py"))

# Exhaustive: a layer imports itself and what is listed, nothing else of the package.
# A catalogue is a list of names and facts that costs no import, so anything on top may read it.
MAY_IMPORT = {
    "errors": set(),
    "inputs": {"errors"},
    "typed": {"errors"},
    "config": {"errors", "inputs", "typed"},
    "processes": {"errors"},
    "devices": {"errors", "processes"},
    "types": set(),
    "tree": set(),
    "linalg": set(),
    "flops": set(),
    "losses": {"linalg"},
    "models": {"types", "linalg", "errors"},
    "io": {"config", "errors", "inputs", "processes", "types"},
    "data": {"types", "errors", "inputs", "config", "io.files", "processes"},
    "methods": {"types", "tree", "linalg", "losses", "errors", "inputs"},
    "plugins": {
        *(
            "errors",
            "inputs",
            "typed",
            "data.catalogue",
            "methods.catalogue",
            "methods.entry",
            "models.catalogue",
        ),
    },
    "train": {"methods", "data.stream", "types", "tree", "config", "losses", "processes"},
    "analysis": {"train", "losses", "linalg", "tree", "types"},
    "figures": set(),
    "metrics": set(),
    "protocols": {
        *("config", "errors", "methods.catalogue", "data.catalogue", "data.spec"),
        "models.catalogue",
    },
    "effects": {"config", "errors", "data.catalogue", "models.catalogue"},
    "recipes": {"config", "errors", "methods.catalogue", "protocols"},
    "statistics": set(),
    "host": {
        *("config", "errors", "types", "tree", "flops", "models", "data", "methods", "train"),
        *("analysis", "io", "figures", "protocols", "metrics", "processes"),
    },
    "study": {
        *(
            "inputs",
            "host",
            "analysis",
            "figures",
            "io",
            "config",
            "errors",
            "linalg",
            "losses",
            "methods",
        ),
        *("train", "tree", "types", "metrics"),
    },
    "tables": {"config", "errors", "metrics"},
    "sweep": {"config", "errors", "inputs", "io", "methods.catalogue", "tables"},
    "paper_table": {"config", "errors", "metrics", "recipes", "statistics", "tables"},
    "paper_forms": {"errors", "paper_table", "statistics", "tables"},
    "cli": {
        *("host", "study", "io", "figures", "config", "errors", "devices", "protocols", "effects"),
        *(
            "inputs",
            "plugins",
            "data.catalogue",
            "data.prepare",
            "methods.catalogue",
            "models.catalogue",
        ),
        *("metrics", "processes", "sweep", "tables", "recipes", "paper_table", "paper_forms"),
    },
    "result": {"host", "study", "io", "figures", "tables", "config", "errors", "types"},
    "api": {
        *("result", "host", "study", "cli", "config", "devices", "effects", "plugins", "processes"),
        *("protocols",),
        *("data", "methods", "train", "errors", "types"),
    },
    "testing": {
        *("config", "devices", "errors", "tree", "types", "losses", "models", "data", "methods"),
        *("plugins", "train", "io", "host"),
    },
    "__main__": {"cli"},
}
ONLY_STANDARD_LIBRARY = (
    "errors.py",
    "inputs.py",
    "typed.py",
    "config.py",
    "io/files.py",
    "io/lock.py",
    "host/stopping.py",
    "methods/__init__.py",
    "methods/catalogue.py",
    "methods/entry.py",
    "plugins.py",
    "data/catalogue.py",
    "data/builtin.py",
    "data/npz.py",
    "data/spec.py",
    "models/catalogue.py",
    "protocols/__init__.py",
    "protocols/base.py",
    "protocols/quick.py",
    "protocols/fedetf.py",
    "protocols/feddw.py",
    "protocols/feddr_plus.py",
    "protocols/fedalign.py",
    "protocols/fedblade.py",
    "effects.py",
    "recipes/__init__.py",
    "recipes/base.py",
    "recipes/words.py",
    "recipes/scales.py",
    "recipes/fedetf.py",
    "recipes/feddw.py",
    "recipes/feddr_plus.py",
    "recipes/fedalign.py",
    "recipes/fedblade.py",
    "study/options.py",
    "tables.py",
)
ONLY_JAX = ("types.py", "tree.py", "linalg.py")


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def tree_of(path):
    return ast.parse(path.read_text())


def imported(path):
    """Dotted names a file imports, wherever in it; `from a import b` counts as a.b."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(path):
    """What a file imports of the package, as layer or layer.module."""
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == PACKAGE.name:
            yield ".".join(parts[1:3])


def test_table_covers_the_package():
    assert {layer_of(p) for p in FILES} - {"__init__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [p for p in FILES if p != PACKAGE / "__init__.py"], ids=name_of)
def test_imports_only_what_its_layer_may(path):
    layer = layer_of(path)
    allowed = MAY_IMPORT.get(layer, set()) | {layer}
    wrong = {n for n in inside(path) if n not in allowed and n.split(".")[0] not in allowed}
    assert not wrong, f"{name_of(path)} may not import {sorted(wrong)}"


def test_table_allows_nothing_upwards():
    order = list(MAY_IMPORT)
    for layer, below in MAY_IMPORT.items():
        for name in below:
            assert order.index(name.split(".")[0]) < order.index(layer), (layer, name)


def test_table_lists_nothing_in_vain():
    used = {layer: set() for layer in MAY_IMPORT}
    for path in FILES:
        used.get(layer_of(path), set()).update(inside(path))
    for layer, below in MAY_IMPORT.items():
        names = used[layer] | {n.split(".")[0] for n in used[layer]}
        assert below <= names, layer


@pytest.mark.parametrize("name", ONLY_STANDARD_LIBRARY)
def test_imports_only_the_standard_library(name):
    tops = {n.split(".")[0] for n in imported(PACKAGE / name)} - {PACKAGE.name}
    assert tops <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ONLY_JAX)
def test_imports_only_jax(name):
    tops = {n.split(".")[0] for n in imported(PACKAGE / name)}
    assert tops - sys.stdlib_module_names <= {"jax", "jaxtyping", "optax"}


def test_written_shapes_are_checked_in_tests(pytestconfig):
    """Every module that writes shapes of arrays is named in pyproject.toml, or its folder is."""
    *names, _ = pytestconfig.getoption("jaxtyping_packages").split(",")
    writing = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if any(name.split(".")[0] == "jaxtyping" for name in imported(path))
    }
    assert all(any(f"{m}.".startswith(f"{name}.") for name in names) for m in writing), writing
    assert all(any(f"{m}.".startswith(f"{name}.") for m in writing) for name in names), names


def test_only_models_import_flax():
    users = {name_of(p) for p in FILES if any(n.split(".")[0] == "flax" for n in imported(p))}
    assert users
    assert all(name.startswith("models/") for name in users)


def test_nobody_uses_flax_convolutions():
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("Conv"):
                assert not ast.unparse(node.value).endswith(("nn", "linen")), name_of(path)
        assert not any(n.startswith("flax.linen.Conv") for n in imported(path)), name_of(path)


def test_nobody_asks_for_a_method_by_name():
    from fedjax_nc.methods import catalogue

    names = {*catalogue.bases(), *catalogue.regularisers()}
    for path in FILES:
        if name_of(path).startswith("methods/registry"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                texts = {s.value for s in sides if isinstance(s, ast.Constant)}
                asked = any(ast.unparse(s).endswith(("method", "method.name")) for s in sides)
                where = f"{name_of(path)}:{node.lineno}"
                # FedETF's and FedDW's Dirichlet rules share their names with the methods, and
                # FedBlade chooses between two losses
                left = ast.unparse(node.left)
                assert not (names & texts) or left in ("rule", "cfg.rule", "kind"), where
                assert not asked, where


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_short_and_says_what_it_is(path):
    assert len(path.read_text().splitlines()) <= 400
    assert ast.get_docstring(tree_of(path))


def test_other_files_are_short():
    others = [
        p for folder in ("tests", "benchmarks", "docs") for p in (ROOT / folder).rglob("*.py")
    ]
    assert others and not [p for p in others if len(p.read_text().splitlines()) > 400]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=lambda p: p.name)
def test_experiments_are_thin(path):
    assert len(path.read_text().splitlines()) <= 120
    assert ast.get_docstring(tree_of(path))


LIGHT = (
    "cli.main",
    "cli.flags",
    "protocols",
    "config",
    "cli.console",
    "cli.sweep",
    "methods.catalogue",
    "data.catalogue",
    "models.catalogue",
    "models",
    "plugins",
    "recipes",
    "study.options",
)


def test_parsing_needs_no_jax():
    code = f"import sys, {', '.join(f'fedjax_nc.{name}' for name in LIGHT)}\n"
    code += "heavy = {'jax', 'numpy', 'flax', 'optax', 'orbax', 'matplotlib'}\n"
    code += "print(sorted(heavy & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def own_callables():
    """Parameters of the package's module-level functions and records, by module."""
    found = {}
    for path in FILES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = found.setdefault(module, set())
        for node in tree_of(path).body:
            record = isinstance(node, ast.ClassDef) and (
                any("NamedTuple" in ast.unparse(b) for b in node.bases)
                or any("dataclass" in ast.unparse(d) for d in node.decorator_list)
            )
            plain = isinstance(node, ast.FunctionDef) and not (
                node.args.vararg or any("jit" in ast.unparse(d) for d in node.decorator_list)
            )
            if record or plain:
                names.add(node.name)
    return found


def test_no_positional_arguments_past_the_second():
    """In calls of our own functions and records, as far as a name tells whose they are."""
    known, wrong = own_callables(), []
    for path in FILES:
        modules, names = {}, set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full, called = f"{node.module}.{alias.name}", alias.asname or alias.name
                    if full in known:
                        modules[called] = known[full]
                    elif alias.name in known.get(node.module, ()):
                        names.add(called)
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call) or len(node.args) < 3:
                continue
            if any(isinstance(a, ast.Starred) for a in node.args):
                continue
            f = node.func
            mine = isinstance(f, ast.Name) and f.id in names
            if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name):
                mine = f.attr in modules.get(f.value.id, ())
            if mine:
                wrong.append(f"{name_of(path)}:{node.lineno} {ast.unparse(f)}")
    assert not wrong, wrong


def test_formatting_is_left_to_the_formatter():
    """Except for a few literal tables."""
    word = "# fmt: " + "skip"
    folders = ("fedjax_nc", "tests", "benchmarks", "experiments", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sum(path.read_text().count(word) for path in files) < 60
