"""Evaluation of global, personal and fine-tuned models."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from trees import calibrated, only, personal_of, same, scores_of

import fedjax_nc as fnc
from fedjax_nc import metrics, tree
from fedjax_nc.config import Data, Evaluation, Execution, Federation, RunConfig
from fedjax_nc.data.federated import make_table
from fedjax_nc.data.stream import on_device
from fedjax_nc.host import records
from fedjax_nc.host.assemble import Given, assemble
from fedjax_nc.host.states import first_state
from fedjax_nc.methods import base
from fedjax_nc.models.mlp import MLP
from fedjax_nc.testing.federation import CLASSES, SHAPE, SIZES, TESTS, examples
from fedjax_nc.train import evaluate, executors
from fedjax_nc.train.personalise import in_one_row, make_personalise, personalise
from fedjax_nc.train.seeds import lead, take

EMPTY, SINGLE, LARGEST = 1, 2, 3  # clients of the tiny federation


def by_hand(t, weights, numbers):
    """All sums of a score over these examples, in NumPy from the logits."""
    logits, y = logits_of(t, weights, numbers)
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    sure, answer = np.exp(logits).max(1) / np.exp(logits).sum(1), logits.argmax(1)
    right, count = answer == y, partial(np.bincount, minlength=logits.shape[1])
    edges = np.linspace(0, 1, evaluate.BINS + 1)
    inside = (sure > edges[:-1, None]) & (sure <= edges[1:, None])
    return evaluate.Score(
        right.sum(), loss.sum(), len(y), count(y[right]), count(y), count(answer),
        (inside * sure).sum(1), (inside & right).sum(1),
    )  # fmt: skip


def logits_of(t, weights, numbers):
    """The logits and labels of these examples."""
    numbers = np.asarray(numbers)
    out, _ = t.task.trainer.model.apply(weights, t.data.pool.x[numbers] / 255.0 - 0.5, train=False)
    return np.asarray(out.logits), np.asarray(t.data.pool.y)[numbers]


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
    numbers = t.data.test.index[0]
    close(tree.sum_leading(scores["global"]), by_hand(t, weights, numbers))
    found, (logits, y) = metrics.measure("global", scores["global"]), logits_of(t, weights, numbers)
    answer = logits.argmax(1)
    assert found["global_accuracy"] == (answer == y).mean()
    shares = [(answer == y)[y == c].mean() if (y == c).any() else None for c in range(4)]
    assert found["global_class_accuracy"] == pytest.approx(shares)
    balanced = sklearn.metrics.balanced_accuracy_score(y, answer)
    assert found["global_balanced_accuracy"] == pytest.approx(balanced)
    f1 = sklearn.metrics.f1_score(y, answer, average="macro")
    assert found["global_macro_f1"] == pytest.approx(f1)
    index, size = t.data.client_test
    for k in range(6):
        expected = by_hand(t, weights, index[k, : max(size[k], 1)])
        expected = expected if size[k] else jax.tree.map(np.zeros_like, expected)
        close(tree.take(scores["clients"], k), evaluate.Score(*expected[:3]))  # none by class


def job_of(norm, lanes):
    """The tiny federation, so many of whose tests run at once in batches of two."""
    spec, arrays, split = examples(SHAPE, CLASSES)
    cfg = RunConfig(
        dataset=spec.name,
        data=Data(normalise="half"),
        federation=Federation(clients=len(SIZES), participants=len(SIZES)),
        evaluation=Evaluation(batch_size=2, finetune=False),
        execution=Execution(executor="chunked", chunk=lanes, devices=1),
    )
    model = MLP(norm=norm, widths=(5,))
    return assemble(cfg, given=Given(model=model, dataset=(spec, arrays), split=split))


def test_scores_do_not_depend_on_the_lanes(x64):
    """A network that normalises by the batch sees the same batches, however many run at once."""
    found = []
    for lanes in (1, 2, 3):
        job = job_of("batch", lanes)
        test = evaluate.make_evaluate(job.task, job.executor, batch_size=2)
        scores = take(test(first_state(job).weights, job.feed.tests()), 0)["global"]
        assert len(scores.count) == lanes and sum(scores.count) == TESTS
        found.append(tree.sum_leading(scores))
        close(found[-1], found[0])
    assert job.data.test.size.tolist() == [4, 4, 1]
    assert job_of("running", lanes).data.test.size.tolist() == [3, 3, 3]  # where it does not matter


def close(score, expected):
    assert jax.tree.structure(score) == jax.tree.structure(expected)
    for name, value in expected._asdict().items():
        if value is None:
            continue
        np.testing.assert_allclose(getattr(score, name), value, rtol=1e-10, err_msg=name)


def test_summarise():
    correct = np.array([*range(1, 21), 0, 10])
    count = np.array([20] * 20 + [0, 10])  # 0.05, 0.1 ... 1.0, a client without tests, and 1.0
    score = rows_of(correct, count)
    accuracy = np.array([*np.arange(1, 21) / 20, 1.0])
    expected = [accuracy.mean(), accuracy.std(), (0.05 + 0.1) / 2]
    np.testing.assert_allclose(list(metrics.measure("client", score).values()), expected)
    assert metrics.worst(rows_of([1, 3], [4, 4])) == 0.25
    nobody = metrics.measure("personal", rows_of([0, 0], [0, 0]))
    assert nobody.pop("personal_class_accuracy") == [None] * 4
    assert len(nobody) == 6 and np.isnan(list(nobody.values())).all()


def rows_of(correct, count, **others):
    """A score of rows with so many correct answers, and nothing else unless it is given."""
    classes, bins = np.zeros((len(count), 4)), np.zeros((len(count), evaluate.BINS))
    nothing = evaluate.Score(
        np.array(correct), 0.0 * np.array(count), np.array(count), *[classes] * 3, *[bins] * 2
    )
    return nothing._replace(**others)


def test_metrics_over_classes():
    """Two clients' answers pooled; class 2 is answered but not asked, class 3 does not occur."""
    y, answer = np.array([0, 0, 0, 1, 1, 0]), np.array([0, 0, 1, 1, 2, 2])
    rows = [slice(0, 4), slice(4, 6)]
    bins = np.zeros((2, 2, evaluate.BINS))
    bins[0, :, 14], bins[1, :, 14] = [2.8, 0.95], [2, 0]  # confidence, and correct answers
    bins[0, 0, 7], bins[1, 0, 7] = 0.5, 1
    bins[0, 1, 7] = 0.5
    score = rows_of(
        [3, 0],
        [4, 2],
        class_correct=np.stack([np.bincount(y[r][y[r] == answer[r]], minlength=4) for r in rows]),
        class_count=np.stack([np.bincount(y[r], minlength=4) for r in rows]),
        class_answers=np.stack([np.bincount(answer[r], minlength=4) for r in rows]),
        bin_confidence=bins[0],
        bin_correct=bins[1],
    )
    found = metrics.measure("personal", score)
    assert found["personal_class_accuracy"] == [0.5, 0.5, None, None]
    assert found["personal_balanced_accuracy"] == 0.5
    assert found["personal_macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert found["personal_macro_f1"] == pytest.approx(
        sklearn.metrics.f1_score(y, answer, average="macro")
    )
    assert found["personal_calibration_error"] == pytest.approx((3.75 - 2 + 0) / 6)


