"""Guards of the benchmark's job: it is the workload, and a step of it is one round."""

import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import ours
from workload import Workload

from fedjax_nc.errors import UserError
from fedjax_nc.host.states import first_state
from fedjax_nc.train import seeds
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper

SMALL = Workload(
    model="cnn", clients=3, participants=3, images=4, batch_size=2, executor="scan", devices=1
)


def layers(job):
    """The names of the body's layers."""
    return sorted(jax.eval_shape(job.task.trainer.model.init, jax.random.key(0)).params["body"])


def convolves(job):
    """Whether a forward pass has convolutions as XLA knows them."""
    model = job.task.trainer.model
    weights = jax.eval_shape(model.init, jax.random.key(0))
    forward = jax.make_jaxpr(lambda w, x: model.apply(w, x, train=True)[0].logits)
    return "conv_general_dilated" in str(forward(weights, jnp.zeros((2, 32, 32, 3))))


# field: another value, what the job makes of it, and what that must be
ARRIVES = {
    "method": ("fedprox(mu=0.5)", lambda job: job.task.method.name, "fedprox(mu=0.5)"),
    "model": ("mlp", layers, ["Dense_0", "Dense_1"]),
    "norm": ("group", lambda job: sum("Norm" in name for name in layers(job)), 2),
    "clients": (5, lambda job: job.task.federation.clients, 5),
    "participants": (2, lambda job: job.task.federation.participants, 2),
    "images": (6, lambda job: list(job.data.train.size), [6, 6, 6]),
    "batch_size": (3, lambda job: job.task.trainer.local.batch_size, 3),
    "epochs": (3, lambda job: job.task.trainer.local.epochs, 3),
    "lr": (0.25, lambda job: float(make_hyper(job.task, 0).lr), 0.25),
    "momentum": (0.5, lambda job: job.task.trainer.local.momentum, 0.5),
    "executor": ("debug", lambda job: job.executor.name, "debug"),
    "conv": ("native", convolves, True),
    "devices": (2, lambda job: job.executor.devices, 2),
    "chunk": (7, lambda job: job.executor.chunk, 7),
    "steps": ((1, 3, 2), lambda job: list(job.data.train.size), [2, 6, 4]),
    "seeds": (3, lambda job: [config.seed for config in job.configs], [0, 1, 2]),
}
BESIDE = {"devices": {"executor": "sharded"}, "chunk": {"executor": "chunked"}}


def test_every_field_of_the_workload_is_in_the_table():
    assert list(ARRIVES) == [field.name for field in dataclasses.fields(Workload)]


@pytest.mark.parametrize("field", ARRIVES)
def test_every_field_of_the_workload_arrives(field):
    value, of, expected = ARRIVES[field]
    usual = dataclasses.replace(SMALL, **BESIDE.get(field, {}))
    unusual = dataclasses.replace(usual, **{field: value})
    assert of(ours.make_job(unusual)) == expected
    assert of(ours.make_job(usual)) != expected  # so that the field makes the difference


def test_a_round_trains_on_the_images_that_are_counted():
    work = dataclasses.replace(SMALL, model="mlp", epochs=3, participants=2)
    job = ours.make_job(work)
    _, metrics = make_round(job.task, job.executor)(
        seeds.take(first_state(job), 0), make_hyper(job.task, 0), job.data
    )
    assert metrics.sums["examples"] == work.images_per_round == 24


@pytest.mark.parametrize("how", [{}, {"seeds": 2}, {"executor": "debug"}], ids=str)
def test_a_step_is_one_round(how):
    """However it is run: as the loop's program, with several seeds in it, or unjitted."""
    work = dataclasses.replace(SMALL, model="mlp", clients=1, participants=1, images=2, **how)
    step = ours.make_step(ours.make_job(work))
    for number in (1, 2):
        np.testing.assert_array_equal(np.unique(step().round), [number])


def test_stochastic_depth_leaves_out_blocks():
    """What is timed is the method with its network, not FedAvg."""
    keys = jax.random.split(jax.random.key(0), 8)
    for method, several in (("stochdepth", True), ("fedavg", False)):
        work = dataclasses.replace(SMALL, method=method, model="resnet8")
        model = ours.make_job(work).task.trainer.model

        def logits(key, model=model):
            x = jnp.linspace(0, 1, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
            weights = model.init(jax.random.key(1))
            return model.apply(weights, x, train=True, key=key)[0].logits

        found = jax.jit(jax.vmap(logits))(keys)
        assert (len(np.unique(found, axis=0)) > 1) == several
    with pytest.raises(UserError, match="has no residual blocks to leave out"):
        ours.make_job(dataclasses.replace(SMALL, method="stochdepth", model="cnn"))
