"""Evaluation of global, personal and fine-tuned models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import calibrated, only, personal_of, same, scores_of

from fedjax_nc import metrics, tree
from fedjax_nc.host import records
from fedjax_nc.methods import base
from fedjax_nc.train import evaluate, executors
from fedjax_nc.train.personalise import make_personalise
from fedjax_nc.train.seeds import lead, take

EMPTY, SINGLE, LARGEST = 1, 2, 3  # clients of the tiny federation


def by_hand(t, weights, numbers):
    """Correct predictions and summed loss of these examples, in NumPy from the logits."""
    numbers = np.asarray(numbers)
    x = t.data.pool.x[numbers] / 255.0 - 0.5
    out, _ = t.task.trainer.model.apply(weights, x, train=False)
    logits, y = np.asarray(out.logits), np.asarray(t.data.pool.y)[numbers]
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    return (logits.argmax(1) == y).sum(), loss.sum(), len(y)


@pytest.mark.parametrize("executor", ["scan", "chunked", "sharded"])
def test_evaluate_equals_numpy(x64, tiny, executor):
    t = tiny()
    weights = t.state().weights  # statistics that tell running from batch ones
    weights = weights._replace(stats=jax.tree.map(lambda s: s + 0.3, weights.stats))
    # tables are padded with example 0: let it be classified well, so that counting it shows
    x, y = t.data.pool
    out, _ = t.task.trainer.model.apply(weights, x[:1] / 255.0 - 0.5, train=False)
    pool = t.data.pool._replace(y=y.at[0].set(jnp.argmax(out.logits[0]).astype(y.dtype)))
    t = t._replace(data=t.data._replace(pool=pool))
    how = executors.make_executor(executor, chunk=2)
    scores = scores_of(t, how, weights)
    correct, loss, count = by_hand(t, weights, t.data.test.index[0])
    accuracy, mean_loss = (of(scores["global"]) for of in (metrics.accuracy, metrics.loss))
    np.testing.assert_allclose([accuracy, mean_loss], [correct / count, loss / count], rtol=1e-10)
    index, size = t.data.client_test
    for k in range(6):
        expected = by_hand(t, weights, index[k, : size[k]]) if size[k] else (0, 0, 0)
        np.testing.assert_allclose([s[k] for s in scores["clients"]], expected, rtol=1e-10)


def test_summarise():
    correct = np.array([*range(1, 21), 0, 10])
    count = np.array([20] * 20 + [0, 10])  # 0.05, 0.1 ... 1.0, a client without tests, and 1.0
    score = evaluate.Score(correct, correct * 0.0, count)
    accuracy = np.array([*np.arange(1, 21) / 20, 1.0])
    expected = [accuracy.mean(), accuracy.std(), (0.05 + 0.1) / 2]
    np.testing.assert_allclose(list(metrics.measure("client", score).values()), expected)
    few = evaluate.Score(*np.array([[1, 3], [0, 0], [4, 4]]))
    assert metrics.worst(few) == 0.25
    nobody = metrics.measure("client", evaluate.Score(*np.zeros((3, 2))))
    assert len(nobody) == 3 and np.isnan(list(nobody.values())).all()


def personal_scores(t, executor, phases, *, batch_size=4, hyper=None):
    how = executors.make_executor(executor)
    state = lead(t.state())
    fn = make_personalise(t.task, how, batch_size=batch_size, phases=phases)
    return take(fn(state, jnp.arange(6), dict(state.clients), hyper or t.hyper, t.data), 0)


def test_personalise_fedetf(x64, tiny):
    t = tiny("fedetf(cycles=1, finetune_epochs=1)")
    phases, hyper = t.task.method.finetune, t.hyper._replace(term_weights=())
    assert any(isinstance(p, base.Repeat) for p in phases)
    score = personal_scores(t, "scan", phases, hyper=hyper)
    assert score.correct.shape == (2, 6)  # after the body and after the only cycle
    np.testing.assert_array_equal(score.count[-1], t.data.client_test.size)
    how = executors.make_executor("scan")
    tested = scores_of(t, how, t.state().weights)["clients"]
    # tests are among the training examples here
    assert np.sum(score.loss[-1]) < np.sum(tested.loss)
    seen = []
    whole = personal_of(t, how, phases, progress=lambda *progress: seen.append(progress))
    same(whole, score)
    assert seen[-1] == (6, 6)


@pytest.mark.parametrize("executor", ["scan", "sharded"])
def test_personalise_without_training_is_evaluation(x64, tiny, executor):
    t = tiny(norm="none")
    phase = t.task.method.phases[0]._replace(epochs=0)
    score = personal_scores(t, executor, (phase,), batch_size=3)
    how = executors.make_executor(executor)
    tested = scores_of(t, how, t.state().weights, batch_size=3)["clients"]
    same(jax.tree.map(lambda x: x[0], score), tested)


def test_personalise_equals_a_round_of_one_client(x64, tiny):
    """Full batches: the personal model is what a federation of that client alone would have."""
    t = tiny(local_cfg={"batch_size": 12, "epochs": 2})
    score = personal_scores(t, "scan", t.task.method.phases)
    alone, _ = only(t, LARGEST).run(1, state=t.state())
    index, size = tree.take(t.data.client_test, LARGEST)
    expected = by_hand(t, alone.weights, index[:size])
    np.testing.assert_allclose([s[-1, LARGEST] for s in score], expected, rtol=1e-9)


def test_fine_tuning_is_recorded_step_by_step(x64, tiny):
    """What is recorded after cycle n is what n cycles give."""
    scores = []
    for cycles in (1, 3):
        t = tiny(f"fedetf(cycles={cycles}, finetune_epochs=1)")
        hyper = t.hyper._replace(term_weights=())
        scores.append(personal_scores(t, "scan", t.task.method.finetune, hyper=hyper))
    assert [len(s.correct) for s in scores] == [2, 4]
    same(scores[0], jax.tree.map(lambda x: x[:2], scores[1]))
    record = records.over_time("finetuned", scores[1])
    assert len(record["finetuned_curve"]) == 4
    assert record["finetuned_curve"][-1] == record["finetuned_accuracy"]


def test_calibration_is_least_squares(x64, tiny):
    """SphereFed's head from sums over clients equals the one from all their data at once."""
    t = tiny("spherefed(calibrate=True)", norm="none")
    weights = t.state().weights
    numbers = np.concatenate([i[:n] for i, n in zip(*t.data.train, strict=True)])
    batch = t.task.trainer.make_batch(t.data.pool, numbers, numbers >= 0, None)
    out, _ = t.task.trainer.model.apply(weights, batch.x, train=False)
    z, y = np.asarray(out.projected), np.eye(4)[np.asarray(batch.y)]
    ridge = 1e-4 * np.trace(z.T @ z) / z.shape[1]
    expected = np.linalg.solve(z.T @ z + ridge * np.eye(z.shape[1]), z.T @ y)
    for executor in ("scan", "sharded", "debug"):
        how = executors.make_executor(executor)
        after = calibrated(t, how, weights, jax.random.key(0), batch_size=3)
        np.testing.assert_allclose(after.params["head"]["kernel"], expected, rtol=1e-9)
        same(after.params["body"], weights.params["body"])


def test_personal_prediction_of_fedgela(x64, tiny):
    """A client without some classes gives them logit zero; the global model knows no client."""
    t = tiny("fedgela")
    score = personal_scores(t, "scan", (t.task.method.phases[0]._replace(epochs=0),))
    index, size = tree.take(t.data.client_test, LARGEST)
    batch = t.task.trainer.make_batch(t.data.pool, index[:size], index[:size] >= 0, None)
    out, _ = t.task.trainer.model.apply(t.state().weights, batch.x, train=False)
    counts = np.asarray(t.data.class_counts[LARGEST])
    logits = np.asarray(out.logits) * 4 * counts / counts.sum()
    hits = np.sum(np.argmax(logits, -1) == np.asarray(batch.y))
    assert int(score.correct[-1, LARGEST]) == hits
