"""The tiny federation: a task and data in which every corner case of a round occurs."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.federated import Split
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import Given, assemble
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import Method
from fedjax_nc.models import own
from fedjax_nc.models.mlp import MLP
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.testing.compare import fresh
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import RoundMetrics, init_state, make_round
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import Batch, FederatedData, Hyper, Pool, State

SHAPE, CLASSES = (2, 3, 1), 4
SIZES = (7, 0, 1, 12, 5, 3)  # of the clients' data
EMPTY, SINGLE, LARGEST = 1, 2, 3  # the client without data, that of one example, that of twelve
TESTS = 9  # official test examples
WORDS = 9  # that have an id in a federation of texts, besides padding and the unknown word


class Tiny(NamedTuple):
    """A task, its data, and how to start and run it."""

    task: Task
    data: FederatedData
    hyper: Hyper

    def state(self, seed: int = 0) -> State:
        """Returns the state before the first round."""
        with jax.disable_jit():  # its operations are the same for most methods, the program is not
            state = init_state(self.task, jax.random.key(seed))
        return fresh(state)  # a round takes its state, and no array twice

    def run(
        self, rounds: int = 1, executor: str = "scan", *, state: State | None = None, **options: Any
    ) -> tuple[State, RoundMetrics]:
        """Returns the state after some rounds, and the metrics of the last of them."""
        how = make_executor(executor, chunk=2)
        round_fn = make_round(self.task, how, **options)
        last: Any = how.place(self.state() if state is None else state), None
        for _ in range(rounds):
            last = round_fn(last[0], self.hyper, self.data)
        return last


def tiny(
    method: str | Method = "fedavg",
    *,
    model: Any = None,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    widths: tuple[int, ...] = (5,),
    norm: str = "running",
    local_cfg: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
) -> Tiny:
    """Makes a federation of six clients with up to twelve examples, in the working precision.

    Classes are sorted over the clients, so that most clients miss most of them.

    Args:
      method: a specification or a method.
      model: a flax module or a record of `own.model`; by default a small perceptron, or a
        small residual network for methods that need stages or blocks.
      shape: of an image, or (length,) of a row of word ids.
      classes: number of classes.
      widths: layers of the perceptron.
      norm: normalisation of the small networks.
      local_cfg: local settings besides batches of four and the learning rate 0.1.
      federation: settings of the federation besides the number of clients.
    """
    method = registry.build(method) if isinstance(method, str) else method
    spec, arrays, split = examples(shape, classes)
    everybody = {"clients": len(SIZES), "participants": len(SIZES)}
    cfg = config.RunConfig(
        method=method.name,
        dataset=spec.name,
        data=config.Data(normalise="half"),
        local=config.Local(**{"batch_size": 4, "lr": 0.1, **(local_cfg or {})}),
        federation=config.Federation(**{**everybody, **(federation or {})}),
        evaluation=config.Evaluation(finetune=False),
        execution=config.Execution(executor="scan"),
    )

    def assembled(body: Any) -> Tiny:
        given = Given(method=method, model=body, dataset=(spec, arrays), split=split)
        job = assemble(cfg, given=given)
        trainer = job.task.trainer._replace(make_batch=make_batch)
        task = job.task._replace(trainer=trainer)
        return Tiny(task, job.data, hyper=make_hyper(task, 0))

    if model is not None:
        return assembled(model)
    residual = ResNet((1, 1), norm, conv="native", channels=(16, 32))
    try:
        return assembled(MLP(norm=norm, widths=widths))
    except UserError:  # no stages, or no blocks to leave out
        return assembled(dataclasses.replace(own.model(residual), blocks=2))


@functools.lru_cache(maxsize=8)
def examples(shape: tuple[int, ...], classes: int) -> tuple[DatasetSpec, Arrays, Split]:
    """Makes random images or rows of words, with labels, and deals them to the clients."""
    rng, text = np.random.RandomState(0), len(shape) == 1
    ends = np.cumsum(SIZES)
    size = (ends[-1] + TESTS, *shape)
    x = rng.randint(0, WORDS + 2, size) if text else rng.randint(0, 256, size)
    x = x.astype(np.int32 if text else np.uint8)
    y = np.sort(rng.randint(0, classes, ends[-1]))
    y = np.concatenate([y, rng.randint(0, classes, TESTS)]).astype(np.int32)
    spec = DatasetSpec(
        name="tiny",
        classes=classes,
        shape=shape,
        train=int(ends[-1]),
        test=TESTS,
        kind="text" if text else "digits",
        words=WORDS if text else 0,
    )
    end = ends[-1]
    arrays = Arrays(x[:end], y[:end], test_x=x[end:], test_y=y[end:])
    parts = np.split(np.arange(end), ends[:-1])
    return spec, arrays, Split(parts, [p[::2] for p in parts], pool="train")


def make_batch(pool: Pool, indices: Any, mask: Any, key: Any) -> Batch:
    """Gathers examples; images are in the working precision, unlike those of a run."""
    del key
    x = pool.x[indices]
    words = x.ndim == 2 and jnp.issubdtype(x.dtype, jnp.integer)
    return Batch(x if words else x / 255.0 - 0.5, pool.y[indices], mask=mask)
