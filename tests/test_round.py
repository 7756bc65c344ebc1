"""The local loop, the executors, the round and evaluation, on the tiny federation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from trees import differ, identical, noisy, only, plain, same, watched, with_clients

from fedjax_nc import config, tree
from fedjax_nc.methods import registry
from fedjax_nc.train import executors, schedule
from fedjax_nc.train import round as rounds
from fedjax_nc.train.traffic import traffic
from fedjax_nc.types import State, Table

EMPTY, SINGLE, LARGEST = 1, 2, 3  # clients of the tiny federation


OPTIMISERS = {
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.05},
        lambda lr: optax.chain(optax.add_decayed_weights(0.05), optax.sgd(lr, 0.9)),
    ),
    "plain": ({"momentum": 0.0}, optax.sgd),
    "nesterov": ({"nesterov": True}, lambda lr: optax.sgd(lr, 0.9, nesterov=True)),
    "clip": (
        {"clip": 0.1, "weight_decay": 0.05},
        lambda lr: optax.chain(
            optax.clip_by_global_norm(0.1), optax.add_decayed_weights(0.05), optax.sgd(lr, 0.9)
        ),
    ),
    "adam": ({"optimizer": "adam"}, optax.adam),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_client_is_plain_sgd(x64, tiny, name):
    """FedAvg with one client against optax on the same, unpadded batches."""
    options, make = OPTIMISERS[name]
    t = only(tiny(local_cfg={"batch_size": 5, "epochs": 2, "lr": 0.02, **options}), LARGEST)
    weights = t.state().weights
    noting, seen = watched(t)
    state, _ = noting.run(1, "debug")
    assert [len(b) for b in seen] == [5, 5, 2, 5, 5, 2]
    mine = set(np.asarray(t.data.train.index)[0])
    assert set(np.concatenate(seen[:3])) == set(np.concatenate(seen[3:])) == mine
    assert any(np.any(a != b) for a, b in zip(seen[:3], seen[3:], strict=True))

    model, tx = t.task.trainer.model, make(0.02)
    params, stats = weights
    opt = tx.init(params)

    @jax.jit
    def step(params, stats, opt, x, y):
        def loss(params):
            out, new = model.apply(weights._replace(params=params, stats=stats), x, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(out.logits, y).mean(), new

        grads, stats = jax.grad(loss, has_aux=True)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), stats, opt

    for numbers in seen:
        x, y = t.data.pool.x[numbers] / 255.0 - 0.5, t.data.pool.y[numbers]
        params, stats, opt = step(params, stats, opt, x, y)
    # Adam divides small gradients by themselves, rounding errors and all
    tolerance = {"rtol": 1e-6} if name == "adam" else {}
    same(state.weights, weights._replace(params=params, stats=stats), **tolerance)


@pytest.mark.parametrize(
    "options, lengths",
    [
        ({"drop_last": True}, [5, 5]),
        ({"steps": 3}, [5, 5, 5]),
        ({"batch_size": 12}, [12]),
        ({"batch_size": 50, "drop_last": True}, [12]),
        ({"batch_size": 50, "steps": 2}, [12, 12]),
    ],
)
def test_batches_of_a_round(tiny, options, lengths):
    t = tiny(norm="none", widths=(3,), local_cfg={"batch_size": 5, **options})
    t, seen = watched(only(t, LARGEST))
    t.run(1, "debug")
    assert [len(b) for b in seen] == lengths
    assert all(len(set(b)) == len(b) for b in seen)


def test_keep_optimizer(x64, tiny):
    """Two rounds of one epoch with surviving momentum are one round of two epochs."""

    def run(count, **options):
        options = {"batch_size": 12, "momentum": 0.9} | options
        return only(tiny(norm="none", local_cfg=options), LARGEST).run(count)[0]

    twice, forgetful, once = run(2, keep_optimizer=True), run(2), run(1, epochs=2)
    same(twice.weights, once.weights)
    bias = [s.weights.params["head"]["bias"] for s in (forgetful, once)]
    assert not np.allclose(*bias, rtol=1e-3)
    assert np.any(jax.tree.leaves(twice.clients["optimizer"])[0])


def test_fedprox_without_pull_is_fedavg(x64, tiny):
    avg, _ = tiny("fedavg", norm="none").run(2)
    none, _ = tiny("fedprox(mu=0.0)", norm="none").run(2)
    some, _ = tiny("fedprox(mu=1.0)", norm="none").run(2)  # mu is traced: nothing compiles again
    same(avg.weights, none.weights)
    start = tiny("fedavg", norm="none").state().weights.params
    distance = [tree.sq_distance(s.weights.params, start) for s in (avg, some)]
    assert distance[1] < 0.9 * distance[0]


# ---- what travels and what stays -----------------------------------------------------------


def test_weights_of_clients(x64, tiny):
    """The new model is the mean of the clients', weighted as the configuration says."""
    expected = {
        "size": [7, 0, 1, 12, 5, 3],
        "equal": [1, 0, 1, 1, 1, 1],
        "batches": [2, 0, 1, 4, 1, 1],
    }
    for kind, values in expected.items():
        t = tiny(
            norm="none", widths=(3,), local_cfg={"batch_size": 3}, federation={"weights": kind}
        )
        state = t.state()
        key = jax.random.fold_in(jax.random.fold_in(state.key, 0), 1)
        rows = rounds.make_rows(t.task, key, ids=jnp.arange(6), data=t.data, client_state={})
        broadcast = rounds.Broadcast(state.weights, {}, hyper=t.hyper, pool=t.data.pool)
        _, packed = jax.jit(jax.vmap(rounds.make_client(t.task), (None, 0)))(broadcast, rows)
        uploads = jax.vmap(tree.unpack)(packed)
        np.testing.assert_array_equal(uploads["weight"], values)
        local_bias = [
            state.weights.params["head"]["bias"] + u / max(w, 1)
            for u, w in zip(uploads["update"].params["head"]["bias"], values, strict=True)
        ]
        mean = np.average(local_bias, axis=0, weights=values)
        new, _ = t.run(1, state=state)
        np.testing.assert_allclose(new.weights.params["head"]["bias"], mean, rtol=1e-12)


