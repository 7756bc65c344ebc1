"""The contract can be broken: every one of these is refused, by the name of the property."""

import itertools
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc import losses, testing
from fedjax_nc.data.catalogue import DATASETS, register_dataset
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import SGD, Part, Phase, Term, add, each_phase, per_example
from fedjax_nc.testing import compare, contract, federation

FEDAVG = registry.build("fedavg")


def with_term(fn):
    """FedAvg with one more term."""
    return add(FEDAVG, Term("broken", fn))


def with_loss(fn):
    """FedAvg with another loss."""
    return FEDAVG._replace(phases=(Phase((Term("broken", fn),)),))


def refusal(check, *args, **options):
    """The sentence and the property by which something is refused."""
    with pytest.raises(AssertionError) as raised:
        check(*args, **options)
    text = str(raised.value)
    assert "\n" not in text
    return text


# ---- methods -------------------------------------------------------------------------------


def cross_entropy(c):
    return losses.cross_entropy(c.out.logits, c.batch.y)


def reads_padding(c):
    return jnp.mean(cross_entropy(c))


def counts_padding(c):
    return jnp.mean(jnp.where(c.batch.mask, cross_entropy(c), 0.0))


def rounds_to_float32(c):
    logits = c.out.logits.astype(jnp.float32)
    return losses.masked_mean(losses.cross_entropy(logits, c.batch.y), c.batch.mask)


def divides_by_absent_classes(c):
    weight = c.info.size / c.info.class_counts  # infinite
    chosen = jax.nn.one_hot(c.batch.y, len(weight)) * weight * jax.nn.log_softmax(c.out.logits)
    return losses.masked_mean(-jnp.sum(chosen, -1), c.batch.mask)


def remembering():
    """A term that is stronger each time Python comes by."""
    calls = itertools.count(1)
    return with_term(lambda c: next(calls) * jnp.sum(c.weights.params["head"]["bias"] ** 2))


def arriving():
    """A part that uploads how many clients came before, which a round of five starts anew."""
    calls = itertools.count()

    def place(size):
        return np.asarray(next(calls) % 5 * size, np.int32)

    def collect(finished):
        shape = jax.ShapeDtypeStruct((), jnp.int32)
        return jax.pure_callback(place, shape, finished.info.size).astype(float)

    zero = lambda setup: jnp.zeros((), float)  # noqa: E731
    part = Part("place", zero, collect=collect, reduce=lambda old, new, arrived: old + new)
    return add(FEDAVG, parts=(part,))


def weak():
    """A part whose first value is a Python number and whose later ones are arrays."""
    part = Part("rounds", lambda setup: 0.0, reduce=lambda old, _, arrived: old + arrived.weight)
    return add(FEDAVG, parts=(part,))


def dividing():
    """A server that divides by how often a class occurs, which may be never."""
    part = Part(
        "share",
        lambda setup: jnp.zeros(4),
        collect=lambda finished: finished.info.class_counts,
        reduce=lambda old, total, arrived: total / total,
    )
    return add(FEDAVG, parts=(part,))


@jax.custom_batching.custom_vmap
def one_by_one(x):
    return x


@one_by_one.def_vmap
def _(size, batched, x):
    return 1.001 * x, True


def not_at_once(c):
    return losses.masked_mean(cross_entropy(c), c.batch.mask) * one_by_one(c.info.size * 1.0)


def hopeless():
    """Fine-tuning whose loss is NaN."""
    return FEDAVG._replace(
        finetune=(Phase((Term("nan", lambda c: jnp.nan * cross_entropy(c)[0]),)),)
    )