@pytest.mark.parametrize(
    "whose",
    ["global", "personal", "personal_global", "finetuned", "calibrated", "calibrated_personal"],
)
def test_every_tested_model_has_the_metrics_over_classes(whose):
    found = metrics.measure(whose, rows_of([1, 0], [1, 0]))
    for name in ("balanced_accuracy", "macro_f1", "calibration_error", "class_accuracy"):
        assert f"{whose}_{name}" in found


def test_summary_means_the_rounds_that_the_accuracy_is_of():
    rows = [
        {"round": i, "seconds": 1.0, "compiled": False, "global_loss": 1.0, "global_accuracy": a}
        | {"global_macro_f1": a / 2, "global_class_accuracy": [a, None]}
        for i, a in enumerate((0.1, 0.5, 0.7), 1)
    ]
    cfg = RunConfig(evaluation=Evaluation(last=2))
    made = partial(records.summarise, cfg, traffic={"model": (1, 1)}, seeds=1)
    found = made(rows)
    assert found["global_accuracy"] == pytest.approx(2 * found["global_macro_f1"])
    assert found["global_class_accuracy"] == [pytest.approx(0.6), None]
    del rows[1]["global_macro_f1"]  # trained by an older version, and resumed
    assert "global_macro_f1" not in made(rows) and "global_class_accuracy" in made(rows)


def personal_scores(t, executor, phases, *, batch_size=4, hyper=None):
    how = executors.make_executor(executor)
    state = lead(t.state())
    fn = make_personalise(t.task, how, batch_size=batch_size, phases=phases)
    scores = fn(state, jnp.arange(6), dict(state.clients), hyper or t.hyper, t.data)
    return take(scores["own"], 0)


