"""Rounds on CIFAR-10 through `run` are those of a plain PyTorch loop on the same pictures.

PyTorch's side is benchmarks/peers/cifar_rounds.py, recorded in tests/golden, so that these tests
run without it; with PEER_PYTHON=.venv-peers/bin/python, a Python that has torch, it is computed
again.
"""

import subprocess

import jax
import numpy as np
import pytest
import real_rounds
from real_rounds import DRAWS, EPOCHS, HITS, LIMIT, PYTHON, TOLERANCE

from fedjax_nc.data import prepared
from fedjax_nc.errors import UserError

DTYPES = list(TOLERANCE)


@pytest.fixture(scope="module", params=DTYPES)
def ran(request, tmp_path_factory):
    """The run of a precision: its name, result, weights and draws."""
    try:
        prepared.inspect("cifar10", prepared.data_dir(None))
    except UserError as error:
        pytest.skip(f"CIFAR-10 is not prepared: {error}")
    with jax.enable_x64(request.param == "float64"):
        return request.param, *real_rounds.run(tmp_path_factory.mktemp("runs"))


def right(result):
    """How many of the official test pictures are right after each round."""
    return np.rint(10_000 * result.curves["global_accuracy"][0]).astype(int)


def check(away, dtype):
    assert np.all(np.array(away) <= TOLERANCE[dtype]), away


@pytest.mark.slow
def test_rounds_on_cifar10_are_those_of_a_plain_pytorch_loop(ran):
    dtype, result, weights, draws = ran
    recorded = real_rounds.load(dtype)
    for name in DRAWS:
        np.testing.assert_array_equal(draws[name], recorded[name], "run tests/real_rounds.py")
    check(real_rounds.difference(real_rounds.shorten(real_rounds.named(weights)), recorded), dtype)
    np.testing.assert_allclose(right(result), recorded["correct"], atol=HITS[dtype])
    # what was compared is what the run leaves
    last = real_rounds.as_torch(result.weights)
    assert all(np.array_equal(last[name], weights[3][name]) for name in last)


@pytest.mark.slow
def test_pytorch_computes_what_is_recorded(ran, tmp_path):
    """Every entry of every tensor, from files whose checksums are those of the official ones."""
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no torch: set PEER_PYTHON to one that has it")
    dtype, result, weights, draws = ran
    folder = real_rounds.write_official(tmp_path)
    found = real_rounds.by_torch(draws, weights[0], folder, dtype=dtype)
    np.testing.assert_allclose(right(result), found["correct"], atol=HITS[dtype])
    np.testing.assert_allclose(found.pop("correct"), real_rounds.load(dtype)["correct"], atol=2)
    ours = real_rounds.whole(real_rounds.named(weights))
    check(real_rounds.difference(ours, real_rounds.whole(found)), dtype)
    recorded = {k: x for k, x in real_rounds.load(dtype).items() if k.startswith("round")}
    check(real_rounds.difference(real_rounds.shorten(found), recorded), dtype)
    # a picture that is not mirrored shows
    still = {name: x[draws["round"] == 0] for name, x in draws.items()}
    still["mirrored"] = np.zeros_like(still["mirrored"])
    other = real_rounds.by_torch(still, weights[0], folder, dtype=dtype)
    del other["correct"]
    away = real_rounds.difference(ours, real_rounds.whole(other))
    assert away[0] > 5 * TOLERANCE[dtype][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_draws_are_what_a_run_should_draw(dtype):
    """Epochs visit a client's pictures once each, in new orders; crops and flips are chance."""
    draws = real_rounds.load(dtype)
    real = draws["index"] >= 0
    for number in range(3):
        clients = np.unique(draws["client"][draws["round"] == number])
        assert len(clients) == 5
        for client in clients:
            rows = (draws["round"] == number) & (draws["client"] == client)
            epochs = np.split(draws["index"][rows], EPOCHS)
            first, second = (epoch[epoch >= 0] for epoch in epochs)
            assert len(set(first)) == len(first) and set(first) == set(second)
            assert not np.array_equal(first, second)
    assert len(np.unique(draws["index"][real])) < LIMIT  # clients keep pictures for their tests
    for name in ("down", "right"):
        values, counts = np.unique(draws[name][real], return_counts=True)
        assert values.tolist() == list(range(-4, 5)) and counts.min() > 0.08 * real.sum()
    assert abs(draws["mirrored"][real].mean() - 0.5) < 0.05
