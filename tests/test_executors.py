"""Every executor computes the same round."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import differ, fresh, identical, plain, same

from fedjax_nc.methods import base, catalogue, registry
from fedjax_nc.train import executors

EXECUTORS = ("vmap", "scan", "chunked", "sharded", "debug")
FROZEN = {"fedbabu": "head", "dot_regression": "head", "feddr_plus": "head", "fedetf": "head"}
EMPTY, SINGLE, LARGEST = 1, 2, 3  # clients of the tiny federation


QUICK = ("scaffold", "fedbabu | fd(beta=0.9)")  # parts and a server rule; a frozen head, a teacher


@pytest.mark.parametrize(
    "spec",
    [
        *QUICK,
        *(pytest.param(n, marks=pytest.mark.slow) for n in catalogue.bases() if n not in QUICK),
    ],
)
def test_executors_agree(x64, tiny, spec):
    t = tiny(spec, federation={"participants": 5})
    initial = t.state()
    start = plain(initial)
    first, first_metrics = t.run(1, "scan", state=fresh(initial))
    after_one = plain(first)
    expected, metrics = t.run(1, "scan", state=first)
    assert expected.round == 2 and EMPTY in metrics.ids and metrics.finite.all()
    assert differ(expected.weights, start.weights)
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


def test_debug_names_the_client(tiny):
    def fail(context):
        raise ValueError("broken term")

    method = registry.build("fedavg")
    method = method._replace(phases=(base.Phase((base.Term("bad", fail),)),))
    with pytest.raises(ValueError, match="broken term") as caught:
        tiny(method).run(1, "debug")
    assert any("client 3" in note for note in caught.value.__notes__)  # the largest goes first


def test_deal_balances():
    for count, devices in [(8, 2), (9, 3), (4, 4), (5, 1)]:
        order = executors.deal(count, devices)
        assert sorted(order) == list(range(count))
        totals = order.reshape(devices, -1).sum(1)
        assert np.ptp(totals) <= devices


def test_unknown_device_count_is_all_of_them():
    auto = executors.make_executor("auto")
    assert (auto.name, auto.devices) == ("sharded", 2)
    placed = auto.place({"x": jnp.ones(3), "key": jax.random.key(0)})
    assert len(placed["x"].devices()) == 2
