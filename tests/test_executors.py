"""Every executor computes the same round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc import testing
from fedjax_nc.methods import base, catalogue, registry
from fedjax_nc.train import executors

QUICK = ("scaffold", "fedbabu | fd(beta=0.9)")  # parts and a server rule; a frozen head, a teacher
FEWER = {"gradaug": "gradaug(min_width=1.0, subnets=1)"}  # four branches instead of sixteen
# regularisers that no base is made of
MORE = ("fedavg | kd(beta=0.5) | ld(beta=0.5) | ccvr(samples=20) | ft(epochs=1)",)
# of each family, which is a file
FIRST = {entry.family: name for name, entry in reversed(catalogue.bases().items())}


@pytest.mark.parametrize(
    "spec",
    [
        *QUICK,
        *(
            pytest.param(FEWER.get(name, name), marks=pytest.mark.slow)
            for name in (*catalogue.bases(), *MORE)
            if name not in QUICK
        ),
    ],
)
def test_method_table(spec, monkeypatch):
    """Every property of `fedjax_nc.testing`.

    Without jit a method is the same Python that the others trace, and chunks on every device are
    clients at once, too: `debug` and `vmap` are tried on the first method of each file.
    """
    if spec not in (*QUICK, *MORE, *FIRST.values()):
        few = ("agrees under debug", "agrees under vmap")
        left = {k: v for k, v in testing.METHOD.items() if k not in few}
        monkeypatch.setattr(testing, "METHOD", left)
    report = testing.check_method(spec)
    assert list(report.rows) == list(testing.METHOD)


@pytest.mark.parametrize("name", ["fedbabu", "dot_regression", "feddr_plus", "fedetf"])
def test_heads_that_stay(name):
    """The table sees to it that what nobody sends does not move under the mean of updates."""
    method = registry.build(name)
    assert "head" not in base.trained_groups(method, ("body", "head"))
    assert method.server is base.weighted_mean


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
