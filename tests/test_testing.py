"""What the contract of methods refuses, and how it is run: broken ones, by their property."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc import losses, testing
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
testing.METHOD["agrees under chunked"] = testing.rounds.PROPERTIES["agrees under chunked"]
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
    assert "4 passed, 1 skipped" in done.stdout and "no step after" in done.stdout


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
