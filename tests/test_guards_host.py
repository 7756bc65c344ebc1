"""Small mistakes in the loop, in what follows it and in what clients are told would be noticed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_nc as fnc
from fedjax_nc import config
from fedjax_nc.data import stream
from fedjax_nc.host import records
from fedjax_nc.metrics import measure
from fedjax_nc.testing.compare import same
from fedjax_nc.train import executors
from fedjax_nc.train.client import make_rows
from fedjax_nc.train.evaluate import make_calibrate, make_evaluate
from fedjax_nc.train.seeds import lead, take

FEW = {
    "dataset": "digits",
    "model": "mlp",
    "data": {"limit": 200},
    "federation": {"clients": 3, "participants": 3},
    "evaluation": {"last": 1, "personal": False},
}
CCVR = "fedexp | ccvr(samples=50, epochs=5)"


@pytest.fixture(scope="module")
def extrapolated():
    """FedExP with calibration after one round and after two, each from the start."""
    return [fnc.run(CCVR, rounds=rounds, **FEW).outcomes[0] for rounds in (1, 2)]


def mean_of(outcomes):
    """FedExP tests the mean of the last two global models."""
    first, second = (outcome.state.weights for outcome in outcomes)
    return jax.tree.map(lambda x, y: 0.5 * (x + y), first, second)


def scores_of(job, weights):
    size = job.config.evaluation.batch_size
    test = make_evaluate(job.task, job.executor, batch_size=size, seeds=job.seeds)
    return take(test(weights, job.feed.tests())["global"], 0)


def test_a_run_tests_the_model_that_its_method_tests(extrapolated):
    job, row = extrapolated[1].job, extrapolated[1].rows[-1]
    found = measure("global", scores_of(job, lead(mean_of(extrapolated))))
    assert found["global_loss"] == pytest.approx(row["global_loss"], rel=1e-5)
    plain = measure("global", scores_of(job, lead(extrapolated[1].state.weights)))
    assert abs(plain["global_loss"] - row["global_loss"]) > 1e-3


def test_calibration_starts_from_the_model_that_is_tested(extrapolated):
    outcome = extrapolated[1]
    job, size = outcome.job, outcome.config.evaluation.batch_size
    calibrate = make_calibrate(job.task, job.executor, batch_size=size, seeds=job.seeds)
    key = lead(outcome.state.key)
    errors = [
        measure("calibrated", scores_of(job, calibrate(lead(weights), key, job.feed)))
        for weights in (mean_of(extrapolated), outcome.state.weights)
    ]
    right, wrong = (found["calibrated_calibration_error"] for found in errors)
    assert outcome.summary["calibrated_calibration_error"] == pytest.approx(right, rel=1e-4)
    assert abs(right - wrong) > 1e-4


def test_calibration_sums_over_all_groups_of_clients(x64, tiny):
    t = tiny("fedavg | ccvr(samples=20, epochs=2)")
    calibrate = make_calibrate(t.task, executors.make_executor("scan"), batch_size=4)
    state, feed = lead(t.state()), stream.on_device(t.data)
    whole, parts = (
        calibrate(state.weights, state.key, feed._replace(at_once=size)) for size in (6, 3)
    )
    same(parts, whole, rtol=1e-9, atol=1e-12)


def test_a_clients_size_is_told_beside_the_mean_over_everybody(tiny):
    t = tiny("feddyn(relative=True)")
    ids = jnp.array([3, 0, 1])  # the last one has no examples
    rows = make_rows(t.task, jax.random.key(0), ids=ids, data=t.data, client_state={})
    sizes = np.maximum(np.asarray(t.data.class_counts).sum(-1), 1.0)
    np.testing.assert_allclose(rows.relative_size, sizes[[3, 0, 1]] / sizes.mean(), rtol=1e-6)


def test_every_round_of_a_dispatch_has_its_own_learning_rate():
    """Rounds that nothing interrupts are dispatched together."""
    evaluation = FEW["evaluation"] | {"every": 40}
    local = {"schedule": "exponential", "decay": 0.9, "lr": 0.1}
    result = fnc.run("fedavg", rounds=40, **FEW | {"evaluation": evaluation, "local": local})
    rates = [row["lr"] for row in result.rows[0]]
    np.testing.assert_allclose(rates, 0.1 * 0.9 ** np.arange(40), rtol=1e-6)


def test_rounds_of_a_dispatch_train_with_their_own_learning_rates():
    """A test after each round lets nothing be dispatched together, and changes no weights."""
    local = {"schedule": "exponential", "decay": 0.5, "lr": 0.1}
    tests = [FEW["evaluation"] | {"every": every} for every in (9, 1)]
    together, apart = (
        fnc.run("fedavg", rounds=9, local=local, **FEW | {"evaluation": test}) for test in tests
    )
    same(together.weights, apart.weights, rtol=1e-5, atol=1e-7)


def test_a_summary_tells_the_best_round_and_what_travels_each_way():
    cfg = config.RunConfig(
        rounds=2,
        federation=config.Federation(clients=5, participants=3),
        evaluation=config.Evaluation(last=1),
    )
    row = {"global_loss": 1.0, "seconds": 1.0, "compiled": False}
    rows = [row | {"round": i + 1, "global_accuracy": x} for i, x in enumerate((0.75, 0.5))]
    found = records.summarise(cfg, rows, traffic={"model": (7, 11), "more": (0, 2)}, seeds=1)
    assert (found["best_accuracy"], found["global_accuracy"]) == (0.75, 0.5)
    assert (found["bytes_up"], found["bytes_down"]) == (2 * 3 * 7, 2 * 3 * 13)
    assert (found["bytes_up_per_client"], found["bytes_down_per_client"]) == (7, 13)


def test_tracked_models_train_with_the_coming_rounds_rate():
    """Which is next to nothing here, so that they stay where the global model is."""
    local = {"schedule": "exponential", "decay": 1e-6, "epochs": 1}
    result = fnc.run("fedavg", rounds=1, local=local, track=("alignment",), track_every=1, **FEW)
    found = result.rows[0][0]["alignment"]
    assert found["observed_distance"] < 1e-4 and found["unobserved_distance"] < 1e-4