def test_personal_groups_never_leave(x64, tiny):
    method = registry.build("fedavg")._replace(personal=("head",))
    t = tiny(method, norm="none")
    start = t.state()
    assert set(rounds.upload_of(method, start.weights).params) == {"body"}
    first = plain(start)
    one, _ = t.run(1)
    one = plain(one)
    identical(one.weights.params["head"], first.weights.params["head"])
    assert differ(one.weights.params["body"], first.weights.params["body"])
    heads = one.clients["personal"].params["head"]["kernel"]
    assert len(np.unique(heads.reshape(6, -1), axis=0)) == 6  # five trained ones and the start
    identical(heads[EMPTY], first.weights.params["head"]["kernel"])
    # another client's head is not felt, my own is
    changed = noisy(start.clients["personal"])
    mixed = jax.tree.map(lambda a, b: a.at[0].set(b[0]), start.clients["personal"], changed)
    other, _ = t.run(1, state=with_clients(start, {"personal": mixed}))
    other = plain(other)
    identical(other.clients["personal"].params["head"]["kernel"][1:], heads[1:])
    assert differ(other.clients["personal"].params["head"]["kernel"][0], heads[0])
    assert differ(other.weights.params["body"], one.weights.params["body"])


def test_uploads_and_traffic(tiny):
    for spec, sent in {
        "fedavg": {"body", "head"},
        "fedbabu": {"body"},
        "fedetf": {"body", "projector", "scale"},
    }.items():
        t = tiny(spec)
        weights = t.state().weights
        upload = rounds.upload_of(t.task.method, weights)
        assert set(upload.params) == sent and upload.stats == weights.stats
        assert traffic(t.task, t.data.pool) == (tree.num_bytes(upload),) * 2
    t = tiny("scaffold")
    model, control = tree.num_bytes(t.state().weights), tree.num_bytes(t.state().weights.params)
    assert traffic(t.task, t.data.pool) == (model + control,) * 2


def test_client_without_data_changes_nothing(x64, tiny):
    t = tiny("scaffold", norm="none")
    initial = t.state()
    start = with_clients(initial, noisy(initial.clients))
    kept = plain(start.clients)
    state, metrics = t.run(1, state=start)
    after = plain(state.clients)
    identical(tree.take(after, EMPTY), tree.take(kept, EMPTY))
    for client in set(range(6)) - {EMPTY}:
        assert differ(tree.take(after, client), tree.take(kept, client))
    assert metrics.sums["examples"] == 28


@pytest.mark.parametrize("spec", ["scaffold", "fedavgm"])  # the second would go on by momentum
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_all_clients_empty(x64, tiny, weights, spec):
    t = tiny(spec, norm="none", federation={"weights": weights})
    t = t._replace(data=t.data._replace(train=Table(t.data.train.index, t.data.train.size * 0)))
    initial = t.state()
    initial = State(
        initial.round, initial.key, initial.weights, noisy(initial.shared), noisy(initial.clients)
    )
    start = plain(initial)
    state, metrics = t.run(1, state=initial)
    identical(state.weights, start.weights)
    identical((state.shared, state.clients), (start.shared, start.clients))
    assert metrics.finite.all()


def test_partial_participation(x64, tiny):
    t = tiny("scaffold", norm="none", federation={"participants": 3})
    initial = t.state()
    start = with_clients(initial, noisy(initial.clients))
    kept = plain(start.clients)
    state, metrics = t.run(1, "chunked", state=start)  # three in chunks of two
    ids = np.asarray(metrics.ids)
    assert len(set(ids)) == 3
    for client in range(6):
        changed = differ(tree.take(plain(state.clients), client), tree.take(kept, client))
        assert changed == (client in ids and client != EMPTY)


def test_client_state_on_the_host(x64, tiny):
    t = tiny("moon", federation={"participants": 5})
    expected, _ = t.run(2, "chunked")
    start = t.state()
    host = jax.tree.map(lambda x: np.array(x, copy=True), dict(start.clients))
    state, _ = t.run(2, "chunked", state=with_clients(start, host), clients_on_host=True)
    assert isinstance(jax.tree.leaves(state.clients)[0], np.ndarray)
    same(state, expected)


