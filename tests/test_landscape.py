"""Planes through models, and what models say: against direct evaluation and the round itself."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import few_layers, small  # noqa: F401

from fedjax_nc import losses, tree
from fedjax_nc.analysis import landscape, outputs
from fedjax_nc.train.executors import make_executor
from fedjax_nc.types import Weights


def draw(seed, like):
    """Random numbers of the same shapes."""
    leaves, shape = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return shape.unflatten(drawn)


@pytest.fixture
def plane(x64, tiny):
    weights = tiny().state().weights
    return landscape.Plane(weights, draw(1, weights.params), draw(2, weights.params))


def test_coordinates_find_the_way_back(plane):
    found = landscape.coordinates(plane, landscape.at(plane, 0.7, -1.3).params)
    np.testing.assert_allclose(found, [0.7, -1.3], rtol=1e-9)
    # what is orthogonal to the plane does not count
    other = draw(3, plane.first)
    basis = (plane.first, plane.second)
    inside = landscape.coordinates(plane, tree.add(plane.origin.params, other))
    rest = tree.sub(other, jax.tree.map(lambda a, b: inside[0] * a + inside[1] * b, *basis))
    assert max(abs(tree.dot(rest, d)) for d in basis) < 1e-9
    # a plane that is only a line
    line = plane._replace(second=tree.zeros_like(plane.second))
    found = landscape.coordinates(line, landscape.at(line, 2.0, 0.0).params)
    np.testing.assert_allclose(found, [2.0, 0.0], atol=1e-9)


def test_only_the_groups_of_the_directions_move(plane):
    part = plane._replace(
        first=tree.pick(plane.first, ("head",)), second=tree.pick(plane.second, ("head",))
    )
    there = landscape.at(part, 1.0, 1.0)
    chex.assert_trees_all_equal(there.params["body"], plane.origin.params["body"])
    moved = tree.sub(there.params["head"], plane.origin.params["head"])
    chex.assert_trees_all_close(moved, tree.add(plane.first["head"], plane.second["head"]))


@pytest.mark.parametrize("name", ["basic", "looped"])
def test_filters_are_as_long_as_the_models(name):
    params = jax.jit(small(name).init)(jax.random.key(0)).params
    drawn = landscape.filter_normalised(params, jax.random.key(1))
    kernels = 0
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(drawn), strict=True
    ):
        if path[-1].key != "kernel":
            assert not b.any()
            continue
        kernels += 1
        # a loop's blocks are in front: each has its own filters
        filters = [x.reshape(len(x) if x.ndim % 2 else 1, -1, x.shape[-1]) for x in (a, b)]
        lengths = [np.linalg.norm(f, axis=1) for f in filters]
        np.testing.assert_allclose(lengths[1], lengths[0], rtol=1e-5)
        assert not np.allclose(a, b)
    assert kernels > 4 and (name == "basic" or max(x.ndim for x in jax.tree.leaves(params)) == 5)


def test_principal_directions_span_two_models(plane):
    models = [landscape.at(plane, 1.0, 0.2).params, landscape.at(plane, -0.4, 0.5).params]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    first, second = landscape.principal(plane.origin.params, stacked)
    for (a, b), dot in {(0, 0): 1.0, (1, 1): 1.0, (0, 1): 0.0}.items():
        found = tree.dot((first, second)[a], (first, second)[b])
        assert float(found) == pytest.approx(dot, abs=1e-9)
    own = landscape.Plane(plane.origin, first, second)
    for model in models:
        back = landscape.at(own, *landscape.coordinates(own, model)).params
        chex.assert_trees_all_close(back, model, atol=1e-9)


@pytest.mark.parametrize("executor", ["scan", "vmap", "sharded"])
def test_surface_is_the_loss_at_each_point(plane, tiny, executor):
    made = tiny()
    indices = np.array([3, 0, 11, 7, 20])
    batches = outputs.in_batches(indices, 2)
    fn = landscape.make_surface(made.task, make_executor(executor, chunk=2))
    xs, ys, seen = np.array([-1.0, 0.0, 2.0]), np.array([0.0, 0.5]), []
    found = landscape.surface(
        lambda points: fn(plane, made.data.pool, batches, points),
        xs,
        ys,
        4,
        lambda done, total: seen.append((done, total)),
    )
    assert found.shape == (2, 3) and seen == [(4, 6), (6, 6)]
    batch = made.task.trainer.make_batch(made.data.pool, indices, np.ones(5, bool), None)
    for j, y in enumerate(ys):
        for i, x in enumerate(xs):
            out, _ = made.task.trainer.model.apply(landscape.at(plane, x, y), batch.x, train=False)
            value = jnp.mean(losses.cross_entropy(out.logits, batch.y))
            np.testing.assert_allclose(found[j, i], value, rtol=1e-9)


@pytest.mark.parametrize("executor", ["scan", "sharded"])
def test_outputs_are_in_order(x64, tiny, executor):
    made = tiny("fedetf")
    weights, pool, trainer = made.state().weights, made.data.pool, made.task.trainer
    indices = np.array([5, 1, 9, 2, 30])
    batches, runner = outputs.in_batches(indices, 2), make_executor(executor)
    one = jax.jit(outputs.make_outputs(made.task, runner))(weights, pool, batches)
    several = jax.jit(outputs.make_outputs_of_clients(made.task, runner))(
        tree.repeat(weights, 3), pool, batches
    )
    batch = trainer.make_batch(pool, indices, np.ones(5, bool), None)
    out, _ = trainer.model.apply(weights, batch.x, train=False)
    for name in ("features", "projected", "logits"):
        np.testing.assert_allclose(getattr(one, name)[:5], getattr(out, name), rtol=1e-9)
    np.testing.assert_array_equal(one.y[:5], batch.y)
    np.testing.assert_array_equal(one.mask, [1, 1, 1, 1, 1, 0])
    chex.assert_trees_all_close(several, tree.repeat(one, 3), rtol=1e-9)


def test_local_models_are_the_rounds(x64, tiny):
    """Their mean, weighted by data, is what the server has after the round."""
    made = tiny("fedavg")
    executor, state = make_executor("scan"), made.state()
    ids = jnp.arange(6)
    models = jax.jit(outputs.make_local_models(made.task, executor))(
        state, ids, {}, made.hyper, made.data
    )
    share = made.data.train.size / jnp.sum(made.data.train.size)
    mean = jax.tree.map(lambda x: jnp.tensordot(share, x, 1), models)
    after, _ = made.run()
    chex.assert_trees_all_close(Weights(*mean), after.weights, rtol=1e-9, atol=1e-12)
    # the sums over a client's own examples are of its own model
    table = made.data.train

    def hits(out, batch):
        return jnp.sum(jnp.where(batch.mask[:, None], out.logits, 0.0), 0)

    fn = outputs.make_sums_of_clients(made.task, executor, 4, hits)
    sums = jax.jit(fn)(models, made.data.pool, table)
    assert not sums[1].any()  # which has none
    for client in (0, 2, 3):
        size = int(table.size[client])
        indices = table.index[client, :size]
        batch = made.task.trainer.make_batch(made.data.pool, indices, np.ones(size, bool), None)
        out, _ = made.task.trainer.model.apply(tree.take(models, client), batch.x, train=False)
        np.testing.assert_allclose(sums[client], out.logits.sum(0), rtol=1e-9, atol=1e-12)
