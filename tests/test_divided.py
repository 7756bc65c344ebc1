"""State and examples that are divided over devices: the same run, and no device has all of it."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import SHARE, assert_same_run, directory_of, train

from fedjax_nc.cli import flags
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import first_state
from fedjax_nc.train.executors import make_executor


@pytest.mark.parametrize("seeds", [["0"], ["0", "1"]])
def test_divided_state_is_the_same_run(tmp_path, seeds):
    argv = [*SHARE, "--seeds", *seeds, *(["--seeds_parallel"] if len(seeds) > 1 else [])]
    plain = train(tmp_path / "plain", argv)
    divided = train(tmp_path / "divided", [*argv, "--execution.shard"])
    assert plain.relative_to(tmp_path / "plain") == divided.relative_to(tmp_path / "divided")
    assert_same_run(plain, divided)


def test_divided_examples_are_the_same_run(tmp_path):
    plain = train(tmp_path / "plain", SHARE)
    divided = train(tmp_path / "divided", [*SHARE, "--execution.shard", "--execution.pool_mb=1"])
    assert_same_run(plain, divided)
    few = [*SHARE, "--execution.shard", "--execution.pool_mb=0"]
    assert_same_run(plain, train(tmp_path / "streamed", few))


def test_devices_share_the_client_state_out():
    job = assemble(flags.parse([*SHARE, "--execution.shard"]).configs[0])
    clients = first_state(job).clients
    for x in jax.tree.leaves(clients):
        assert [shard.data.nbytes for shard in x.addressable_shards] == [x.nbytes / 2] * 2
    text = flags.parse(SHARE).configs[0]
    for x in jax.tree.leaves(first_state(assemble(text)).clients):
        assert [shard.data.nbytes for shard in x.addressable_shards] == [x.nbytes] * 2


def test_rows_of_a_divided_table(x64):
    how = make_executor("sharded", spread=True)
    table = {
        "a": jnp.arange(24.0).reshape(8, 3),
        "n": jnp.arange(8, dtype=jnp.int32),
        "b": jnp.arange(8) % 2 == 0,
    }
    table = jax.device_put(table, how.shares())
    ids = jnp.asarray([6, 0, 5])
    rows = jax.jit(how.rows)(table, ids)
    for name, x in table.items():
        np.testing.assert_array_equal(rows[name], np.asarray(x)[[6, 0, 5]])
        assert rows[name].dtype == x.dtype
    new = {"a": -rows["a"], "n": rows["n"] + 100, "b": ~rows["b"]}
    after = jax.jit(how.with_rows)(table, ids, new)
    for name, x in table.items():
        expected = np.asarray(x).copy()
        expected[[6, 0, 5]] = new[name]
        np.testing.assert_array_equal(after[name], expected)
        assert after[name].sharding == x.sharding


def test_no_device_gathers_the_whole_table():
    """The state of all clients would not fit there."""
    how = make_executor("sharded", spread=True)
    table = jax.device_put(jnp.zeros((64, 1000)), how.shares())
    text = jax.jit(how.rows).lower(table, jnp.arange(3)).compile().as_text()
    assert "all-gather" not in text and "f32[64,1000]" not in text


def test_names_do_not_depend_on_where_state_is(tmp_path):
    names = {directory_of(tmp_path, [*SHARE, *w]) for w in ([], ["--execution.shard"])}
    assert len(names) == 1
    assert os.sep in str(names.pop())