BROKEN = {
    "keeps float64": (with_loss(rounds_to_float32), "rounded to float32 in test_testing.py, line"),
    "stays finite": (with_loss(divides_by_absent_classes), "uploads NaN or infinity: it has"),
    "trains": (each_phase(FEDAVG, optimizer=SGD(lr=0.0)), "'body' is trained and sent, and does"),
    "repeats": (remembering(), "traced again, the round is another program: '"),
    "compiles once": (weak(), "is traced again: shared/rounds was float64[] (weak) and is float64"),
    "reads no padding": (with_loss(reads_padding), "differs by up to"),
    "uploads sums": (arriving(), "in reverse order, place differs by up to"),
    "counts no padding": (with_loss(counts_padding), "filled up to 16 rows instead of 12, "),
    "learns from one example": (dividing(), "the server makes shared/share NaN or infinite"),
    "agrees under vmap": (with_loss(not_at_once), "run by 'vmap' instead of 'scan', "),
    "fine-tunes": (hopeless(), "of a personal model is NaN or infinite on the tests of client 0"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_method(what, monkeypatch):
    """Only this property is computed, which saves compiling for those before it."""
    monkeypatch.setattr(testing, "METHOD", {what: testing.METHOD[what]})
    method, words = BROKEN[what]
    text = refusal(testing.check_method, method)
    assert text.startswith(f"fedavg, '{what}': ") and words in text, text


def test_composition_is_refused():
    method = add(FEDAVG, per_example("composed", cross_entropy))
    composes = {"composes": testing.METHOD["composes"]}
    with pytest.raises(UserError, match="called 'composed'"):
        contract.check(composes, lambda: testing.Trial(method))


def test_error_of_a_method_is_passed_on():
    """With its own traceback and a note on what was being checked."""

    def fn(c):
        raise ValueError("broken term")

    with pytest.raises(ValueError, match="broken term") as caught:
        testing.check_method(with_term(fn))
    assert "while checking 'keeps float64' of fedavg" in caught.value.__notes__


# ---- networks ------------------------------------------------------------------------------


class Written(nn.Module):
    """A dense layer, then any function of its features and `train`."""

    fn: object

    @nn.compact
    def __call__(self, x, train):
        return self.fn(nn.Dense(6)(x.reshape(len(x), -1)), train)


def batch_normalised(x, train):
    return (x - x.mean(0)) / (x.std(0) + 1e-3) if train else x


def rounded(x, train):
    return nn.Dense(6, dtype=jnp.bfloat16)(x).astype(x.dtype)


def by_length(x, train):
    return x / jnp.sqrt(jnp.sum(x**2, -1, keepdims=True))  # zero by zero for constant inputs


def compared(x, train):
    return x if train else x - x.mean(0)


def forgetful(x, train):
    norm = nn.BatchNorm(use_running_average=not train, momentum=1.0)
    return norm(x)


def counting():
    calls = itertools.count(1)
    return lambda x, train: x * next(calls)


NETS = {
    "is built": (lambda x, train: x[:, None], "gives float64[2, 1, 6] for a batch of 2"),
    "keeps float64": (rounded, "rounded to bfloat16 in test_testing.py, line"),
    "reads no padding": (batch_normalised, "in the rows that fill up a batch, "),
    "tests row by row": (compared, "in tests with other rows in the batch, "),
    "updates statistics": (forgetful, "in training, 2 running statistics do not move"),
    "stays finite": (by_length, "with every input 0 and 0 rows in a batch of 8, "),
    "repeats": (counting(), "traced again, it is another program: '"),
}


@pytest.mark.parametrize("what", NETS)
def test_broken_network(what, monkeypatch):
    monkeypatch.setattr(testing, "MODEL", {what: testing.MODEL[what]})
    fn, words = NETS[what]
    text = refusal(testing.check_model, Written(fn), shape=(3, 2, 1))
    assert text.startswith(f"Written, '{what}': ") and words in text, text


def test_name_of_a_network():
    with pytest.raises(UserError, match="unknown model 'cn'"):
        testing.check_model("cn")


# ---- datasets ------------------------------------------------------------------------------


def four(classes=3, shape=(5, 4, 1), train=30, test=12):
    random = np.random.RandomState(0)
    x = [random.randint(0, 256, (n, *shape)).astype(np.uint8) for n in (train, test)]
    return [x[0], np.arange(train) % classes, x[1], np.arange(test) % classes]


@pytest.fixture
def register(monkeypatch):
    """Registers a dataset that is gone after the test."""
    monkeypatch.setattr("fedjax_nc.data.catalogue.DATASETS", dict(DATASETS))

    def add_dataset(load, **facts):
        facts = {"classes": 3, "shape": (5, 4, 1), "train": 30, "test": 12} | facts
        register_dataset("mine", load=load, **facts)

    return add_dataset


def changing():
    calls = itertools.count()
    return lambda: [np.roll(x, n, 0) for n in [next(calls)] for x in four()]


@pytest.mark.parametrize(
    "what, load, facts, words",
    [
        ("is read", lambda: [four()[0], four()[1] - 1, *four()[2:]], {}, "labels from -1 to 1"),
        ("is read", lambda: four(classes=5), {}, "has the label 4, and is registered with 3"),
        ("reads the same again", changing(), {}, "read again, train_x differs by up to"),
        ("is normalised", four, {"mean": (127.0,), "std": (60.0,)}, "it has mean -2.11, dev"),
        ("keeps tests apart", lambda: [*four()[:2], *(x[:12] for x in four()[:2])], {}, "12 of 12"),
    ],
)
def test_broken_dataset(register, monkeypatch, what, load, facts, words):
    register(load, **facts)
    text = refusal(testing.check_dataset, "mine")
    assert text.startswith(f"mine, '{what}': ") and words in text, text


def test_record_that_does_not_fit():
    """As of a directory of prepared data that lacks a part."""
    dataset = testing.datasets.Dataset(four())
    spec, arrays = dataset.read()
    dataset.found = (spec, arrays._replace(test_y=arrays.test_y + 1))
    what = "matches its record"
    text = refusal(contract.check, {what: testing.DATASET[what]}, lambda: dataset)
    assert "test labels are 1 to 3, and its record has 3 classes" in text


@pytest.mark.parametrize("text", [False, True])
def test_datasets_that_hold(text, tmp_path):
    words = np.random.RandomState(1).randint(0, 20, (42, 6))
    given = [words[:30], four()[1], words[30:], four()[3]] if text else four()
    path = tmp_path / "mine.npz"
    np.savez(path, **dict(zip(("train_x", "train_y", "test_x", "test_y"), given, strict=True)))
    by_arrays, by_file = testing.check_dataset(given), testing.check_dataset(path)
    assert list(by_file.rows) == list(testing.DATASET)
    assert by_arrays.rows["trains"].text == by_file.rows["trains"].text
    assert str(by_file).startswith(f"{path}: 6 properties in ")


# ---- how it is run -------------------------------------------------------------------------


PLUGIN = """
import jax.numpy as jnp
import fedjax_nc as fnc

@fnc.regulariser
def small(*, beta: float = 0.1):
    def fn(c):
        return jnp.sum(c.out.features**2, -1)
    return lambda method: fnc.add(method, fnc.per_example("small", fn, weight=beta))
"""
TESTS = """
from fedjax_nc import testing
testing.METHOD = {k: testing.METHOD[k] for k in ("trains", "resumes", "calibrates", "composes")}
testing.METHOD["agrees under sharded"] = testing.rounds.PROPERTIES["agrees under sharded"]
test_small = testing.method_tests("small(beta=0.2)", plugin="plugin.py")
"""


def test_outside_of_the_project(tmp_path):
    """One test per property, in a process whose jax has one device and float32 before and after."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "test_mine.py").write_text("import jax\njax.devices()\n" + TESTS)
    (tmp_path / "conftest.py").write_text(
        "import jax, pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def single():\n"
        "    yield\n"
        "    assert jax.numpy.ones(1).dtype == 'float32' and jax.device_count() == 1\n"
        "    assert not jax.config.values['jax_disable_most_optimizations']\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-rs", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for line in ("test_small[trains] PASSED", "test_small[composes] PASSED"):
        assert line in done.stdout
    assert "3 passed, 2 skipped" in done.stdout and "jax has one device" in done.stdout


def test_neither_pytest_nor_flax_is_needed_to_import():
    code = "import sys, fedjax_nc.testing; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "given, name",
    [
        ("fedprox(mu=0.5)", "fedprox(mu=0.5)"),
        ("fd(beta=0.5)", "fedavg | fd(beta=0.5)"),
        ("moon", "moon"),  # a base of this name exists, too
        (FEDAVG, "fedavg"),
        (registry.factory_of(registry.catalogue.bases()["fedprox"]), "fedprox"),
        (registry.factory_of(registry.catalogue.regularisers()["fd"]), "fedavg | fd"),
        (
            registry.factory_of(registry.catalogue.regularisers()["fd"])(beta=0.5),
            "fedavg | fd(beta=0.5)",
        ),
    ],
)
def test_what_a_method_may_be(given, name):
    method, on = testing._resolved(given)
    assert method.name == name
    assert (on is not None) == name.startswith("fedavg |")
    assert on is None or on("fedper").name == name.replace("fedavg", "fedper")


def test_report_is_a_table(capfd):
    def absent(trial):
        raise contract.Absent("no reason")

    class Thing:
        name = "thing"

    report = contract.check({"holds": lambda trial: "well", "is absent": absent}, Thing)
    assert capfd.readouterr().err.splitlines() == [
        "checking thing: holds (1/2)",
        "checking thing: is absent (2/2)",
    ]
    assert repr(report).splitlines() == [
        "thing: 2 properties in 0 s",
        "holds        0.0 s  well",
        "is absent    0.0 s  left out: no reason",
    ]


# ---- what it compares by -------------------------------------------------------------------


def test_comparison_names_the_leaf():
    one = {"a": np.zeros(3), "b": {"c": np.ones((2, 2))}}
    other = {"a": np.zeros(3), "b": {"c": np.array([[1, 1], [1, 1.5]])}}
    text = refusal(compare.same, other, one, "later")
    assert text == "later, b/c differs by up to 0.5 (1.5 instead of 1)"
    assert compare.same(one, {"a": np.zeros(3), "b": {"c": np.ones((2, 2)) + 1e-13}}) < 2e-13
    assert "a differs by up to 1e-13" in refusal(compare.identical, {"a": 1e-13}, {"a": 0.0})
    assert "only one of the two has d" in refusal(compare.same, one, one | {"d": 1.0})
    narrow = {"a": np.zeros(3, np.float32), "b": one["b"]}
    assert "a is float32[3] instead of float64[3]" in refusal(compare.same, narrow, one)
    nan = {"a": np.array([np.nan, 1.0])}
    compare.identical(nan, nan)
    assert "a differs by up to 0 (nan instead of 0)" in refusal(
        compare.same, nan, {"a": np.array([0.0, 1.0])}
    )
    assert compare.not_finite(one | nan) == ["a"]


def test_federation_has_every_corner_case():
    trial = testing.Trial(FEDAVG)
    counts = np.asarray(trial.tiny.data.class_counts)
    assert counts.sum(1).tolist() == list(federation.SIZES)
    assert (counts[federation.EMPTY] == 0).all() and counts[federation.SINGLE].sum() == 1
    assert counts.sum(0).all() and (counts == 0).sum() > counts.size / 2
