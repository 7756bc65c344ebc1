"""Clients that drop out, straggle or diverge: their rounds, on the tiny federation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import differ, fresh, identical, noisy, personal_of, plain, same, with_clients

from fedjax_nc import config, tree
from fedjax_nc.host.states import stack_states
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import Part
from fedjax_nc.testing.federation import EMPTY, LARGEST, SINGLE, SIZES
from fedjax_nc.train import executors, local, schedule
from fedjax_nc.train import round as rounds
from fedjax_nc.train.client import make_rows
from fedjax_nc.train.seeds import Seeds
from fedjax_nc.types import Table

EVERYBODY = np.arange(len(SIZES))
DROPOUT, STRAGGLER = {"dropout": 0.4}, {"straggler": 0.7}
ALL = DROPOUT | STRAGGLER | {"nan": "skip"}
SETTINGS = {"epochs": 4, "momentum": 0.9}


def drawn(t, number=0, seed=0):
    """Who fails in a round in which everybody takes part."""
    odd = schedule.odd_clients(
        jax.random.key(seed), number, ids=jnp.asarray(EVERYBODY), federation=t.task.federation
    )
    return tuple(None if x is None else np.asarray(x) for x in odd)


def without(t, left_out):
    """The federation in which some have no examples, though everybody is as large as before."""
    index, size = t.data.train
    return t._replace(data=t.data._replace(train=Table(index, jnp.where(left_out, 0, size))))


def poisoned(t, *clients):
    """The federation in which pictures of some are not finite."""
    x = t.data.pool.x.astype(float)
    for client in clients:
        mine = t.data.train.index[client, : SIZES[client]]
        x = x.at[mine].set(jnp.nan)
    return t._replace(data=t.data._replace(pool=t.data.pool._replace(x=x)))


def noisy_start(t):
    state = t.state()
    return with_clients(state, noisy(state.clients))


# --- who drops out


@pytest.mark.parametrize("spec", ["scaffold", "fedfm"])
def test_a_round_with_dropouts_is_one_of_the_others(x64, tiny, spec):
    """Also where the method has a second exchange."""
    t = tiny(spec, norm="none", federation=DROPOUT)
    dropped, _ = drawn(t)
    assert 0 < dropped.sum() < len(SIZES) and not dropped[0]
    start = plain(noisy_start(t).clients)
    state, metrics = t.run(1, state=noisy_start(t))
    expected, others = without(tiny(spec, norm="none"), dropped).run(1, state=noisy_start(t))
    identical(state, expected)
    identical(metrics.sums, others.sums)
    np.testing.assert_array_equal(metrics.dropped, dropped)
    assert metrics.stragglers is metrics.diverged is others.dropped is None
    for client in np.flatnonzero(dropped):
        identical(tree.take(state.clients, client), tree.take(start, client))


def test_a_dropout_costs_no_steps(tiny):
    t = tiny(federation=DROPOUT)
    odd = schedule.Odd(jnp.asarray(drawn(t)[0]))
    ids = jnp.asarray(EVERYBODY)
    made = partial(make_rows, t.task, jax.random.key(0), ids=ids, data=t.data, client_state={})
    gone = np.asarray(odd.dropped)
    np.testing.assert_array_equal(made(odd=odd).steps, np.where(gone, 0, made().steps))
    assert made().share is None  # so does nobody after the last round


def test_a_round_in_which_all_drop_out_changes_nothing(x64, tiny):
    t = tiny("scaffold", norm="none", federation={"dropout": 1 - 1e-9})
    start = plain(noisy_start(t))
    state, metrics = t.run(1, state=noisy_start(t))
    identical(plain(state)[1:], start[1:])
    assert metrics.dropped.all() and state.round == 1 and metrics.sums["examples"] == 0


def test_nobody_fails_after_the_last_round(x64, tiny):
    t, plain_one = (tiny("fedper", norm="none", federation=odd) for odd in (ALL, {}))
    state, _ = plain_one.run(1)
    how, phases = executors.make_executor("scan"), t.task.method.phases
    score = [personal_of(each, how, phases, state=fresh(state)) for each in (t, plain_one)]
    identical(*score)


# --- who straggles


def test_epochs_of_stragglers_are_uniform():
    federation = config.Federation(4000, 4000, straggler=0.5)
    draw = partial(schedule.odd_clients, ids=jnp.arange(4000), federation=federation)
    share = draw(jax.random.key(0), 3).share
    with jax.enable_x64(True):  # the same in any precision
        np.testing.assert_array_equal(draw(jax.random.key(0), 3).share, share)
    assert share is not None and share.min() > 0 and share.max() == 1
    late = np.asarray(share < 1)
    assert abs(late.mean() - 0.5) < 0.03
    assert differ(draw(jax.random.key(0), 4).share, share)
    (phase,), size = registry.build("fedavg").phases, jnp.asarray(10)
    for settings in (config.Local(epochs=4), config.Local(steps=4, epochs=9)):
        done, each = local.loop_counts(phase, settings, size=size, share=share)
        assert each == 1
        done = np.asarray(done)
        assert set(done[~late]) == {4} and set(done[late]) == {1, 2, 3, 4}
        assert np.all(abs(np.bincount(done[late])[1:] / late.sum() - 0.25) < 0.03)
    none, _ = local.loop_counts(phase, config.Local(steps=4), size=jnp.asarray(0), share=share)
    assert not none.any()


def fewer(tiny, spec, epochs):
    """Each client's own model update and state, after a round that it is alone in."""
    made, updates, states = {}, [], []
    for client, count in enumerate(epochs):
        if count not in made:
            t = tiny(spec, norm="none", local_cfg=SETTINGS | {"epochs": int(count)})
            made[count] = t, rounds.make_round(t.task, executors.make_executor("scan"))
        t, round_fn = made[count]
        alone = without(t, client != EVERYBODY)
        state, _ = round_fn(noisy_start(t), t.hyper, alone.data)
        updates.append(tree.sub(plain(state.weights), plain(t.state().weights)))
        states.append(tree.take(plain(state).clients, client))
    return updates, states


