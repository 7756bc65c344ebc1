"""What a method must do besides its rounds: be tested, become personal models, and compose."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc.data.stream import on_device
from fedjax_nc.errors import UserError
from fedjax_nc.methods.base import Context, Part, Phase, Repeat, add, per_example
from fedjax_nc.testing.compare import not_finite
from fedjax_nc.testing.contract import Absent, Property
from fedjax_nc.testing.federation import SIZES, Tiny, tiny
from fedjax_nc.testing.trial import Trial
from fedjax_nc.train.evaluate import Score, make_calibrate, make_evaluate
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.personalise import make_personalise
from fedjax_nc.train.round import init_state, make_round
from fedjax_nc.train.seeds import lead, take
from fedjax_nc.types import Hyper

BATCH = 4  # of tests
BASES = ("fedetf", "fedper", "scaffold")  # that a regulariser is put on


def is_tested(trial: Trial) -> str:
    """The global model has a finite loss on the official tests and on every client's."""
    state, data = trial.rounds[1].state, trial.tiny.data
    evaluate = make_evaluate(trial.tiny.task, trial.scan, batch_size=BATCH)
    weights = trial.method.tested(state.weights, dict(state.shared))
    scores = take(evaluate(lead(weights), on_device(data).tests()), 0)
    _assert_scored(scores["global"], data.test.size, whose="of the global model")
    _assert_scored(scores["clients"], data.client_test.size, whose="of the global model")
    right, count = (int(np.sum(x)) for x in (scores["global"].correct, scores["global"].count))
    return f"{right} of {count} right"


def trains_personal_models(trial: Trial) -> str:
    """Every client's model after one more local training has a finite loss."""
    return _personal(trial, trial.method.phases, hyper=trial.tiny.hyper)


def fine_tunes(trial: Trial) -> str:
    """Every client's fine-tuned model has a finite loss."""
    if not trial.method.finetune:
        raise Absent("it defines no fine-tuning")
    hyper = trial.tiny.hyper._replace(term_weights=())
    return _personal(trial, trial.method.finetune, hyper=hyper)


def calibrates(trial: Trial) -> str:
    """The model after the step that follows the last round is finite."""
    if trial.method.posthoc is None:
        raise Absent("it has no step after the last round")
    state = trial.rounds[1].state
    calibrate = make_calibrate(trial.tiny.task, trial.scan, batch_size=BATCH)
    weights = calibrate(lead(state.weights), lead(state.key), on_device(trial.tiny.data))
    bad = not_finite(take(weights, 0))
    assert not bad, f"after the last round, {bad[0]} becomes NaN or infinite"
    return "finite"


def composes(trial: Trial) -> str:
    """A base takes another term and part; a regulariser goes on other methods or says why not."""
    if trial.on is None:
        traces(tiny(add(trial.method, per_example("composed", _distance), parts=(_mean_loss(),))))
        return "takes another term and part"
    done = []
    for base in BASES:
        try:
            method = trial.on(base)
        except UserError as error:
            done.append(f"{base} refused: {error}")
            continue
        traces(tiny(method))
        done.append(base)
    return f"goes with {', '.join(done)}"


def traces(t: Tiny) -> None:
    """Asserts that a round can be traced, keeps all shapes, and reports every term."""
    round_fn = make_round(t.task, make_executor("scan"))

    def one_round(key: jax.Array):
        old = init_state(t.task, key)
        new, metrics = round_fn(old, t.hyper, t.data)
        return jax.tree.leaves(old), jax.tree.leaves(new), metrics.sums

    old, new, sums = jax.eval_shape(one_round, jax.random.key(0))
    name, terms = t.task.method.name, {term.name for term in t.task.method.phases[-1].terms}
    assert [(x.shape, x.dtype) for x in old] == [(x.shape, x.dtype) for x in new], (
        f"a round of '{name}' changes shapes or dtypes of the state"
    )
    assert sums.keys() == terms | {"loss", "examples"}, f"'{name}' reports {', '.join(sums)}"


def _distance(c: Context) -> jax.Array:
    return jnp.sum((c.out.features - c.ref().features) ** 2, -1)


def _mean_loss() -> Part:
    return Part(
        "composed",
        init_shared=lambda setup: jnp.zeros((), jnp.result_type(float)),
        collect=lambda finished: finished.weight,
        reduce=lambda old, total, arrived: old + total / jnp.maximum(arrived.weight, 1.0),
    )


def _personal(trial: Trial, phases: tuple[Phase | Repeat, ...], *, hyper: Hyper) -> str:
    state, data = lead(trial.rounds[1].state), trial.tiny.data
    train = make_personalise(trial.tiny.task, trial.scan, batch_size=BATCH, phases=phases)
    scores = train(state, jnp.arange(len(SIZES)), dict(state.clients), hyper, data)
    score = take(scores["own"], 0)
    last = take(score, -1)
    _assert_scored(last, data.client_test.size, whose="of a personal model")
    return f"{int(np.sum(last.correct))} of {int(np.sum(last.count))} right"


def _assert_scored(score: Score, sizes: jax.Array, whose: str) -> None:
    assert np.array_equal(score.count, sizes), f"{whose}, {score.count} examples are tested"
    bad = np.flatnonzero(~np.isfinite(score.loss))
    assert not len(bad), f"the loss {whose} is NaN or infinite on the tests of client {bad[0]}"


PROPERTIES: dict[str, Property] = {
    "is tested": is_tested,
    "trains personal models": trains_personal_models,
    "fine-tunes": fine_tunes,
    "calibrates": calibrates,
    "composes": composes,
}
