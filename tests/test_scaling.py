"""What grows with stored clients and what does not, and the benchmark that measures it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from runs import DATA, FEW, PLAIN, ROOT, needs_proc

from fedjax_nc.cli import flags
from fedjax_nc.data import federated, partition, partition_file, stream
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import first_state, place, stack_states, state_of_seed

sys.path.insert(0, str(ROOT / "benchmarks"))

import scaling

MOST = 1000  # bytes that a stored client may take beyond the index table


def test_exponents_of_made_up_numbers():
    assert scaling.exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1)
    assert scaling.exponent([2, 8, 32, 128], [5, 20, 80, 320]) == pytest.approx(1)
    assert scaling.exponent([1, 4, 16], [7, 14, 28]) == pytest.approx(0.5)
    assert scaling.exponent([1, 10, 1000], [2, 2, 2]) == pytest.approx(0)
    axis = scaling.AXES["stored"]
    rows = [
        dataclasses.asdict(point)
        | {"cpu_seconds": 1e-4 * point.clients, "peak_mb": 9e9, "parameters": 5}
        | {"rounds_mb": 300 + 640e-6 * point.clients, "table_mb": 40e-6 * point.clients}
        for point in axis.points
    ]
    fit = scaling.fitted(axis, rows)
    assert fit["time"] == pytest.approx(1)
    assert fit["bytes of a client"] == pytest.approx(600)
    assert 0 < fit["memory"] < 0.5
    assert scaling.AXES["model"].of(rows[0] | {"width": 64}) == 5


@pytest.mark.parametrize("axis", scaling.AXES.values(), ids=scaling.AXES.keys())
def test_points_of_an_axis_differ_in_one_number(axis):
    assert len(axis.points) > 2 and {p.clients % p.devices for p in axis.points} == {0}
    assert len({dataclasses.replace(p, **{axis.field: 1}) for p in axis.points}) == 1
    assert scaling.settings(axis.points[-1]).federation.participants <= axis.points[-1].clients


def test_results_are_shown_and_drawn(tmp_path, capsys):
    rows = [
        dataclasses.asdict(scaling.Point(clients=n))
        | {"seconds": 0.1, "cpu_seconds": 0.2, "peak_mb": 400, "rounds_mb": 300}
        | {"table_mb": 0.1, "cpu_seconds_in_all": 9, "state_mb": 8, "state_mb_of_devices": [4, 4]}
        for n in (100, 1000)
    ]
    content = {"rows": rows, "fitted": scaling.fitted(scaling.AXES["stored"], rows)}
    scaling.show({"axes": {"stored": content}})
    said = capsys.readouterr().out
    assert "| 1,000 | 0.200 | 0.100 | 300 | 400 | 0.10 | 8.0 | 4.0 |" in said
    assert "bytes of a client 0" in said
    scaling.draw({"axes": {"stored": content}}, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


@needs_proc
@pytest.mark.slow
def test_memory_of_a_stateless_method_hardly_grows_with_stored_clients():
    argv = [sys.executable, "benchmarks/scaling.py", "--quick"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    few, many = found["rows"]
    assert (few["clients"], many["clients"]) == (1000, 50_000)
    assert many["table_mb"] > 20 * few["table_mb"] > 0
    assert found["bytes_of_a_client"] < MOST, found


def test_assembly_of_many_clients_takes_few_bytes_each(tmp_path):
    """By Python's and numpy's own count, which is the same every time."""
    import tracemalloc

    held = {}
    for clients in (1000, 5000):
        point = scaling.Point(clients=clients)
        given, cfg = scaling.brought(point, Path(tmp_path)), scaling.settings(point)
        tracemalloc.start()
        job = assemble(cfg, given=given)
        held[clients] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(job.splits[0].train) == clients
    now, most = (b - a for a, b in zip(held[1000], held[5000], strict=True))
    assert now / 4000 < 600 and most / 4000 < MOST, held


def test_tables_and_counts_of_clients_with_and_without_examples():
    rows = [np.array([4, 2]), np.zeros(0, int), np.array([7, 1, 0])]
    table = federated.make_table(rows, offset=10)
    np.testing.assert_array_equal(table.index, [[14, 12, 0], [0, 0, 0], [17, 11, 10]])
    np.testing.assert_array_equal(table.size, [2, 0, 3])
    assert table.index.dtype == table.size.dtype == np.int32
    assert federated.make_table([]).index.shape == (0, 1)
    assert federated.make_table(rows[1:2]).index.shape == (1, 1)
    counts = partition.class_counts(rows, np.arange(8) % 3, classes=4)
    np.testing.assert_array_equal(counts, [[0, 1, 1, 0], [0, 0, 0, 0], [1, 2, 0, 0]])


def test_a_file_has_the_fingerprint_of_its_content(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (700, 4, 4, 1), np.uint8)
    np.save(tmp_path / "x.npy", x)
    hosts = [
        stream.Host(found, np.arange(1, 700), test_x=x[:5], y=np.zeros(704, int))
        for found in (x, np.load(tmp_path / "x.npy", "r"))
    ]
    assert hosts[0].fingerprint == hosts[1].fingerprint
    assert hosts[0]._replace(test_x=x[1:6]).fingerprint != hosts[0].fingerprint


def test_a_partition_of_many_clients_is_one_array_and_read_back(tmp_path, monkeypatch):
    rows = np.split(np.random.default_rng(0).permutation(40), np.cumsum([3, 0, 9, 8, 1]))
    tests = [row[:1] for row in rows]
    meta = {"pool": "test", "labels": "x"}
    found = []
    for many in (5, 6):  # below and above
        monkeypatch.setattr(partition_file, "_MANY", many)
        path = tmp_path / f"{many}.npz"
        partition_file.save(path, rows, test=tests, meta=meta)
        found.append(partition_file.load(path, 40))
    keys = [set(np.load(tmp_path / f"{many}.npz").files) for many in (5, 6)]
    assert keys[0] == {"meta", "client", "client_sizes", "test", "test_sizes"}
    assert len(keys[1]) == 13 and "client5" in keys[1]
    for left, right, given in zip(*(f[:2] for f in found), (rows, tests), strict=True):
        for x, y, row in zip(left, right, given, strict=True):
            np.testing.assert_array_equal(x, row)
            np.testing.assert_array_equal(y, row)
            assert x.dtype == y.dtype == np.int64
    assert found[0][2] == found[1][2] == meta


def test_a_partition_of_a_hundred_thousand_clients_is_not_too_large_to_be_read(tmp_path):
    rows = np.split(np.random.default_rng(0).permutation(200_000), 100_000)
    partition_file.save(tmp_path / "parts.npz", rows)
    assert (tmp_path / "parts.npz").stat().st_size < 10e6
    again, _, _ = partition_file.load(tmp_path / "parts.npz", 200_000)
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(rows))


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([2, 3], "do not add up"),
        ([5, -1], "are not sizes of parts"),
        ([2**63], "are not sizes of parts"),
        ([0] * 20_001, "are not sizes of parts"),  # more clients than examples, and many
        ([], "not lists of whole numbers"),
        ([[2, 2]], "not lists of whole numbers"),
        ([2.0, 2.0], "not lists of whole numbers"),
    ],
)
def test_sizes_that_fit_nothing_are_refused(tmp_path, sizes, line):
    np.savez(tmp_path / "bad.npz", client=np.arange(4), client_sizes=np.array(sizes))
    with pytest.raises(UserError, match=line):
        partition_file.load(tmp_path / "bad.npz", 4)
    np.savez(tmp_path / "two.npz", client=np.arange(4), client_sizes=[4], client0=np.arange(4))
    with pytest.raises(UserError, match="both as one array"):
        partition_file.load(tmp_path / "two.npz", 4)
    np.savez(tmp_path / "lost.npz", client_sizes=[0])
    with pytest.raises(UserError, match="belong to no client"):
        partition_file.load(tmp_path / "lost.npz", 4)


SCAFFOLD = ["--method=scaffold", *DATA, *FEW, *PLAIN]


def test_divided_state_is_never_whole_on_the_host():
    job = assemble(flags.parse([*SCAFFOLD, "--execution.shard"]).configs[0])
    for x in jax.tree.leaves(state_of_seed(job).clients):
        assert isinstance(x, np.ndarray) and x.strides[0] == 0, "one client's, shown again"
    first, plain = first_state(job), first_state(assemble(flags.parse(SCAFFOLD).configs[0]))
    for x, y in zip(jax.tree.leaves(first.clients), jax.tree.leaves(plain.clients), strict=True):
        np.testing.assert_array_equal(x, y)


def test_state_on_the_host_is_written_to():
    argv = [*SCAFFOLD, "--execution.client_state_mb=0"]
    job = assemble(flags.parse(argv).configs[0])
    state = stack_states([state_of_seed(job)])
    placed = place(job, state)
    assert all(x.flags.writeable for x in jax.tree.leaves(placed.clients))
    again = place(job, placed)
    for x, y in zip(*(jax.tree.leaves(s.clients) for s in (placed, again)), strict=True):
        assert x is y, "copied once"
