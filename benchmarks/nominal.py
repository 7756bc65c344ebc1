"""Nominal operations of a round: the multiply-adds of its layers, whatever a lowering computes.

A lowering must not look better by doing more work, nor one that needs less than the textbook
(Winograd) worse. So this counts plain convolutions as a textbook does: forward, by the input and by
the kernel alike. XLA's own gradient convolutions would be counted with the padding they multiply.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from fedjax_nc import tree
from fedjax_nc.job import Job, first_state
from fedjax_nc.loop import make_hyper
from fedjax_nc.methods.base import Phase, View
from fedjax_nc.train import local
from fedjax_nc.types import ClientInfo, State


def round_flops(job: Job, sizes: list[int], participants: int) -> float:
    """Of a round in which `participants` clients out of those of these sizes take part.

    The job's model must use `native` convolutions.
    """
    state, _ = first_state(job)
    examples, total = jnp.asarray(sizes), 0.0
    for phase in job.task.method.phases:
        shuffles, each = local.loop_counts(phase, job.config.local, examples)
        steps = float(np.mean(np.broadcast_to(shuffles * each, examples.shape)))
        total += _step(job, state, phase) * steps * participants
    return total


def _step(job: Job, state: State, phase: Phase) -> int:
    """Operations of one local step of the phase."""
    trainer, data, hyper = job.task.trainer, job.data, make_hyper(job, 0)
    size = jnp.asarray(trainer.local.batch_size, jnp.int32)
    numbers = jnp.zeros(trainer.local.batch_size, jnp.int32)
    info = ClientInfo(size, data.class_counts[0], size, hyper.lr, trainer.local.momentum)
    view = View(state.weights, state.shared, tree.take(dict(state.clients), 0), info)
    client = local.Client(data.pool, numbers, view, state.key)
    objective = local.make_objective(
        trainer, phase, local.default_weights(phase), client, state.weights
    )
    groups = tuple(state.weights.params) if phase.train is None else phase.train

    def gradient(trainable):
        batch = trainer.batches(data.pool, numbers, numbers == 0, None)
        return jax.grad(objective, has_aux=True)(trainable, state.weights.stats, batch, state.key)

    return count(gradient, tree.pick(state.weights.params, groups))


def count(fn: Any, *args: Any) -> int:
    """Nominal operations of fn(*args), two for a multiply-add, without what its result ignores.

    That is mostly the gradient by the images, which a layer's own rule gives unasked.
    """
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    used, _ = partial_eval.dce_jaxpr(jaxpr, True)
    return _count(used)


def _count(jaxpr: core.Jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        values: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        shapes = [v.shape for v in values]
        if eqn.primitive.name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            total += 2 * math.prod(shapes[0][d] for d in contract) * math.prod(shapes[-1])
        elif eqn.primitive.name == "conv_general_dilated":
            total += 2 * _convolution(eqn.params["dimension_numbers"], *shapes)
        else:
            times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            total += times * sum(map(_count, core.jaxprs_in_params(eqn.params)))
    return total


def _convolution(numbers: Any, x: Any, kernel: Any, y: Any) -> int:
    """Multiply-adds; a tap of the kernel meets no more numbers than there are without padding."""
    taps = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    batch, features, *sides = (y[d] for d in numbers.out_spec)
    inputs = (x[d] for d in numbers.lhs_spec[2:])
    return taps * batch * features * math.prod(map(min, sides, inputs))
