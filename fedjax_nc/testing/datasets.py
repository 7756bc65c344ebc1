"""What a dataset must be; each property says in a few words what it saw, or raises."""

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_nc import config
from fedjax_nc.data import catalogue, datasets, federated, own
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import Given, assemble
from fedjax_nc.host.states import state_of_seed
from fedjax_nc.models.bilstm import BiLSTM
from fedjax_nc.models.mlp import MLP
from fedjax_nc.models.own import model
from fedjax_nc.testing.compare import identical, not_finite
from fedjax_nc.testing.contract import Property
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import Pool

MANY = 10_000  # examples of a split that are looked at, evenly spread
LEAK = 0.1  # the share of test examples that may also be training examples
CLIENTS, EXAMPLES = 4, 200  # of the rounds


class Dataset:
    """A dataset on trial."""

    def __init__(self, given: Any, *, data: config.Data | None = None) -> None:
        """Finds the dataset; it is read when the first property needs it.

        Args:
          given: a name, a path to an .npz file, hf:owner/name, or four arrays.
          data: where it is and at what sizes it is read, as a run's settings.
        """
        named = isinstance(given, str | Path)
        self.given = str(given) if named else given
        self.data = data or config.Data()
        self.name = catalogue.find(str(given)).name if named else "arrays"

    def read(self) -> tuple[DatasetSpec, Arrays]:
        """Reads it as a run does."""
        if isinstance(self.given, str):
            return datasets.read(self.given, self.data)
        return own.from_arrays(self.given)

    @cached_property
    def found(self) -> tuple[DatasetSpec, Arrays]:
        """What was read first."""
        return self.read()

    @property
    def spec(self) -> DatasetSpec:
        """The record."""
        return self.found[0]

    @property
    def arrays(self) -> Arrays:
        """The examples."""
        return self.found[1]


def is_read(dataset: Dataset) -> str:
    """It has the form of a dataset."""
    try:
        spec = dataset.spec
    except UserError as error:
        raise AssertionError(str(error)) from error
    return f"{spec.train:,} and {spec.test:,} examples {list(spec.shape)}, {spec.classes} classes"


def matches_its_record(dataset: Dataset) -> str:
    """Numbers, shapes and labels are those of the record."""
    spec, found = dataset.found
    for split, told in (("train", spec.train), ("test", spec.test)):
        x, y = (getattr(found, f"{split}_{kind}") for kind in "xy")
        assert len(x) == len(y) == told, (
            f"{len(x):,} {split} examples, and its record says {told:,}"
        )
        assert x.shape[1:] == spec.shape, (
            f"examples are {x.shape[1:]}, its record says {spec.shape}"
        )
        low, high = y.min(), y.max()
        assert low >= 0 and high < spec.classes, (
            f"{split} labels are {low} to {high}, and its record has {spec.classes} classes"
        )
    absent = spec.classes - len(np.unique(found.train_y))
    return f"{absent} classes have no training examples" if absent else "every class has examples"


def reads_the_same_again(dataset: Dataset) -> str:
    """Read twice, it is the same, in the same order."""
    again = dataset.read()[1]
    identical(_some(again), _some(dataset.arrays), when="read again")
    return "in the same order"


def is_normalised(dataset: Dataset) -> str:
    """By the record's mean and deviation, channels are about 0 with deviation about 1."""
    spec, found = dataset.found
    if spec.is_text:
        known = spec.words + 2
        largest = max(int(x.max()) for x in (found.train_x, found.test_x))
        assert largest < known, f"the largest word id is {largest}, and {known} ids are known"
        return f"word ids up to {largest}"
    some = _some(found)
    pool = Pool(jnp.asarray(some.train_x), jnp.asarray(some.train_y))
    everything = jnp.arange(len(some.train_y))
    x = np.asarray(federated.make_batch(spec)(pool, everything, everything >= 0, None).x)
    mean, std = x.mean((0, 1, 2)), x.std((0, 1, 2))
    shown = f"mean {_numbers(mean)}, deviation {_numbers(std)}"
    assert np.isfinite(x).all(), "a normalised pixel is NaN or infinite"
    wrong = (np.abs(mean) > 0.5) | (std < 0.5) & (std > 0) | (std > 2)
    assert not wrong.any(), f"normalised by mean {spec.mean} and std {spec.std}, it has {shown}"
    return shown


def keeps_tests_apart(dataset: Dataset) -> str:
    """Few test examples are among the training examples."""
    some = _some(dataset.arrays)
    known = {row.tobytes() for row in some.train_x}
    shared = sum(row.tobytes() in known for row in some.test_x)
    text = f"{shared:,} of {len(some.test_x):,} test examples are training examples too"
    assert shared <= LEAK * len(some.test_x), text
    return text


def trains(dataset: Dataset) -> str:
    """Federated averaging of a small network on some of it stays finite."""
    spec, found = dataset.found
    cfg = config.RunConfig(
        method="fedavg",
        dataset=spec.name,
        data=dataclasses.replace(dataset.data, limit=EXAMPLES, partition="iid"),
        local=config.Local(batch_size=20, lr=0.05),
        federation=config.Federation(clients=CLIENTS, participants=CLIENTS),
        evaluation=config.Evaluation(finetune=False),
        execution=config.Execution(executor="scan"),
    )
    body = BiLSTM(words=spec.words, units=4) if spec.is_text else MLP(widths=(16,))
    given = Given(model=model(body, text=spec.is_text), dataset=(spec, found))
    job = assemble(cfg, given=given)
    state, means = state_of_seed(job, 0), []
    round_fn, hyper = make_round(job.task, job.executor), make_hyper(job.task, 0)
    for _, piece in zip(range(3), job.feed.clients([np.arange(CLIENTS)] * 3), strict=False):
        state, metrics = round_fn(state, hyper, piece)
        means.append(float(metrics.sums["loss"] / metrics.sums["examples"]))
    bad = not_finite(state.weights)
    assert not bad, f"after three rounds on {EXAMPLES} examples, {bad[0]} is NaN or infinite"
    return f"loss {means[0]:.3f}, then {means[-1]:.3f}"


def _some(found: Arrays) -> Arrays:
    """Returns examples that are spread evenly over large splits, or all of small ones."""
    return Arrays(*(np.asarray(x[:: max(1, len(x) // MANY)]) for x in found))


def _numbers(values: np.ndarray) -> str:
    return " ".join(f"{value:.2f}" for value in values)


PROPERTIES: dict[str, Property] = {
    "is read": is_read,
    "matches its record": matches_its_record,
    "reads the same again": reads_the_same_again,
    "is normalised": is_normalised,
    "keeps tests apart": keeps_tests_apart,
    "trains": trains,
}