# ---- padding, tracing, randomness ----------------------------------------------------------


def test_longer_tables_change_nothing(x64, tiny):
    """What padding holds is in the table of methods."""
    t = tiny(local_cfg={"batch_size": 5})
    index, size = t.data.train
    longer = np.pad(index, ((0, 0), (0, 6)), constant_values=9)
    data = t.data._replace(train=Table(jnp.asarray(longer), size))
    same(t._replace(data=data).run(2)[0], t.run(2)[0], rtol=0.0, atol=1e-12)


def test_one_trace(tiny):
    """Of the sharded executor; that of `scan` is in the table of methods."""
    traced = 0
    method = registry.build("fedavg | fd")
    term = method.phases[0].terms[0]

    def counting(context):
        nonlocal traced
        traced += 1
        return term.fn(context)

    terms = (term._replace(fn=counting), *method.phases[0].terms[1:])
    t = tiny(method._replace(phases=(method.phases[0]._replace(terms=terms),)))
    how = executors.make_executor("sharded")
    round_fn = rounds.make_round(t.task, how)
    state, data = how.place(t.state()), how.place(t.data)
    biases, first = [], 0
    for lr, weight in [(0.1, 0.9), (0.05, 0.9), (0.05, 0.2)]:
        weights = ((jnp.asarray(weight), jnp.asarray(1 - weight)),)
        state, _ = round_fn(state, t.hyper._replace(lr=jnp.asarray(lr), term_weights=weights), data)
        first = first or traced
        biases.append(np.array(state.weights.params["head"]["bias"]))
    assert first > 0 and traced == first
    assert differ(biases[1], biases[2])


def test_term_weight_and_lr_matter(x64, tiny):
    t = tiny("fedavg | fd")
    one = t.run(2)[0]
    for hyper in (
        t.hyper._replace(lr=t.hyper.lr / 2),
        t.hyper._replace(term_weights=jax.tree.map(lambda w: w / 2, t.hyper.term_weights)),
    ):
        assert differ(t._replace(hyper=hyper).run(2)[0].weights, one.weights)


def test_initial_weights_share_no_key_with_a_round(tiny):
    """split and fold_in agree, so equal fold_in numbers would give equal draws."""
    key = jax.random.key(5)
    used = []
    t = tiny()
    model = t.task.trainer.model
    spy = model._replace(init=lambda k: used.append(k) or model.init(k))
    with jax.disable_jit():
        rounds.init_state(t.task._replace(trainer=t.task.trainer._replace(model=spy)), key)
    numbers = np.asarray(
        jax.random.key_data(jax.vmap(lambda r: jax.random.fold_in(key, r))(jnp.arange(1000)))
    )
    assert not np.any(np.all(numbers == np.asarray(jax.random.key_data(used[0])), axis=1))


def test_flags_the_client_that_diverges(tiny):
    t = tiny(local_cfg={"batch_size": 5})
    pool = t.data.pool
    x = pool.x.astype(jnp.float32).at[t.data.train.index[4, 1]].set(jnp.inf)
    t = t._replace(data=t.data._replace(pool=pool._replace(x=x)))
    for executor in ("vmap", "sharded"):
        _, metrics = t.run(1, executor)
        bad = np.asarray(metrics.ids)[~np.asarray(metrics.finite)]
        np.testing.assert_array_equal(bad, [4])


def test_schedule():
    constant = config.Local(lr=0.5)
    step = config.Local(lr=1.0, schedule="step", decay=0.1, milestones=(2, 4))
    exponential = config.Local(lr=1.0, schedule="exponential", decay=0.5)
    for cfg, expected in [
        (constant, [0.5] * 5),
        (step, [1, 1, 0.1, 0.1, 0.01]),
        (exponential, [1, 0.5, 0.25, 0.125, 0.0625]),
    ]:
        np.testing.assert_allclose([schedule.learning_rate(cfg, r) for r in range(5)], expected)
    ids = schedule.sample_clients(jax.random.key(0), 10, 4)
    assert len(set(np.asarray(ids).tolist())) == 4 and ids.max() < 10
    np.testing.assert_array_equal(schedule.sample_clients(jax.random.key(0), 3, 3), [0, 1, 2])


def test_packing_keeps_every_leaf():
    leaves = {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": (jnp.arange(3), jnp.float32(7)),
        "c": (),
        "d": jnp.zeros((0, 2)),
        "e": jnp.array([True, False]),
    }
    packed = tree.pack(leaves)
    assert [v.size for v in packed.vectors.values()] == [2, 7, 3]
    chex.assert_trees_all_equal(tree.unpack(packed), leaves, strict=True)


def test_every_round_draws_its_own_participants():
    federation = config.Federation(clients=6, participants=3)
    key = jax.random.key(0)
    drawn = [schedule.participants(key, n, federation=federation).tolist() for n in range(100)]
    assert all(len(set(ids)) == 3 for ids in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=6)
    assert counts.min() > 30 and counts.max() < 70  # of 50, with a deviation of 5
