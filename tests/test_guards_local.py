"""Guards of local training, personal models and the host's loop: mistakes nothing else notices."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import DATA, FEW, train
from trees import only, personal_of, same, standing, watched

from fedjax_nc.methods.base import Repeat
from fedjax_nc.train import executors, keys

LARGEST, OF_FIVE = 3, 4  # clients of the tiny federation, with twelve and five examples
EXAMPLES = 28  # of all clients


def personal_scores(t, phases, executor, **options):
    """Every client's own model after each phase, [phases, clients], in client order."""
    how = executors.make_executor(executor, **options)
    return personal_of(t, how, phases)


# ---- what a round reports ------------------------------------------------------------------


def test_reported_losses_are_means_over_examples(x64, tiny):
    """Batches of one to four examples and two epochs: every example counts the same."""
    t = standing(tiny("fedavg | kd(beta=0.75)", norm="none", local_cfg={"epochs": 2}))
    rows = [i[:n] for i, n in zip(*map(np.asarray, t.data.train), strict=True)]
    x = t.data.pool.x[np.concatenate(rows)] / 255.0 - 0.5
    y = np.asarray(t.data.pool.y)[np.concatenate(rows)]
    out, _ = t.task.trainer.model.apply(t.state().weights, x, train=False)
    logits = np.asarray(out.logits)
    expected = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])
    _, metrics = t.run(1)
    found = {name: value / metrics.sums["examples"] for name, value in metrics.sums.items()}
    assert metrics.sums["examples"] == 2 * EXAMPLES
    np.testing.assert_allclose(found["cross_entropy"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["loss"], 0.75 * expected, rtol=1e-9)


def test_reported_losses_are_of_the_phase_that_trains(tiny):
    """APFL's second model is only put together: what is reported are its first one's sums."""
    (_, mixed), (_, plain) = (tiny(s, norm="none", widths=(3,)).run(1) for s in ("apfl", "fedavg"))
    assert mixed.sums["examples"] == plain.sums["examples"] == EXAMPLES
    np.testing.assert_allclose(mixed.sums["loss"], plain.sums["loss"], rtol=1e-5)


# ---- which examples a step sees ------------------------------------------------------------


def test_what_is_measured_after_training_has_chances_of_its_own(tiny):
    """FedDW's code augments what it measures: by keys that none of the client's phases has."""
    t = only(tiny("feddw(rule='code')", norm="none", widths=(3,)), OF_FIVE)
    seen, inner = [], t.task.trainer.make_batch

    def batches(pool, numbers, mask, key):
        if key is not None and not isinstance(key, jax.core.Tracer):
            seen.append(tuple(np.asarray(jax.random.key_data(key))))
        return inner(pool, numbers, mask, key)

    t = t._replace(task=t.task._replace(trainer=t.task.trainer._replace(make_batch=batches)))
    t.run(1, "debug")
    client = keys.of_clients(keys.of_round(t.state().key, 0, keys.LOCAL_TRAINING), jnp.arange(1))
    phases = {
        tuple(np.asarray(jax.random.key_data(jax.random.fold_in(client[0], i)))) for i in range(9)
    }
    assert len(seen) == len(set(seen)) > 2 and not phases & set(seen)


def test_passes_of_fedala(tiny):
    """Three passes over half of the data in a client's first round, one later, then training."""
    t = tiny("fedala(share=0.5, first=3)", norm="none", widths=(3,))
    t, seen = watched(only(t, OF_FIVE))
    mine = set(np.asarray(t.data.train.index)[0, :5])
    state = None
    for passes in (3, 1):
        seen.clear()
        state, _ = t.run(1, "debug", state=state)
        assert [len(batch) for batch in seen] == [3] * passes + [4, 1]
        draws = {tuple(batch) for batch in seen[:passes]}
        assert all(mine.issuperset(draw) for draw in draws)
        assert passes == 1 or len(draws) > 1  # every pass draws anew
        assert mine == set(np.concatenate(seen[passes:]))


def orders(seen, batches=3):
    """The order of examples in each epoch of so many batches."""
    return [tuple(np.concatenate(seen[i : i + batches])) for i in range(0, len(seen), batches)]


def test_phases_shuffle_anew(tiny):
    """The head's epoch and the body's are in different orders."""
    t, seen = watched(only(tiny("fedrep", norm="none", widths=(3,)), LARGEST))
    t.run(1, "debug")
    head, body = orders(seen)
    assert sorted(head) == sorted(body) and head != body


def test_models_trained_side_by_side_see_the_same_batches(tiny):
    t, seen = watched(only(tiny("ditto", norm="none", widths=(3,)), LARGEST))
    t.run(1, "debug")
    uploaded, own = orders(seen)
    assert uploaded == own


def test_cycles_of_fine_tuning_shuffle_anew(tiny):
    """FedETF's body, then head and projector twice: five epochs, five orders."""
    t = tiny("fedetf(cycles=2, finetune_epochs=1)", norm="none", widths=(3,))
    t, seen = watched(only(t, LARGEST))
    assert any(isinstance(phase, Repeat) for phase in t.task.method.finetune)
    personal_scores(t, t.task.method.finetune, "debug")
    assert len(orders(seen)) == len(set(orders(seen))) == 5


def test_every_step_draws_anew(tiny):
    """What chance does to a batch, as crops and flips, differs in every step of every epoch."""
    t = only(tiny(norm="none", widths=(3,), local_cfg={"epochs": 2}), LARGEST)
    keys, make_batch = [], t.task.trainer.make_batch

    def noted(pool, numbers, mask, key):
        if key is not None and not isinstance(key, jax.core.Tracer):
            keys.append(tuple(np.asarray(jax.random.key_data(key))))
        return make_batch(pool, numbers, mask, key)

    task = t.task._replace(trainer=t.task.trainer._replace(make_batch=noted))
    t._replace(task=task).run(1, "debug")
    assert len(keys) == len(set(keys)) == 6


def test_the_head_alone_leaves_the_statistics(x64, tiny):
    """FedRep's one epoch of the body moves BatchNorm's statistics as FedAvg's; the head's none."""
    one = {"batch_size": 12}  # so that orders do not matter, and no parameter moves
    specs = ("fedrep", "fedavg")
    found = [standing(tiny(s, widths=(3,), local_cfg=one)).run(1)[0].weights.stats for s in specs]
    assert jax.tree.leaves(found[0])
    same(*found)


# ---- personal models -----------------------------------------------------------------------


def test_personal_scores_are_in_client_order(x64, tiny):
    """Six clients in groups of four: the second group repeats two of the first."""
    t = tiny(norm="none", widths=(3,))
    phases = t.task.method.phases
    score = personal_scores(t, phases, "chunked", chunk=4)
    np.testing.assert_array_equal(score.count, [t.data.client_test.size])
    assert len(set(score.count[0])) == 6  # so that the order shows
    same(score, personal_scores(t, phases, "scan"))


def test_personal_models_are_tested_as_the_method_predicts(tiny):
    """A method that always answers with class 0 is right where a test is of class 0."""
    t = tiny(norm="none", widths=(3,))

    def first(out, weights, view):
        return jax.nn.one_hot(jnp.zeros(len(out.logits), int), out.logits.shape[-1])

    t = t._replace(task=t.task._replace(method=t.task.method._replace(predict=first)))
    score = personal_scores(t, t.task.method.phases, "scan")
    index, size = map(np.asarray, t.data.client_test)
    y = np.asarray(t.data.pool.y)
    zeros = [np.sum(y[i[:n]] == 0) for i, n in zip(index, size, strict=True)]
    assert 0 < sum(zeros) < size.sum()
    np.testing.assert_array_equal(score.correct[0], zeros)


def test_personal_training_is_in_another_order_than_the_round_of_its_number(tiny):
    t, seen = watched(only(tiny(norm="none", widths=(3,)), LARGEST))
    t.run(1, "debug")
    personal_scores(t, t.task.method.phases, "debug")
    of_round, personal = orders(seen)
    assert sorted(of_round) == sorted(personal) and of_round != personal


SKEWED = ["--data.partition=classes", "--data.per_client=2", "--data.client_test=matched"]
DECAYING = ["--local.lr=0.05", "--local.schedule=step", "--local.decay=1e-12"]
BOTH = ["--evaluation.personal", "--evaluation.finetune"]


@pytest.mark.parametrize("stops_before", [1, 2])
def test_personal_models_train_at_the_last_rounds_rate(tmp_path, stops_before):
    """The learning rate all but vanishes in the last round, or in the one that never comes."""
    argv = ["--method=fedavg", "--rounds=2", *DATA, *FEW, *SKEWED, *DECAYING, *BOTH]
    directory = train(tmp_path, [*argv, f"--local.milestones={stops_before}"])
    summary = json.loads((directory / "summary.json").read_text())
    tested = ("personal_accuracy", "finetuned_accuracy")
    gains = [summary[name] - summary["client_accuracy"] for name in tested]
    if stops_before == 1:
        assert gains == [0, 0]
    else:
        assert min(gains) > 0.1
