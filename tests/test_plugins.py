"""Files outside the package: what they register, when they are imported, how they fail."""

import hashlib
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedjax_nc import plugins
from fedjax_nc.data import catalogue as data_catalogue
from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.models import catalogue as model_catalogue

ROOT = Path(__file__).parents[1]
ANGLE = '''
"""A penalty on features, and a base method."""

from typing import Literal

from fedjax_nc.methods import registry
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Method, Regulariser, Term, add
from fedjax_nc.methods.registry import base

STRENGTH = 0.5


@registry.regulariser
def angle(*, mu: float = STRENGTH, shifts: tuple[float, ...] = (0.0, 1.0)) -> Regulariser:
    """Keeps features where they were.

    Args:
      mu: how strongly; below zero it drives them away.
    """
    return lambda method: add(method, Term("angle", lambda c: c.out.features.sum(), weight=mu))


@base
def plain(*, rule: Literal["a", "b"] = "a", rounds: int = 3, wide: bool = False) -> Method:
    """FedAvg under another name."""
    return fedavg()
'''


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    plugins.forget()
    yield
    plugins.forget()


@pytest.fixture
def write(tmp_path):
    def write(text, name="angles.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def fails(*names):
    with pytest.raises(UserError) as caught:
        plugins.read(names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_without_importing(write):
    path = write(ANGLE)
    code = f"""
        import sys
        from fedjax_nc import plugins
        from fedjax_nc.methods import catalogue
        plugins.read([{path!r}])
        print(sorted({{"jax", "numpy"}} & set(sys.modules)))
        print(catalogue.with_hyper("plain | angle", {{"mu": -1, "rule": "b"}}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "plain(rule='b') | angle(mu=-1.0)"]


def test_entries_are_as_built_in_ones(write):
    path = write(ANGLE)
    plugins.read([path])
    entry = catalogue.regularisers()["angle"]
    assert entry.hyper == {"mu": 0.5, "shifts": (0.0, 1.0)} and entry.family == "angles"
    assert entry.help == {"mu": "how strongly; below zero it drives them away."}
    assert entry.summary == entry.paper == "Keeps features where they were." and entry.venue == ""
    assert entry.origin == path
    assert catalogue.bases()["plain"].choices == {"rule": ("a", "b")}
    assert catalogue.hyper_of("plain | angle(mu=2)")["mu"][0] == 2.0
    with pytest.raises(UserError, match="unknown regulariser 'angel': did you mean 'angle'"):
        catalogue.parse("fedavg | angel")
    plugins.forget()
    assert "angle" not in catalogue.regularisers() and "plain" not in catalogue.bases()


def test_builds(write):
    plugins.read([write(ANGLE)])
    method = registry.build("plain(rounds=4) | angle(mu=-2, shifts=(1, 2.5)) | fd")
    assert method.name == "plain(rounds=4) | angle(mu=-2.0, shifts=(1.0, 2.5)) | fd"
    assert [t.name for t in method.phases[0].terms] == ["cross_entropy", "angle", "fd"]
    assert method.phases[0].terms[1].weight == -2.0 * 0.9


@pytest.mark.parametrize(
    "decorator, words",
    [
        ("base", "from fedjax_nc.methods.registry import base"),
        ("registry.base", "from fedjax_nc.methods import registry"),
        ("fnc.methods.registry.base", "import fedjax_nc.methods.registry; fnc = fedjax_nc"),
    ],
)
def test_any_spelling_of_the_decorator(write, decorator, words):
    text = f"{words}\nfrom fedjax_nc.methods.averaging import fedavg\n\n"
    plugins.read([write(f"{text}@{decorator}\ndef mine(a: float = 1.0):\n    return fedavg()\n")])
    assert catalogue.bases()["mine"].hyper == {"a": 1.0}
    assert registry.build("mine(a=2)").name == "mine(a=2.0)"


def test_the_same_file_twice_and_a_changed_one(write):
    path = write(ANGLE)
    plugins.read([path, path])
    plugins.load()
    first = registry.factory_of(catalogue.bases()["plain"])
    plugins.read([path])
    plugins.load()
    assert registry.factory_of(catalogue.bases()["plain"]) is first  # imported once
    write(
        ANGLE.replace("mu: float = STRENGTH", "mu: float = 0.75").replace("def plain", "def other")
    )
    plugins.read([path])
    assert catalogue.regularisers()["angle"].hyper["mu"] == 0.75
    assert "plain" not in catalogue.bases()
    assert registry.build("other | angle").phases[0].terms[1].weight == 0.75


def test_record(write, monkeypatch, tmp_path):
    path = write(ANGLE)
    write(ANGLE.replace("def angle", "def bend").replace("def plain", "def level"), "bends.py")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.read([path, "bends"])
    sums = [
        hashlib.sha256((tmp_path / f).read_bytes()).hexdigest() for f in ("angles.py", "bends.py")
    ]
    assert plugins.record() == [
        {"path": path, "sha256": sums[0]},
        {"module": "bends", "sha256": sums[1]},
    ]
    assert "bends" not in sys.modules
    plugins.load()
    assert "bends" in sys.modules
    assert registry.build("level | bend").name == "level | bend"
    del sys.modules["bends"]


def test_neighbours_are_found(write):
    write("WEIGHT = 0.125\n", "neighbour_of_angles.py")
    plugins.read(
        [
            write(
                ANGLE.replace("weight=mu", "weight=w")
                + "\nfrom neighbour_of_angles import WEIGHT as w\n"
            )
        ]
    )
    assert registry.build("fedavg | angle").phases[0].terms[1].weight == 0.125


def test_entry_points(write, tmp_path, monkeypatch):
    write(ANGLE, "installed_angles.py")
    (tmp_path / "angles-1.0.dist-info").mkdir()
    write("Metadata-Version: 2.1\nName: angles\nVersion: 1.0\n", "angles-1.0.dist-info/METADATA")
    points = "angles-1.0.dist-info/entry_points.txt"
    write("[fedjax_nc.plugins]\nmine = installed_angles\n", points)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.read()
    plugins.read()
    assert [row["module"] for row in plugins.record()] == ["installed_angles"]
    assert "angle" in catalogue.regularisers()
    plugins.forget()
    write("[fedjax_nc.plugins]\nmine = lost_angles\n", points)
    assert fails().endswith("is it installed? (entry point 'mine' of angles)")


# ---- mistakes ------------------------------------------------------------------------------


def test_missing(write, tmp_path, monkeypatch):
    assert "there is no such Python file" in fails(str(tmp_path / "nothing.py"))
    assert "there is no such Python file" in fails(str(tmp_path))
    assert "there is no such Python module: is it installed?" in fails("no_such_module.at_all")
    assert "there is no such Python module" in fails("sys")
    write(ANGLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert fails("angles").endswith("give the file, angles.py")


@pytest.mark.parametrize(
    "text, words",
    [
        ("x = 1\n", "registers nothing: decorate a function with fedjax_nc.base"),
        ("def f(:\n", "angles.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\0\n", "Error: source code string cannot contain null bytes"),
        ("@base\ndef f(*, a): ...\n", "f in {path}, line 2: 'a' is no keyword with a default"),
        ("@base\ndef f(a=1, **b): ...\n", "'b' is no keyword with a default"),
        ("@base\ndef f(a=1, /): ...\n", "'a' is no keyword with a default"),
        ("@base\ndef f(*, a=1 + g()): ...\n", "line 2: the default of 'a' is computed"),
        ("@base\ndef f(*, a=None): ...\n", "'a' = None: a hyperparameter is a number, True or"),
        ("@base\ndef f(*, a={1: 2}): ...\n", "'a' = {1: 2}: a hyperparameter is a number"),
        (
            "@base\ndef fedavg(): ...\n",
            "'fedavg' is defined in {package}/averaging.py and in {path}",
        ),
    ],
)
def test_mistakes_in_a_file(write, text, words):
    path = write(text)
    package = Path(inspect.getfile(registry)).parent
    said = fails(path)
    assert words.replace("{path}", path).replace("{package}", str(package)) in said
    assert not plugins.record() and "f" not in catalogue.bases()


def test_two_files_with_one_name(write):
    one, two = write(ANGLE), write(ANGLE.replace("def plain", "def other"), "two.py")
    plugins.read([one])
    said = fails(two)
    assert said == f"regulariser 'angle' is defined in {one} and in {two}: rename one of them"
    assert "other" not in catalogue.bases() and len(plugins.record()) == 1


@pytest.mark.parametrize(
    "end, words",
    [
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_exceptions_name_the_line(write, end, words):
    path = write(f"{ANGLE}\n{end}\n")
    line = Path(path).read_text().splitlines().index(end.splitlines()[0]) + 1
    plugins.read([path])
    for run in (plugins.load, lambda: registry.build("fedavg | angle")):  # and again
        with pytest.raises(UserError) as caught:
            run()
        assert str(caught.value) == f"plugin {path}, line {line}: {words}"


def test_another_librarys_decorator(write):
    plugins.read([write("base = lambda f: f\n@base\ndef mine(): ...\n")])
    with pytest.raises(UserError, match="decorated with a 'base' of another library"):
        registry.build("mine")


@pytest.mark.parametrize(
    "kind, returned, words",
    [
        ("base", "3", "mine in .* returns int: return a Method"),
        (
            "regulariser",
            "registry.build('fedavg')",
            "returns Method: return a function of a Method",
        ),
        ("regulariser", "lambda method: None", "makes NoneType of a method: make a Method"),
    ],
)
def test_factories_that_return_something_else(write, kind, returned, words):
    text = f"from fedjax_nc.methods import registry\n\n@registry.{kind}\ndef mine():\n"
    plugins.read([write(f"{text}    return {returned}\n")])
    with pytest.raises(UserError, match=words):
        registry.build("mine" if kind == "base" else "fedavg | mine")


# ---- datasets and models -------------------------------------------------------------------

RECORDS = """
from fedjax_nc.data import catalogue
from fedjax_nc.models.catalogue import register_model

CLASSES = 3

def letters():
    return 1, 2, 3, 4

catalogue.register_dataset(
    "letters", classes=CLASSES, shape=(8, 8, 1), train=10, test=5, load=letters
)
net = register_model("net", module=letters, summary="a network", min_size=4)
"""


def test_datasets_and_models(write):
    path = write(RECORDS)
    plugins.read([path])
    letters, net = data_catalogue.DATASETS["letters"], model_catalogue.MODELS["net"]
    assert (letters.classes, letters.shape, letters.train) == (3, (8, 8, 1), 10)
    assert (net.summary, net.min_size, net.source) == ("a network", 4, path)
    for pending in (letters.load, net.module):
        with pytest.raises(UserError, match=f"letters of {path} is needed before the file is impo"):
            pending()
    plugins.load()
    letters, net = data_catalogue.DATASETS["letters"], model_catalogue.MODELS["net"]
    assert letters.load() == (1, 2, 3, 4) and net.module is letters.load
    plugins.forget()
    assert "letters" not in data_catalogue.DATASETS and "net" not in model_catalogue.MODELS


@pytest.mark.parametrize(
    "text, words",
    [
        ("register_dataset(letters())", "line 1: register_dataset: name is computed"),
        ("register_dataset('a', 3)", "register_dataset: write a name and keywords"),
        ("register_dataset(classes=3)", "register_dataset: write a name and keywords"),
        ("register_model(**model)", "register_model: write a name and keywords"),
        ("register_dataset('a', train=len(x))", "train is computed: write it as a literal"),
        ("x.register_dataset('a', classes=2)", "register_dataset: "),  # some are missing
        ("register_model('a', modul=f)", "modul"),
        ("register_model('mlp', module=f)", "model 'mlp' is already registered by the package"),
        (
            "register_dataset('digits', classes=2, shape=(1, 1, 1), train=1, test=1, load=f)",
            "register_dataset: dataset 'digits' exists already",
        ),
    ],
)
def test_mistakes_in_records(write, text, words):
    path = write(text + "\n")
    said = fails(path)
    assert words in said and path in said
    assert "a" not in data_catalogue.DATASETS and "a" not in model_catalogue.MODELS
    assert data_catalogue.DATASETS["digits"].classes == 10 and "mlp" in model_catalogue.MODELS


def test_two_files_with_one_model(write):
    one, two = write(RECORDS), write("register_model('net', module=f)\n", "two.py")
    plugins.read([one])
    said = fails(two)
    assert said.endswith(f"'net' is registered by {one} too: rename one of them") and two in said
    assert model_catalogue.MODELS["net"].source == one and len(plugins.record()) == 1
