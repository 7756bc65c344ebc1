"""Guards of how equations are wired into methods: mistakes nothing else notices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import differ, noisy, only, plain, same, standing, with_clients

from fedjax_nc import config, losses, tree
from fedjax_nc.methods import parts, registry
from fedjax_nc.methods.base import Phase, Repeat
from fedjax_nc.train import executors
from fedjax_nc.train import round as rounds
from fedjax_nc.train.local import loop_counts

LARGEST = 3  # client of the tiny federation, with twelve examples of some classes
WHOLE = {"batch_size": 12}  # all of its examples in one step


def means(metrics):
    """What a round reports of every term: its mean over examples."""
    sums = {name: float(value) for name, value in metrics.sums.items()}
    examples = sums.pop("examples")
    return {name: value / examples for name, value in sums.items()}


def history(t, count, state=None):
    """The means of every term in each of so many rounds."""
    round_fn = rounds.make_round(t.task, executors.make_executor("scan"))
    state, found = t.state() if state is None else state, []
    for _ in range(count):
        state, metrics = round_fn(state, t.hyper, t.data)
        found.append(means(metrics))
    return found


def examples_of(t):
    """Images and labels of the only client."""
    index, size = tree.take(t.data.train, 0)
    return t.data.pool.x[index[:size]] / 255.0 - 0.5, np.asarray(t.data.pool.y)[index[:size]]


def outputs_of(t, weights):
    """What these weights make of the only client's examples, in training."""
    return t.task.trainer.model.apply(weights, examples_of(t)[0], train=True)[0]


def mean_cross_entropy(logits, labels):
    return np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels])


# ---- values of terms -----------------------------------------------------------------------