@pytest.mark.parametrize("executor", ["sharded", "chunked"])
def test_personal_models_on_the_official_tests(x64, tiny, executor):
    """Without training, with full rows and the last phase: every client has the global score."""
    t = tiny("fedrep", norm="none")
    index, size = in_one_row(t.data.test)
    table = make_table([np.asarray(index[:3]), np.asarray(index[3:size])])  # two rows, one padded
    t = t._replace(data=t.data._replace(test=table))
    how = executors.make_executor(executor, chunk=2)
    standing = tuple(phase._replace(epochs=0) for phase in t.task.method.phases)
    scores = personalise(
        t.task,
        how,
        train=make_personalise(t.task, how, batch_size=4, phases=standing, official=True),
        state=lead(t.state()),
        hyper=t.hyper,
        feed=on_device(t.data),
        progress=lambda *_: None,
        official=True,
    )
    expected = by_hand(t, t.state().weights, index[:size])
    for client in range(6):
        close(tree.take(scores["official"], (0, -1, client)), expected)
    same(take(scores["own"], 0), personal_of(t, how, standing))
    record = records.over_time("personal_global", take(scores["official"], 0))
    assert record["personal_global_accuracy"] == pytest.approx(expected.correct / expected.count)
    assert record["personal_global_accuracy_std"] == pytest.approx(0)


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
    score = evaluate.Score(*score[:3])  # evaluation tells nothing by class of clients' own tests
    same(jax.tree.map(lambda x: x[0], score), tested)


def test_personalise_equals_a_round_of_one_client(x64, tiny):
    """Full batches: the personal model is what a federation of that client alone would have."""
    t = tiny(local_cfg={"batch_size": 12, "epochs": 2})
    score = personal_scores(t, "scan", t.task.method.phases)
    alone, _ = only(t, LARGEST).run(1, state=t.state())
    index, size = tree.take(t.data.client_test, LARGEST)
    expected = by_hand(t, alone.weights, index[:size])
    close(tree.take(score, (-1, LARGEST)), expected)


def test_trained_personal_models_on_the_official_tests(x64, tiny):
    """The model of a federation of that client alone, on everybody's tests."""
    t = tiny(local_cfg={"batch_size": 12, "epochs": 2})
    how, state = executors.make_executor("scan"), lead(t.state())
    fn = make_personalise(t.task, how, batch_size=4, phases=t.task.method.phases, official=True)
    scores = take(fn(state, jnp.arange(6), dict(state.clients), t.hyper, t.data)["official"], 0)
    alone, _ = only(t, LARGEST).run(1, state=t.state())
    index, size = in_one_row(t.data.test)
    expected = by_hand(t, alone.weights, index[:size])
    close(tree.take(scores, (-1, LARGEST)), expected)
    assert abs(expected.loss - by_hand(t, t.state().weights, index[:size]).loss) > 1e-3


def test_personal_models_of_a_run():
    """With a learning rate near zero clients stay as they start: global, or calibrated."""
    result = fnc.run(
        "fedavg | ccvr(samples=100, epochs=30, lr=1.0)",
        dataset="digits",
        model="mlp",
        rounds=1,
        data={"partition": "iid", "client_test": "dealt"},
        local={"lr": 1e-12},
        federation={"clients": 3, "participants": 3},
        evaluation={"personal_global": True, "finetune": False},
        progress=False,
    )
    (found,) = result.summaries
    assert found["personal_accuracy"] == found["client_accuracy"]
    assert found["personal_global_accuracy"] == pytest.approx(found["global_accuracy"])
    assert found["personal_global_accuracy_std"] == pytest.approx(0)
    # the three clients' tests are together the official ones, and about as many
    assert found["calibrated_personal_accuracy"] == pytest.approx(
        found["calibrated_accuracy"], abs=0.01
    )
    assert found["calibrated_accuracy"] > found["global_accuracy"] + 0.1
    for name in ("balanced_accuracy", "macro_f1", "calibration_error", "class_accuracy"):
        for whose in ("personal", "personal_global"):
            assert found[f"{whose}_{name}"] == pytest.approx(found[f"global_{name}"])
        own, calibrated = (
            found[f"{whose}_{name}"] for whose in ("calibrated_personal", "calibrated")
        )
        assert own == pytest.approx(calibrated, abs=0.02)


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
