"""What a method's rounds must do.

A property is a function of a trial that says in a few words what it saw, or raises.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import tree
from fedjax_nc.io import checkpoint
from fedjax_nc.methods.base import weighted_mean
from fedjax_nc.testing import compare, programs
from fedjax_nc.testing.compare import fresh, identical, like, plain, same
from fedjax_nc.testing.contract import Absent, Property
from fedjax_nc.testing.federation import EMPTY, SINGLE, SIZES
from fedjax_nc.testing.trial import Seen, Trial
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.round import RoundMetrics, init_state, make_round, upload_of
from fedjax_nc.train.seeds import lead
from fedjax_nc.types import State

WHOLE, MORE = 12, 16  # batch sizes that hold every client's data
EVERYBODY = tuple(range(len(SIZES)))


def keeps_float64(trial: Trial) -> str:
    """Nothing is computed or kept in a shorter float, so that executors can be compared."""
    shorter = programs.roundings(trial.program)
    assert not shorter, f"numbers in float64 are rounded to {shorter[0]}"
    for path, leaf in zip(
        compare.paths(trial.initial), jax.tree.leaves(trial.initial), strict=True
    ):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert leaf.dtype == np.float64, f"{path} starts as {compare.show(leaf)}"
    return "no shorter float anywhere"


def stays_finite(trial: Trial) -> str:
    """No NaN or infinity, although clients miss classes and one has a single example."""
    for number, seen in enumerate(trial.rounds, 1):
        _assert_finite(trial, seen.state, metrics=seen.metrics, when=f"in round {number}")
    return f"clients of {', '.join(map(str, SIZES))} examples"


def trains(trial: Trial) -> str:
    """What is trained moves, what is not stays, and shapes are kept."""
    (_, first, _), (state, last, _) = trial.rounds
    start, method = trial.start, trial.method
    like(state, start, when="after two rounds")
    assert state.round == 2, f"after two rounds, the state says {state.round}"
    sent = upload_of(method, trial.initial.weights)
    if jax.tree.leaves(sent.stats):
        moved = compare.differ(state.weights.stats, start.weights.stats)
        assert moved, "the running statistics of BatchNorm do not move"
    for group in start.weights.params:
        moved = compare.differ(state.weights.params[group], start.weights.params[group])
        if group in sent.params:
            assert moved, f"'{group}' is trained and sent, and does not move"
        elif method.server is weighted_mean:
            assert not moved, f"'{group}' is not sent, and moves"
    moved = compare.differ(state.clients, start.clients)
    assert moved or not start.clients, "the state that clients keep never changes"
    means = [float(m.sums["loss"] / m.sums["examples"]) for m in (first, last)]
    return f"loss {means[0]:.3f}, then {means[1]:.3f}"


def repeats(trial: Trial) -> str:
    """Bit for bit, run again and traced again; another seed gives other numbers."""
    identical(trial.run(2)[0], trial.rounds[1].state, when="run again")
    other, _ = trial.run(state=trial.tiny.state(seed=1))
    assert compare.differ(other.weights, trial.rounds[0].state.weights), "seeds make no difference"
    tasks = trial.tiny.task, trial.counted(trial.tiny.task)  # which are not taken for the same
    starts = [jax.make_jaxpr(partial(init_state, task))(jax.random.key(0)) for task in tasks]
    difference = programs.first_difference(*starts)
    assert not difference, f"traced again, it starts with another program: {difference}"
    again = trial.traced_round(make_round(tasks[1], trial.scan))
    difference = programs.first_difference(trial.program, again)
    assert not difference, f"traced again, the round is another program: {difference}"
    return "bit for bit, the same program"


def resumes(trial: Trial) -> str:
    """From a checkpoint on disk, bit for bit."""
    state = trial.rounds[1].state
    with tempfile.TemporaryDirectory() as folder:
        with checkpoint.open_manager(Path(folder)) as manager:
            checkpoint.save([manager], lead(state))
        restored, _, _, warnings = checkpoint.restore(Path(folder), trial.initial)
    assert restored is not None and not warnings, "; ".join(warnings)
    identical(restored, state, when="read from a checkpoint")
    expected, _ = trial.run(state=state)
    identical(trial.run(state=restored)[0], expected, when="resumed after round two")
    return "after round two, bit for bit"


def compiles_once(trial: Trial) -> str:
    """Neither later rounds nor other learning rates, term weights and data trace again."""
    (first, _, once), (_, _, twice) = trial.rounds
    if once != twice:
        leaves = (jax.tree.leaves(state) for state in (trial.initial, first))
        changed = [
            f": {path} was {compare.show(x)} and is {compare.show(y)}"
            for path, x, y in zip(compare.paths(first), *leaves, strict=True)
            if compare.show(x) != compare.show(y)
        ]
        raise AssertionError(f"the second round is traced again{''.join(changed[:1])}")
    before = trial.traced
    hyper = jax.tree.map(lambda x: x / 2, trial.tiny.hyper)
    trial.run(hyper=hyper, data=trial.only(SINGLE))
    assert trial.traced == before, "other learning rates, term weights or data are traced again"
    return "one program for all rounds"


def reads_no_padding(trial: Trial) -> str:
    """Rows that fill up a batch may hold anything."""
    state, metrics = trial.run(data=trial.dirty)
    when = "with other values in the rows that fill up batches"
    identical(state, trial.rounds[0].state, when=when)
    identical(metrics.sums, trial.rounds[0].metrics.sums, when=when)
    return "bit for bit, whatever it holds"


def counts_no_padding(trial: Trial) -> str:
    """A batch that is filled up with more rows is the same batch."""
    arguments = trial.initial, trial.dirty, jnp.arange(len(SIZES))
    program = jax.make_jaxpr(trial.uploads(MORE))(*arguments)
    if programs.draws_for_rows(program, MORE):
        raise Absent("it draws random numbers for every row of a batch")
    found, expected = (trial.uploads(size)(*arguments) for size in (MORE, WHOLE))
    when = f"with batches filled up to {MORE} rows instead of {WHOLE}"
    return f"at most {same(found, expected, when=when):.0e} apart"


def uploads_are_sums(trial: Trial) -> str:
    """Neither the order of clients matters nor who else takes part."""
    total, order = trial.uploads(WHOLE), jnp.arange(len(SIZES))
    expected = total(trial.initial, trial.tiny.data, order)
    gap = same(total(trial.initial, trial.tiny.data, -order), expected, when="in reverse order")
    halves = [
        total(trial.initial, trial.only(*half), order) for half in (EVERYBODY[:3], EVERYBODY[3:])
    ]
    gap = max(
        gap, same(tree.add(*halves), expected, when="as the sum of two halves of the clients")
    )
    return f"at most {gap:.0e} apart"


def needs_data(trial: Trial) -> str:
    """Clients without data change nothing, alone or all of them."""
    ids = np.concatenate([seen.metrics.ids for seen in trial.rounds])
    assert EMPTY in ids, "the client without data never takes part"
    state, when = trial.rounds[1].state, "of a client without data"
    kept = [tree.take(plain(s).clients, EMPTY) for s in (state, trial.initial)]
    identical(kept[0], kept[1], when=when)
    state, metrics = trial.run(state=trial.rounds[1].state, data=trial.only())
    before = plain(trial.rounds[1].state)
    identical(plain(state)[2:], before[2:], when="after a round in which nobody has data")
    _assert_finite(trial, state, metrics=metrics, when="where nobody has data")
    return "nothing changes"


def learns_from_one_example(trial: Trial) -> str:
    """A federation that has one example, and so misses all classes but one, stays finite."""
    state, metrics = trial.run(2, data=trial.only(SINGLE))
    when = "where one client has one example and the others none"
    _assert_finite(trial, state, metrics=metrics, when=when)
    others = np.array([client for client in EVERYBODY if client != SINGLE])
    kept = [tree.take(plain(s).clients, others) for s in (state, trial.initial)]
    identical(kept[0], kept[1], when=f"{when}, of the others")
    return "finite, and nobody else changes"


def executor_agrees(trial: Trial, name: str) -> str:
    """Clients run another way give the same rounds up to the order of sums.

    Under `chunked` every device takes chunks of two clients: it is `sharded`, too.
    """
    how, when = make_executor(name, chunk=2), f"run by '{name}' instead of 'scan'"
    if name == "chunked" and len(jax.devices()) > 1:
        how = make_executor("sharded")._replace(chunk=2)
    round_fn = make_round(trial.tiny.task, how)
    state, data, gap = how.place(fresh(trial.initial)), how.place(trial.tiny.data), 0.0
    rounds: Sequence[Seen] = trial.rounds
    if (
        not how.jit
    ):  # one operation after another is slow: one round, and three steps of two clients
        data = trial.only(SINGLE, *_with_two_batches(trial)[:1])
        rounds = [Seen(*trial.run(data=data), traced=trial.traced)]
    traced = []
    for expected in rounds:
        state, metrics = round_fn(state, trial.tiny.hyper, data)
        traced.append(trial.traced)
        gap = max(gap, same(state, expected.state, when=when))
        gap = max(gap, same(metrics.sums, expected.metrics.sums, when=f"{when}, of the metrics"))
    assert traced[0] == traced[-1], f"{when}, the second round is traced again"
    return f"at most {gap:.0e} apart"


def _with_two_batches(trial: Trial) -> list[int]:
    """Returns those of the first round whose data is more than one batch and at most two."""
    size = trial.tiny.task.trainer.local.batch_size
    ids = np.asarray(trial.rounds[0].metrics.ids)
    return [int(client) for client in ids if size < SIZES[client] <= 2 * size]


def _assert_finite(trial: Trial, state: State, *, metrics: RoundMetrics, when: str) -> None:
    """Asserts that nothing is NaN or infinite; names a client that uploads such a number."""
    ids, finite = np.asarray(metrics.ids), np.asarray(metrics.finite)
    if not finite.all():
        client = int(ids[~finite][0])
        counts = np.asarray(trial.tiny.data.class_counts[client])
        held = " and ".join(map(str, np.flatnonzero(counts)))
        raise AssertionError(
            f"{when}, client {client} uploads NaN or infinity: it has {int(counts.sum())} examples "
            f"of class {held}, and there are {len(counts)} classes"
        )
    bad = compare.not_finite(state)
    assert not bad, f"{when}, the server makes {bad[0]} NaN or infinite"


PROPERTIES: dict[str, Property] = {
    "keeps float64": keeps_float64,
    "stays finite": stays_finite,
    "trains": trains,
    "repeats": repeats,
    "resumes": resumes,
    "compiles once": compiles_once,
    "reads no padding": reads_no_padding,
    "uploads sums": uploads_are_sums,
    "counts no padding": counts_no_padding,
    "needs data": needs_data,
    "learns from one example": learns_from_one_example,
    **{
        f"agrees under {name}": partial(executor_agrees, name=name)
        for name in ("vmap", "chunked", "debug")
    },
}