def epochs_of(t):
    _, share = drawn(t)
    return np.ceil(share * SETTINGS["epochs"]).astype(int), share < 1


def test_fednova_knows_the_steps_of_stragglers(x64, tiny):
    """w + (sum p_k tau_k) (sum p_k D_k / tau_k), with steps and updates of fewer epochs."""
    t = tiny("fednova", norm="none", local_cfg=SETTINGS, federation=STRAGGLER)
    epochs, late = epochs_of(t)
    assert len(set(epochs)) > 2
    updates, _ = fewer(tiny, "fedavg", epochs)
    size, m = np.array(SIZES), SETTINGS["momentum"]
    steps = epochs * -(-size // 4)
    tau = np.maximum((steps - m * (1 - m**steps) / (1 - m)) / (1 - m), 1.0)
    p = size / size.sum()
    scale = np.sum(p * tau)
    start = plain(t.state().weights)
    weights = [tree.scale(scale * q / k, u) for q, k, u in zip(p, tau, updates, strict=True)]
    expected = tree.add(start, jax.tree.map(lambda *x: sum(x), *weights))
    state, metrics = t.run(1)
    same(state.weights.params, expected.params)
    np.testing.assert_array_equal(metrics.stragglers, late & (size > 0))
    odd = schedule.Odd(share=jnp.asarray(drawn(t)[1]))
    rows = make_rows(
        t.task,
        jax.random.key(0),
        ids=jnp.asarray(EVERYBODY),
        data=t.data,
        client_state={},
        odd=odd,
    )
    np.testing.assert_array_equal(rows.steps, steps)
    examples = np.sum(epochs * size)
    assert metrics.sums["examples"] == examples


def test_controls_of_stragglers_are_of_their_steps(x64, tiny):
    t = tiny("scaffold", norm="none", local_cfg=SETTINGS, federation=STRAGGLER)
    _, states = fewer(tiny, "scaffold", epochs_of(t)[0])
    state, _ = t.run(1, state=noisy_start(t))
    for client, expected in enumerate(states):
        same(tree.take(plain(state).clients, client), expected)


def test_every_phase_of_a_straggler_is_shorter(x64, tiny):
    """FedRep's head has E - 1 epochs and its body one, of which any share is one."""
    t = tiny("fedrep", local_cfg=SETTINGS, federation=STRAGGLER)
    head, body = t.task.method.phases
    share = jnp.asarray([0.01, 0.4, 1.0])
    counts = partial(local.loop_counts, local=t.task.trainer.local, size=jnp.full(3, 9))
    np.testing.assert_array_equal(counts(head, share=share)[0], [1, 2, 3])
    np.testing.assert_array_equal(counts(body, share=share)[0], [1, 1, 1])
    assert t.run(1)[1].finite.all()


# --- who diverges


@pytest.mark.parametrize("spec", ["scaffold", "fedfm"])
def test_skipping_is_leaving_the_client_out(x64, tiny, spec):
    options = {"norm": "none", "local_cfg": {"keep_optimizer": spec == "scaffold"}}
    t = poisoned(tiny(spec, federation={"nan": "skip"}, **options), LARGEST)
    start = plain(noisy_start(t).clients)
    state, metrics = t.run(1, state=noisy_start(t))
    rest = without(poisoned(tiny(spec, **options), LARGEST), EVERYBODY == LARGEST)
    expected, others = rest.run(1, state=noisy_start(t))
    same(state, expected)
    same(metrics.sums, others.sums)
    np.testing.assert_array_equal(metrics.diverged, EVERYBODY == LARGEST)
    assert metrics.finite.all() and metrics.dropped is metrics.stragglers is None
    identical(tree.take(state.clients, LARGEST), tree.take(start, LARGEST))
    stopped, told = poisoned(tiny(spec, **options), LARGEST).run(1)
    np.testing.assert_array_equal(told.finite, EVERYBODY != LARGEST)
    assert told.diverged is None and np.isnan(stopped.weights.params["head"]["bias"]).all()


def test_a_round_in_which_all_diverge_changes_nothing(x64, tiny):
    t = poisoned(tiny("scaffold", norm="none", federation={"nan": "skip"}), *EVERYBODY)
    start = plain(noisy_start(t))
    state, metrics = t.run(1, state=noisy_start(t))
    identical(plain(state)[1:], start[1:])
    np.testing.assert_array_equal(metrics.diverged, EVERYBODY != EMPTY)  # which does nothing


def test_a_state_that_is_not_finite_is_not_kept(x64, tiny):
    """What it sends may be finite all the same; it is left out, since it has diverged."""
    memo = Part(
        "memo",
        init_client=lambda setup: jnp.ones(()),
        keep=lambda f: f.client["memo"] + jnp.where(f.info.size == SIZES[SINGLE], jnp.inf, 1.0),
    )
    method = registry.build("fedavg")._replace(name="fedavg with a memo", parts=(memo,))
    t = tiny(method, norm="none", federation={"nan": "skip"})
    state, metrics = t.run(1)
    np.testing.assert_array_equal(metrics.diverged, EVERYBODY == SINGLE)
    np.testing.assert_array_equal(state.clients["memo"], [2, 1, 1, 2, 2, 2])
    rest, _ = without(tiny(norm="none"), EVERYBODY == SINGLE).run(1)
    same(state.weights, rest.weights)


# --- all of it at once


def everything(tiny, spec="scaffold", **more):
    t = tiny(spec, local_cfg={"epochs": 3}, federation=ALL | more)
    return poisoned(t, 0)


@pytest.mark.parametrize("executor", ["vmap", "sharded"])
def test_executors_agree(x64, tiny, executor):
    t = everything(tiny, participants=5)
    state, metrics = t.run(2)
    other, found = t.run(2, executor)
    same(other, state)
    same(found, metrics)
    assert metrics.dropped.any() and metrics.stragglers.any() and metrics.diverged.any()


def test_client_state_on_the_host(x64, tiny):
    t = everything(tiny, "moon", participants=5)
    expected, metrics = t.run(2)
    start = t.state()
    host = jax.tree.map(lambda x: np.array(x, copy=True), dict(start.clients))
    state, found = t.run(2, state=with_clients(start, host), clients_on_host=True)
    same(state, expected)
    same(found, metrics)


def test_seeds_at_once_equal_separate_ones(x64, tiny):
    t = everything(tiny)
    states = [t.state(seed) for seed in (0, 1)]
    how = executors.make_executor("sharded")
    data, state = how.place((t.data, stack_states(states)))
    run = rounds.make_rounds(t.task, how, at_once=2, seeds=Seeds(2))
    hyper = t.hyper._replace(lr=jnp.full(2, t.hyper.lr))
    alone = [t.run(2, "sharded", state=fresh(s)) for s in states]
    state, metrics = run(state, hyper, 2, data)
    for i, (expected, last) in enumerate(alone):
        same(tree.take(fresh(state), i), expected)
        same(tree.take(metrics, (1, i)), last)
    np.testing.assert_array_equal(metrics.dropped[0, 1], drawn(t, seed=1)[0])


def test_without_such_settings_nothing_is_drawn(tiny):
    def program(federation):
        t = tiny(norm="none", widths=(3,), federation=federation)
        round_fn = rounds.make_round(t.task, executors.make_executor("scan"))
        return str(jax.make_jaxpr(round_fn)(t.state(), t.hyper, t.data))

    none, dropout, straggler, skip = map(program, ({}, DROPOUT, STRAGGLER, {"nan": "skip"}))
    draws = [text.count("random_bits") for text in (none, dropout, straggler, skip)]
    assert draws == [draws[0], draws[0] + 1, draws[0] + 1, draws[0]]
    assert skip.count("is_finite") > none.count("is_finite")
