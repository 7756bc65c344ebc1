"""What the contracts of networks and datasets refuse: every broken one, by its property."""

import itertools

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from test_testing import refusal

from fedjax_nc import testing
from fedjax_nc.data.catalogue import DATASETS, register_dataset
from fedjax_nc.errors import UserError
from fedjax_nc.testing import contract

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
    "keeps float64": (rounded, "rounded to bfloat16 in test_testing_inputs.py, line"),
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