def test_moon_pulls_to_the_global_model_and_pushes_from_the_previous(x64, tiny):
    t = standing(only(tiny("moon(tau=0.5, dim=3)", norm="none", local_cfg=WHOLE), LARGEST))
    state = t.state()
    previous = jax.tree.map(lambda x: x + 30 * (noisy(x) - x), state.clients["previous"])
    models = (state.weights, tree.take(previous, 0))
    mine, old = (np.asarray(outputs_of(t, weights).projected) for weights in models)
    lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(old, axis=1)
    cosines = (mine * old).sum(1) / lengths
    assert cosines.max() < 0.99
    # the client has just received the global model: its cosine to it is one
    expected = np.mean(np.log1p(np.exp((cosines - 1) / 0.5)))
    (found,) = history(t, 1, with_clients(state, {"previous": previous}))
    np.testing.assert_allclose(found["moon"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "spec, temperature", [("fedgela(temperature=0.4)", 0.4), ("fedgela(form='feddr')", 1.0)]
)
def test_temperature_of_fedgela(x64, tiny, spec, temperature):
    """Only the authors' form divides by it."""
    t = tiny(spec, local_cfg=WHOLE)
    t = standing(only(t, LARGEST))
    logits, labels = np.asarray(outputs_of(t, t.state().weights).logits), examples_of(t)[1]
    share = np.bincount(labels, minlength=4) / len(labels)
    expected = mean_cross_entropy(logits * 4 * share / temperature, labels)
    (found,) = history(t, 1)
    np.testing.assert_allclose(found["scaled_etf"], expected, rtol=1e-9)


def test_fedfm_starts_after_so_many_rounds(tiny):
    """Anchors exist from the second round on, the term from the third."""
    t = tiny("fedfm(start=2)", norm="none", widths=(3,))
    found = [row["matching"] for row in history(t, 4)]
    assert [value > 0 for value in found] == [False, False, True, True]


def test_feddw_decays_in_every_ninth_round(x64, tiny):
    """With learning rate zero nothing else changes after the first round, which knows no class."""
    t = standing(only(tiny("feddw(decay=True)", norm="none", widths=(3,)), LARGEST))
    found = np.array([row["dw"] for row in history(t, 18)])
    assert found[0] == 0 and found[1] > 0
    expected = [1.0] * 7 + [0.1] * 9 + [0.01]  # rounds 2 to 8, 9 to 17, 18
    np.testing.assert_allclose(found[1:] / found[1], expected, rtol=1e-6)


# ---- one step of the server ----------------------------------------------------------------


def test_a_class_that_nobody_has_this_round_keeps_its_prototype():
    old = parts.ClassMeans(jnp.ones((3, 2)), jnp.array([True, False, False]))
    new = losses.ClassSums(jnp.array([[0.0, 0.0], [6.0, 4.0], [0.0, 0.0]]), jnp.array([0.0, 2, 0]))
    found = parts.prototypes().reduce(old, new, None)
    assert found.seen.tolist() == [True, True, False]
    assert found.mean.tolist() == [[1, 1], [3, 2], [1, 1]]


def one_round(t):
    """States before and after a round in which half of the clients take part, and who did.

    Client state is noise before it, so that none is taken for another; that of participants moves.
    """
    initial = t.state()
    start = with_clients(initial, noisy(initial.clients))
    before = plain(start)
    after, metrics = t.run(1, state=start)
    present = np.isin(np.arange(6), metrics.ids) & (np.asarray(t.data.train.size) > 0)
    assert 1 < present.sum() < 6
    for client in range(6):
        states = (tree.take(state.clients, client) for state in (before, plain(after)))
        assert differ(*states) == present[client]
    return before, plain(after), present


def change(before, after):
    """How every client's state has moved, [clients, ...]."""
    return jax.tree.map(np.subtract, after, before)


def test_scaffolds_control_moves_by_the_mean_over_all_clients(x64, tiny):
    """c + 1/N sum of the participants' changes (SCAFFOLD, algorithm 1, line 17)."""
    before, after, _ = one_round(tiny("scaffold", norm="none", federation={"participants": 3}))
    moved = change(before.clients["control"], after.clients["control"])
    expected = jax.tree.map(lambda c, d: c + d.sum(0) / 6, before.shared["control"], moved)
    same(after.shared["control"], expected)


@pytest.mark.parametrize("weights", ["equal", "size", "mixed"])
def test_feddyns_drift_and_step(x64, tiny, weights):
    """h - alpha/N sum of the updates, or by size their mean; then their mean less h / alpha.

    Mixed weights have the sum over all six clients in h, and sizes in the mean.
    """
    spec, alpha = f"feddyn(alpha=0.5, weights='{weights}')", 0.5
    t = tiny(spec, norm="none", federation={"participants": 3})
    before, after, present = one_round(t)
    # a client's gradient moves by -alpha times its update
    moved = change(before.clients["gradient"], after.clients["gradient"])
    weight = present * (1.0 if weights == "equal" else np.asarray(t.data.train.size))
    mean = jax.tree.map(lambda d: np.tensordot(weight, d, 1) / weight.sum() / -alpha, moved)
    of_all = jax.tree.map(lambda d: np.tensordot(present * 1.0, d, 1) / 6 / -alpha, moved)
    gone = mean if weights == "size" else of_all
    drift = jax.tree.map(lambda h, d: h - alpha * d, before.shared["drift"], gone)
    same(after.shared["drift"], drift)
    expected = jax.tree.map(lambda w, d, h: w + d - h / alpha, before.weights.params, mean, drift)
    same(after.weights.params, expected)


# ---- what moves ----------------------------------------------------------------------------


STAGES = {
    "paper": [{"body", "scale"}, {"head", "scale"}, {"projector", "scale"}],
    "code": [{"body", "projector", "scale"}, {"head"}, {"projector"}],
}


@pytest.mark.parametrize("form", STAGES)
def test_groups_that_fedetf_fine_tunes(tiny, form):
    """Each stage of fine-tuning as the only phase of a round."""
    method = registry.build(f"fedetf(finetune='{form}', cycles=7)")
    first, repeat = method.finetune
    assert isinstance(first, Phase) and isinstance(repeat, Repeat) and repeat.times == 7
    for stage, expected in zip((first, *repeat.phases), STAGES[form], strict=True):
        t = only(tiny(method._replace(phases=(stage,)), norm="none"), LARGEST)
        before, after = plain(t.state().weights.params), plain(t.run(1)[0].weights.params)
        assert {group for group in before if differ(before[group], after[group])} == expected


@pytest.mark.parametrize(
    "spec, expected",
    [("fedetf", 2), ("fedetf(finetune='code')", 3), ("fedetf(finetune_epochs=5)", 5)],
)
def test_epochs_that_fedetf_fine_tunes(spec, expected):
    """Stages of algorithm 2 have the run's E epochs, those of the code 3, unless given."""
    method = registry.build(spec)
    first, repeat = method.finetune
    cfg = config.Local(epochs=2, batch_size=4)
    epochs = [int(loop_counts(p, cfg, size=jnp.asarray(8))[0]) for p in (first, *repeat.phases)]
    assert epochs == [2, expected, expected]


def test_fedsols_statistics_are_of_the_unperturbed_pass(x64, tiny):
    """After one step they are FedAvg's, and the weights are not.

    BatchNorm tells the client in training from the received model in evaluation, so that the
    first step of a round is perturbed, too.
    """
    tasks = [only(tiny(spec, local_cfg=WHOLE), LARGEST) for spec in ("fedsol", "fedavg")]
    sol, avg = (plain(t.run(1)[0].weights) for t in tasks)
    same(sol.stats, avg.stats)
    assert all(differ(sol.params[group], avg.params[group]) for group in ("body", "head"))


def test_anchors_of_fedfm_are_of_the_new_global_model(x64, tiny):
    """The second exchange looks at everybody's data with the model that the first one made."""
    t = only(tiny("fedfm", norm="none", widths=(3,)), LARGEST)
    x, y = examples_of(t)
    state, _ = t.run(1)
    out, _ = t.task.trainer.model.apply(state.weights, x, train=False)
    anchors = state.shared["anchors"]
    for label in set(y):
        np.testing.assert_allclose(anchors.mean[label], out.features[y == label].mean(0), rtol=1e-9)


def test_adam_has_no_momentum_of_sgd(tiny):
    """FedNova counts plain steps under Adam, whatever --local.momentum says."""
    runs = [
        tiny("fednova", norm="none", widths=(3,), local_cfg={"optimizer": "adam", "momentum": m})
        for m in (0.0, 0.9)
    ]
    same(*(t.run(1)[0].weights for t in runs))
