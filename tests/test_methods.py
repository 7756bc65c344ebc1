"""Specifications, the catalogue, and factories called in Python."""

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from fedjax_nc import methods
from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Phase
from fedjax_nc.methods.entry import from_function

FOLDER = Path(registry.__file__).parent
ROOT = Path(__file__).parents[1]
ALL = [*catalogue.bases().values(), *catalogue.regularisers().values()]


def entry_id(entry):
    return f"{entry.kind}-{entry.name}"


# ---- the catalogue is the registry ---------------------------------------------------------


def test_every_decorated_factory_is_registered():
    found = {}
    for path in FOLDER.glob("*.py"):
        module = importlib.import_module(f"fedjax_nc.methods.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    kind = ast.unparse(decorator).split(".")[-1]
                    if kind in ("base", "regulariser"):
                        key = (kind, node.name.removesuffix("_reg"), str(path.resolve()))
                        found[key] = getattr(module, node.name)
    ours = {k: v for k, v in registry.FACTORIES.items() if Path(k[2]).parent == FOLDER.resolve()}
    assert found == ours
    assert {(e.kind, e.name, e.origin) for e in ALL} == set(found)


@pytest.mark.parametrize("entry", ALL, ids=entry_id)
def test_manual_page(entry):
    assert entry.sections.get("Paper") and entry.sections.get("Uploads")
    assert entry.venue and entry.venue in entry.sections["Paper"]
    assert entry.summary.endswith(".")
    assert entry.help.keys() == entry.hyper.keys()


@pytest.mark.parametrize("entry", ALL, ids=entry_id)
def test_source_and_function_say_the_same(entry):
    factory = registry.factory_of(entry)
    assert from_function(factory, entry.kind, entry.origin)._replace(load=entry.load) == entry


@pytest.mark.parametrize("name", catalogue.bases())
def test_method_is_named_by_its_specification(name):
    method = registry.build(name)
    assert method.name == name and bool(method.finetune) == (name not in ("local", "centralised"))
    assert all(isinstance(p, Phase) for p in method.phases)


def numbers(entry):
    return [k for k, v in entry.hyper.items() if type(v) in (int, float)]


@pytest.mark.parametrize(
    "entry, key", [(e, k) for e in ALL for k in numbers(e)], ids=lambda x: getattr(x, "name", x)
)
def test_no_factory_takes_a_negative_number(entry, key):
    factory = registry.factory_of(entry)
    with pytest.raises(UserError, match=key):
        made = factory(**{key: -1})
        made = made(registry.build("fedavg")) if entry.kind == "regulariser" else made
    with pytest.raises(UserError, match=r"give finite numbers|is int"):
        factory(**{key: float("inf")})


# ---- factories called in Python ------------------------------------------------------------


@pytest.mark.parametrize("entry", ALL, ids=entry_id)
def test_factories_name_their_methods(entry):
    factory = registry.factory_of(entry)
    with_it = {"form": "linear"} if "refresh" in entry.hyper else {}  # what that belongs to
    more = {k: v + 1 for k, v in entry.hyper.items() if type(v) is int}
    for hyper in ({}, with_it | more):
        method = factory(**hyper)
        method = method(methods.scaffold()) if entry.kind == "regulariser" else method
        words = ", ".join(f"{k}={v!r}" for k, v in hyper.items())
        spec = f"{entry.name}({words})" if words else entry.name
        assert method.name == ("scaffold | " if entry.kind == "regulariser" else "") + spec
        assert method.name == registry.build(method.name).name


def test_names_of_composed_methods():
    assert methods.fd(beta=0.5)(methods.fedavg()).name == "fedavg | fd(beta=0.5)"
    assert methods.fd(beta=np.float32(0.5))(methods.fedavg()).name == "fedavg | fd(beta=0.5)"
    assert methods.fedprox(mu=np.int64(1)).name == "fedprox(mu=1.0)"
    assert methods.moon_reg()(methods.fedprox(mu=0.01)).name == "fedprox | moon"
    assert methods.feddr_plus().name == "feddr_plus"  # although it is made of two others
    with pytest.raises(
        UserError, match="unknown hyperparameter of fedprox 'my': did you mean 'mu'"
    ):
        methods.fedprox(my=1)
    with pytest.raises(TypeError, match="positional"):
        methods.fedprox(0.1)


def test_every_factory_is_in_the_module():
    names = [e.function for e in ALL]
    assert len(set(names)) == len(names) and set(names) <= set(dir(methods))
    for entry in ALL:
        assert getattr(methods, entry.function) is registry.factory_of(entry)
    assert not set(names) & {path.stem for path in FOLDER.glob("*.py")}
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        methods.fedavgg  # noqa: B018


def test_editors_see_every_factory():
    imports = [n for n in ast.walk(ast.parse((FOLDER / "__init__.py").read_text()))]
    seen = {
        (Path(str(n.module).replace(".", "/")).stem, alias.name)
        for n in imports
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
        if str(n.module).startswith("fedjax_nc.methods.")
    }
    assert seen == {(e.family, e.function) for e in ALL}


def test_one_factory_costs_one_import():
    code = "import sys; from fedjax_nc import methods; before = set(sys.modules); methods.fedavg; "
    code += "print(sorted(m for m in sys.modules if m.startswith('fedjax_nc.methods.')))"
    code += "; print('jax' in before)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, jax_before = done.stdout.splitlines()
    assert "averaging" in loaded and "personal" not in loaded and jax_before == "False"


# ---- a notebook ----------------------------------------------------------------------------


@pytest.fixture
def cell(monkeypatch):
    """Runs the code of a notebook's cell."""
    notebook = types.ModuleType("notebook")  # as __main__ of a notebook, it has no file
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    exec("from fedjax_nc import methods", vars(notebook))
    exec("from fedjax_nc.methods.registry import base, regulariser", vars(notebook))
    yield lambda code: exec(code, vars(notebook))
    catalogue.forget("notebook")


def test_a_cell_defines_a_method(cell):
    cell("@base\ndef mine(*, a: float = 1.0):\n    return methods.fedprox(mu=a)")
    assert registry.build("mine(a=2) | fd").phases[0].terms[1].weight == 2.0 * 0.9
    assert registry.build("mine(a=2) | fd").name == "mine(a=2.0) | fd"
    entry = catalogue.bases()["mine"]
    assert (entry.summary, entry.sections, entry.venue, entry.paper) == ("", {}, "", "")
    assert entry.origin == entry.family == "notebook" and methods.mine().name == "mine"
    cell("@base\ndef mine(*, b: int = 3):\n    return methods.fedavg()")  # the cell, edited
    assert registry.build("mine(b=4)").name == "mine(b=4)"
    assert len(registry.build("mine").phases[0].terms) == 1


def test_a_cell_replaces_nothing_built_in(cell):
    with pytest.raises(UserError, match=r"'fedavg' is defined in .*averaging.py and in notebook"):
        cell("@base\ndef fedavg():\n    return methods.fedper()")
    assert registry.build("fedavg").personal == ()
    with pytest.raises(UserError, match="mine in notebook: 'a' is no keyword with a default"):
        cell("@base\ndef mine(a):\n    return methods.fedavg()")
    with pytest.raises(UserError, match="'a' = None: a hyperparameter is a number"):
        cell("@base\ndef mine(a=None):\n    return methods.fedavg()")


def test_annotations_of_a_cell(cell):
    cell(
        "from __future__ import annotations\nfrom typing import Literal\n"
        "@base\ndef mine(*, a: Literal['x', 'y'] = 'x', b: Literal[1, 2] = 1, c: 'any text' = '',"
        " d: Literal['only'] = 'only', e: tuple = (1, 'a')):\n    return methods.fedavg()"
    )
    assert catalogue.choices_of("mine") == {"a": ("x", "y"), "b": (1, 2), "d": ("only",)}
    assert registry.build("mine(a='y', b=2, e=(2, 'b'))").name == "mine(a='y', b=2, e=(2, 'b'))"
    with pytest.raises(UserError, match="unknown b of mine '3': choose from 1, 2"):
        registry.build("mine(b=3)")


# ---- specification strings -----------------------------------------------------------------


def test_parse():
    first, second = catalogue.parse("dot_regression|  fd( beta = 0.5 )")
    assert (first.entry.name, first.kwargs) == ("dot_regression", {})
    assert (second.entry.name, second.kwargs) == ("fd", {"beta": 0.5})
    assert second.entry.kind == "regulariser" and second.entry.family == "distillation"


@pytest.mark.parametrize(
    "spec, overrides, expected",
    [
        ("fedprox", {}, "fedprox"),
        ("fedprox(mu=0.01)", {}, "fedprox"),  # a default is left out
        ("fedprox(mu=1)", {}, "fedprox(mu=1.0)"),
        ("fedprox", {"mu": 0.5}, "fedprox(mu=0.5)"),
        ("fedprox(mu=0.1)", {"mu": 0.2}, "fedprox(mu=0.2)"),
        ("dot_regression|fd(beta=0.5)", {}, "dot_regression | fd(beta=0.5)"),
        ("dot_regression | fd", {"beta": 0.7}, "dot_regression | fd(beta=0.7)"),
        ("fedetf(dim=8,gamma=2)", {}, "fedetf(gamma=2.0, dim=8)"),
        ("scaffold", {"adaptive": False}, "scaffold(adaptive=False)"),
    ],
)
def test_with_hyper(spec, overrides, expected):
    canonical = catalogue.with_hyper(spec, overrides)
    assert canonical == expected
    assert catalogue.with_hyper(canonical, {}) == expected
    assert registry.build(canonical).name == expected


def test_hyper_of():
    values = catalogue.hyper_of("fedetf(gamma=0.5) | moon(tau=0.2)")
    assert values["gamma"] == (0.5, "strength of the class counts in the loss.")
    assert values["tau"][0] == 0.2 and values["beta"][0] == 0.9 and values["cycles"][0] == 20
    assert "tau" not in catalogue.hyper_of("moon | moon")  # two pieces have one: say which
    assert catalogue.hyper_of("fedavg") == {}


@pytest.mark.parametrize(
    "spec, words",
    [
        ("fedetv", "unknown method 'fedetv': did you mean 'fedetf'? choose from"),
        ("fedavg | fdd", "unknown regulariser 'fdd': did you mean 'fd'?"),
        ("fd", "unknown method 'fd'"),
        ("fedavg | fedprox", "unknown regulariser 'fedprox'"),
        ("fedprox(my=1)", "unknown hyperparameter of fedprox 'my': did you mean 'mu'?"),
        ("fedavg(mu=1)", "'fedavg' has no hyperparameters, 'mu' was given"),
        ("fedprox(mu='a')", "hyperparameter mu of fedprox is float, 'a' was given"),
        ("fedprox(mu=True)", "is float, True was given"),
        ("moon(dim=2.5)", "hyperparameter dim of moon is int, 2.5 was given"),
        ("fedprox(0.1)", "cannot read method 'fedprox(0.1)'"),
        ("fedprox(mu=1, mu=2)", "cannot read method"),
        ("fedprox(mu=open('x'))", "cannot read method"),
        ("fedavg |", "cannot read method"),
        ("", "cannot read method"),
        ("fedavg | fd | fd", "called 'fd'"),
        ("fedprox | prox", "called 'prox'"),
        ("fedavg | fd(beta=1.5)", "beta = 1.5 must be between 0 and 1"),
        ("fedavg | prox(beta=-0.1)", "beta=-0.1 of prox: give zero or more"),
        ("feddyn(alpha=0.0)", "alpha = 0.0: give a number above zero"),
        ("fedfm(tau=0.0)", "tau = 0.0: give a number above zero"),
        ("fedavg | ccvr(samples=0)", "samples = 0: give a number above zero"),
        ("fedala(share=1.5)", "give a share above 0, at most 1"),
        ("fedrep(epochs='fedbab')", "did you mean 'fedbabu'?"),
        ("fedetf(resume=True)", "resume=True belongs to finetune='code'"),
        ("fedetf(projector=False, projector_bias=False)", "belongs to a projector"),
        ("fedgela(projector_bias=False)", "projector_bias=False belongs to form='feddr'"),
        (
            "fedgela(form='feddr', temperature=0.5)",
            "temperature=0.5 has no effect with form='feddr'",
        ),
        ("fedgela(form='feddr', clip=0.0)", "clip=0.0 has no effect with form='feddr': give one"),
        ("fedetf(balanced=False, gamma=2.0)", "gamma=2.0 has no effect with balanced=False"),
        ("fedetf(projector=False, dim=8)", "dim=8 has no effect with projector=False"),
        ("fedblade(decorr='none', beta=1.0)", "beta=1.0 has no effect with decorr='none'"),
        ("fedexp(decay=0.0)", "decay = 0.0: give a number above zero"),
        ("feddw(refresh=0)", "refresh = 0: give a number above zero"),
        ("feddw(refresh=2)", "refresh=2 belongs to form='linear'"),
        ("fedper | dw(refresh=2, form='linear')", "refresh=2 needs one head for all"),
        ("ditto(plain=False, rule='fedbabu')", "plain=False belongs to rule='official'"),
        ("fedexp(rule='feddr', decay=0.998)", "decay=0.998 belongs to rule='official': give one"),
        ("fedexp(rule='feddecorr', decay=0.9)", "decay=0.9 belongs to rule='official': give one"),
        ("feddyn(relative=True, weights='size')", "relative=True belongs to weights='equal'"),
        ("feddyn(relative=True, weights='mixed')", "relative=True belongs to weights='equal'"),
        ("apfl(alpha=1.5)", "alpha = 1.5 of apfl: give a share from 0 to 1"),
        ("fedetf(scale=0.0)", "scale = 0.0: give a number above zero"),
        ("fedavg-tf", "cannot read method 'fedavg-tf'"),
    ],
)
def test_errors_say_what_to_do(spec, words):
    with pytest.raises(UserError) as caught:
        registry.build(spec)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_ambiguous_override():
    with pytest.raises(UserError, match=r"several pieces of .* take 'beta'"):
        catalogue.with_hyper("fedavg | fd | prox", {"beta": 0.5})
