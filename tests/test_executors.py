"""Every executor computes the same round."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import differ, fresh, identical, plain, same

from fedjax_nc.io import checkpoint
from fedjax_nc.methods import base, catalogue, registry
from fedjax_nc.train import executors
from fedjax_nc.train.round import make_round
from fedjax_nc.train.seeds import lead
from fedjax_nc.types import Table

EXECUTORS = ("vmap", "scan", "chunked", "sharded", "debug")
FROZEN = {"fedbabu": "head", "dot_regression": "head", "feddr_plus": "head", "fedetf": "head"}
EMPTY, SINGLE, LARGEST = 1, 2, 3  # clients of the tiny federation


QUICK = ("scaffold", "fedbabu | fd(beta=0.9)")  # parts and a server rule; a frozen head, a teacher
FEWER = {"gradaug": "gradaug(min_width=1.0)"}  # four branches to compile instead of eight


@pytest.mark.parametrize(
    "spec",
    [
        *QUICK,
        *(
            pytest.param(FEWER.get(name, name), marks=pytest.mark.slow)
            for name in catalogue.bases()
            if name not in QUICK
        ),
    ],
)
def test_method_table(x64, tiny, tmp_path, spec):
    """Trains, repeats, resumes, reads no padding, and every executor agrees.

    Two rounds with an empty client, one with a single example, and classes few clients have.
    """
    t = tiny(spec, federation={"participants": 5})
    initial = t.state()
    start = plain(initial)
    round_fn = make_round(t.task, executors.make_executor("scan"))

    def scan(state, data=t.data):
        return round_fn(state, t.hyper, data)

    first, first_metrics = scan(fresh(initial))
    after_one = plain(first)
    with checkpoint.open_manager(tmp_path / "ckpt") as manager:
        checkpoint.save([manager], lead(first))
        restored, _ = checkpoint.restore(manager, initial)
    expected, metrics = scan(first)
    identical(scan(restored)[0], expected)
    identical(scan(fresh(initial), with_dirty_padding(t.data))[0], after_one)
    nobody = t.data._replace(train=Table(t.data.train.index, t.data.train.size * 0))
    idle, idle_metrics = scan(fresh(initial), nobody)
    identical(plain(idle)[2:], start[2:])  # weights, shared and client state
    assert idle_metrics.finite.all()
    assert expected.round == 2 and EMPTY in metrics.ids and metrics.finite.all()
    nobody_uploads = "body" in t.task.method.personal
    assert differ(expected.weights, start.weights) != nobody_uploads
    assert differ(expected.clients, start.clients) or not start.clients
    chex.assert_trees_all_equal_shapes_and_dtypes(plain(expected), start)
    group = FROZEN.get(spec.split()[0])
    if group:
        identical(expected.weights.params[group], start.weights.params[group])
    for name in EXECUTORS:
        if name == "debug":  # slow: one round
            state, other = t.run(1, name, state=fresh(initial))
            same(state, after_one)
            same(other.sums, first_metrics.sums)
        elif name != "scan":
            state, other = t.run(2, name, state=fresh(initial))
            same(state, expected)
            same(other.sums, metrics.sums)


def with_dirty_padding(data):
    """The same clients, with other examples in the slots that nobody owns."""
    index, size = data.train
    padding = np.arange(index.shape[1]) >= np.asarray(size)[:, None]
    garbage = np.random.RandomState(1).randint(0, len(data.pool.y), index.shape)
    dirty = np.where(padding, garbage, index).astype(np.int32)
    return data._replace(train=Table(jnp.asarray(dirty), size))


def test_debug_names_the_client(tiny):
    def fail(context):
        raise ValueError("broken term")

    method = registry.build("fedavg")
    method = method._replace(phases=(base.Phase((base.Term("bad", fail),)),))
    with pytest.raises(ValueError, match="broken term") as caught:
        tiny(method).run(1, "debug")
    assert any("client 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "steps, devices, slots, loads",
    [
        ([20, 11, 6, 4, 3, 2, 1, 1, 1, 1], 2, 8, [25, 25]),
        ([9, 1, 1, 1, 1, 1, 1, 1, 1, 0], 2, 8, [9, 8]),
        ([9, 1, 1, 1, 1], 2, 3, [10, 3]),  # no more than its slots
        ([5, 5, 5], 4, 1, [5, 5, 5, 0]),
        ([3, 2, 1], 1, 3, [6]),
    ],
)
def test_deal_balances(steps, devices, slots, loads):
    slot, held = executors.deal(jnp.asarray(steps), devices, slots)
    assert len(set(slot.tolist())) == len(steps) == held.sum() and held.max() <= slots
    assert set(slot.tolist()) == {d * slots + i for d in range(devices) for i in range(held[d])}
    totals = np.zeros(devices, int)
    np.add.at(totals, np.asarray(slot) // slots, steps)
    assert totals.tolist() == loads


@pytest.mark.parametrize(
    "name, chunk", [("vmap", 4), ("scan", 4), ("chunked", 4), ("sharded", 4), ("debug", 4)]
)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_come_back_in_their_order(name, chunk, count):
    def fn(broadcast, row):
        return {"twice": 2 * row["x"]}, {"sum": broadcast * row["x"], "count": jnp.ones(())}

    how = executors.make_executor(name, chunk=chunk)
    rows = {"x": jnp.arange(3.0 * count).reshape(count, 3), "id": jnp.arange(count)}
    steps = jnp.asarray([3, 0, 5, 1, 4, 1, 5][:count])
    run = lambda: how.run(fn, jnp.asarray(10.0), rows, steps)  # noqa: E731
    out, sums = (jax.jit(run) if how.jit else run)()
    np.testing.assert_array_equal(out["twice"], 2 * rows["x"])
    np.testing.assert_array_equal(sums["sum"], 10 * rows["x"].sum(0))
    assert sums["count"] == count


def test_unknown_device_count_is_all_of_them():
    auto = executors.make_executor("auto")
    assert (auto.name, auto.devices) == ("sharded", 2)
    placed = auto.place({"x": jnp.ones(3), "key": jax.random.key(0)})
    assert len(placed["x"].devices()) == 2
