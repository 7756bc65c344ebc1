"""Which settings have no effect beside others; one that a person gave is then refused."""

import dataclasses
from collections.abc import Callable, Collection
from typing import NamedTuple

from fedjax_nc.config import RunConfig
from fedjax_nc.data.catalogue import DATASETS, sized
from fedjax_nc.errors import UserError
from fedjax_nc.models.catalogue import MODELS


class Rule(NamedTuple):
    """Settings that mean something only where another one allows it."""

    settings: str  # dotted names with spaces between
    decider: str  # the setting that decides
    matters: Callable[[RunConfig], bool]
    home: str  # where they do mean something


def _changes_size(name: str) -> Callable[[RunConfig], bool]:
    """Returns whether a setting of the data changes the shape of the examples."""

    def matters(c: RunConfig) -> bool:
        if c.dataset not in DATASETS:
            return False
        other = dataclasses.replace(c.data, **{name: getattr(c.data, name) + 1})
        return sized(c.dataset, other) != sized(c.dataset, c.data)

    return matters


def _is_prepared(c: RunConfig) -> bool:
    spec = DATASETS.get(c.dataset)
    return spec is not None and bool(spec.release or spec.subset)


def _is_shuffled(c: RunConfig) -> bool:
    return c.dataset in DATASETS and DATASETS[c.dataset].release is not None


def _is_text(c: RunConfig) -> bool:
    return c.dataset in DATASETS and DATASETS[c.dataset].is_text


# what only several clients have; beside methods of several, centralised training leaves it to them
OF_SEVERAL = frozenset(
    ("data.partition", "data.alpha", "data.rule", "data.per_client", "federation.clients",
     "federation.participants", "federation.weights", "federation.dropout",
     "federation.straggler", "federation.nan")
)  # fmt: skip
RULES = (
    Rule(
        f"{' '.join(sorted(OF_SEVERAL))} data.partition_file",
        "method",
        matters=lambda c: not c.is_centralised,
        home="methods of several clients",
    ),
    Rule(
        "data.partition data.alpha data.rule data.per_client",
        "data.partition_file",
        matters=lambda c: not c.data.partition_file,
        home="runs without a partition file",
    ),
    Rule(
        "data.alpha",
        "data.partition",
        matters=lambda c: c.data.partition in ("dirichlet", "quantity"),
        home="--data.partition=dirichlet or quantity",
    ),
    Rule(
        "data.rule",
        "data.partition",
        matters=lambda c: c.data.partition == "dirichlet",
        home="--data.partition=dirichlet",
    ),
    Rule(
        "data.per_client",
        "data.partition",
        matters=lambda c: c.data.partition in ("shards", "classes"),
        home="--data.partition=shards or classes",
    ),
    Rule(
        "data.test_fraction",
        "data.client_test",
        matters=lambda c: c.data.client_test == "split",
        home="--data.client_test=split",
    ),
    Rule(
        "data.partition_order",
        "data.partition_file",
        matters=lambda c: bool(c.data.partition_file),
        home="runs with a partition file",
    ),
    Rule(
        "data.order data.partition_order",
        "dataset",
        matters=_is_shuffled,
        home="prepared TFDS datasets, such as cifar10",
    ),
    Rule("data.dir", "dataset", matters=_is_prepared, home="prepared datasets, such as cifar10"),
    Rule(
        "data.words", "dataset", matters=_changes_size("words"), home="text, such as imdb_reviews"
    ),
    Rule(
        "data.length", "dataset", matters=_changes_size("length"), home="text, such as imdb_reviews"
    ),
    Rule("data.side", "dataset", matters=_changes_size("side"), home="imagenet100 and imagenet200"),
    Rule("data.normalise", "dataset", matters=lambda c: not _is_text(c), home="images"),
    Rule(
        "local.epochs", "local.steps", matters=lambda c: not c.local.steps, home="--local.steps=0"
    ),
    Rule(
        "federation.straggler",
        "local.epochs",
        matters=lambda c: bool(c.local.steps) or c.local.epochs > 1,
        home="runs of several epochs, of which a straggler does fewer",
    ),
    Rule(
        "federation.straggler",
        "local.steps",
        matters=lambda c: c.local.steps != 1,
        home="runs of several steps, of which a straggler does fewer",
    ),
    Rule(
        "local.momentum local.nesterov",
        "local.optimizer",
        matters=lambda c: c.local.optimizer == "sgd",
        home="--local.optimizer=sgd",
    ),
    Rule(
        "local.nesterov",
        "local.momentum",
        matters=lambda c: c.local.momentum > 0,
        home="a --local.momentum above zero",
    ),
    Rule(
        "local.decay",
        "local.schedule",
        matters=lambda c: c.local.schedule != "constant",
        home="--local.schedule=exponential or step",
    ),
    Rule(
        "local.milestones",
        "local.schedule",
        matters=lambda c: c.local.schedule == "step",
        home="--local.schedule=step",
    ),
    Rule(
        "local.schedule local.decay",
        "local.milestones",
        matters=lambda c: c.local.schedule != "step" or bool(c.local.milestones),
        home="runs with --local.milestones",
    ),
    Rule(
        "local.schedule local.milestones",
        "local.decay",
        matters=lambda c: c.local.schedule == "constant" or c.local.decay != 1,
        home="a --local.decay other than 1",
    ),
    Rule(
        "evaluation.personal_global",
        "evaluation.personal",
        matters=lambda c: c.evaluation.personal,
        home="--evaluation.personal",
    ),
    Rule(
        "execution.chunk",
        "execution.executor",
        matters=lambda c: c.execution.executor in ("chunked", "auto", "sharded"),
        home="--execution.executor=chunked",
    ),
    Rule(
        "execution.conv",
        "model",
        matters=lambda c: c.model not in ("mlp", "bilstm"),
        home="models with convolutions",
    ),
    Rule(
        "federation.mapping",
        "model",
        matters=lambda c: c.model not in MODELS or not MODELS[c.model].mapped,
        home="other models: this one ends with such layers",
    ),
)
# what `auto` and `sharded` make of chunks is known once jax has started
ON_CPU = Rule(
    "execution.chunk",
    "execution.executor",
    matters=lambda c: c.execution.executor == "chunked",
    home="--execution.executor=chunked",
)


def check(given: Collection[str], config: RunConfig, *, backend: str = "") -> None:
    """Refuses a given setting that has no effect.

    Args:
      given: dotted names of what a person set, as opposed to what a protocol sets.
      config: the whole configuration.
      backend: jax's backend, if it has started.
    """
    for rule in (*RULES, ON_CPU) if backend == "cpu" else RULES:
        for name in rule.settings.split():
            if name in given and not rule.matters(config):
                raise UserError(
                    f"--{name} has no effect {_beside(rule.decider, config)}: leave it out, "
                    f"it belongs to {rule.home}"
                )


def _beside(name: str, config: RunConfig) -> str:
    """Returns a setting as its flag: `with --data.partition=classes`, `without --local.decay`."""
    group, _, field = name.rpartition(".")
    value = getattr(getattr(config, group) if group else config, field)
    words = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"with --{name}={words}" if words not in ("", None) else f"without --{name}"
