"""Comparing states, and the federation of one client: what several tests share."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config, tree
from fedjax_nc.data.stream import on_device
from fedjax_nc.testing.compare import differ, fresh, identical, plain, same
from fedjax_nc.testing.federation import tiny
from fedjax_nc.train.evaluate import make_calibrate, make_evaluate
from fedjax_nc.train.personalise import make_personalise, personalise
from fedjax_nc.train.seeds import lead, take
from fedjax_nc.types import State

__all__ = ["differ", "fresh", "identical", "plain", "same"]  # from the package, beside those below


AFTER = {}


def after(spec, rounds, **options):
    """A method's weights after some rounds of the tiny federation; computed once for all tests."""
    key = spec, rounds, repr(options), jax.config.jax_enable_x64
    if key not in AFTER:
        state, metrics = tiny(spec, **options).run(rounds)
        assert metrics.finite.all()
        AFTER[key] = plain(state.weights)
    return AFTER[key]


def only(t, client):
    """The federation of this one client."""
    rows = slice(client, client + 1)
    data = t.data._replace(
        train=tree.take(t.data.train, rows),
        client_test=tree.take(t.data.client_test, rows),
        class_counts=t.data.class_counts[rows],
    )
    task = t.task._replace(federation=config.Federation(clients=1, participants=1))
    return t._replace(task=task, data=data)


def standing(t):
    """The same with learning rate zero: no parameter moves."""
    return t._replace(hyper=t.hyper._replace(lr=jnp.zeros(())))


def with_clients(state, clients):
    return State(state.round, state.key, state.weights, state.shared, clients)


def noisy(clients):
    """Client state that nobody could mistake for the initial one."""
    return jax.tree.map(
        lambda x: x + 0.01 * jax.random.normal(jax.random.key(7), x.shape, x.dtype), clients
    )


def watched(t):
    """The same task, and a list of the examples that each training step of it sees.

    Only unjitted steps are noted: run it with the executor `debug`.
    """
    seen = []
    inner = t.task.trainer.make_batch

    def batches(pool, numbers, mask, key):
        if key is not None and not isinstance(numbers, jax.core.Tracer):  # tests have no key
            seen.append(np.asarray(numbers)[np.asarray(mask)])
        return inner(pool, numbers, mask, key)

    trainer = t.task.trainer._replace(make_batch=batches)
    return t._replace(task=t.task._replace(trainer=trainer)), seen


def scores_of(t, how, weights, *, batch_size=4, data=None):
    """One seed's global model on the official tests and on every client's."""
    evaluate = make_evaluate(t.task, how, batch_size=batch_size)
    return take(evaluate(lead(weights), on_device(t.data if data is None else data).tests()), 0)


def personal_of(t, how, phases, *, state=None, hyper=None, progress=None, data=None):
    """One seed's personal models on their own tests, after each phase and cycle, by client."""
    if hyper is None:
        hyper = t.hyper if phases == t.task.method.phases else t.hyper._replace(term_weights=())
    scores = personalise(
        t.task,
        how,
        train=make_personalise(t.task, how, batch_size=4, phases=phases),
        state=lead(t.state() if state is None else state),
        hyper=hyper,
        feed=on_device(t.data if data is None else data),
        progress=progress or (lambda *_: None),
    )
    return take(scores["own"], 0)


def calibrated(t, how, weights, key, *, batch_size=4):
    """One seed's global model after the step that follows the last round."""
    calibrate = make_calibrate(t.task, how, batch_size=batch_size)
    return take(calibrate(lead(weights), lead(key), on_device(t.data)), 0)
