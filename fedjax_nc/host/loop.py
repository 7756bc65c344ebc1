"""The host's loop: rounds, evaluation, checkpoints, records.

Rounds between which nothing happens are dispatched together, and their numbers are fetched while
the next ones run.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config
from fedjax_nc.data import federated
from fedjax_nc.figures import bias, curves
from fedjax_nc.host import metrics as reported
from fedjax_nc.host.assemble import Job, first_state, only, place
from fedjax_nc.host.track import Track, make_track, record
from fedjax_nc.io import checkpoint, records, rundir
from fedjax_nc.train import evaluate, schedule
from fedjax_nc.train.round import RoundMetrics, make_round, make_rounds
from fedjax_nc.train.traffic import traffic
from fedjax_nc.types import Hyper, State, Weights

AT_ONCE = 10  # rounds in one dispatch, at most
NOTHING = Track()
_SECONDS = 1.0  # that a dispatch should take at most: progress shows, and Ctrl-C is heard


@runtime_checkable
class Reporter(Protocol):
    """Who shows progress."""

    def note(self, message: str) -> None:
        """Say something once."""
        ...

    def start(self, seeds: tuple[int, ...]) -> None:
        """These seeds are trained now."""
        ...

    def round(self, rows: list[dict[str, Any]], rounds: int) -> None:
        """A round has finished; a row per seed."""
        ...

    def stage(self, name: str, done: int, total: int) -> None:
        """Part of what follows the rounds has finished."""
        ...


class Seed(NamedTuple):
    """What a seed has of its own: its files, and what is recorded of it."""

    config: config.RunConfig
    directory: Path
    manager: Any
    rows: list[dict[str, Any]]


class Pending(NamedTuple):
    """Dispatched rounds whose numbers have not been fetched."""

    first: int
    lrs: list[float]  # one per round
    metrics: RoundMetrics  # a leading axis of rounds
    scores: dict[str, evaluate.Score] | None  # after the last of them
    tracked: dict[str, Any] | None  # likewise
    compiled: bool  # something was compiled on the way, so their time is no round's


def run(
    job: Job, directories: list[Path], reporter: Reporter, track: Track = NOTHING
) -> list[dict[str, Any]]:
    """Train every seed to its end, resuming where a stopped run left its last checkpoint.

    Seeds that stand at the same round are one program.
    """
    for split, directory in zip(job.splits, directories, strict=True):
        temporary = directory / "partition.tmp"  # a killed run leaves no half of it
        federated.save_split(temporary, job.config.data, split=split)
        os.replace(temporary, directory / "partition.npz")
    for message in job.warnings:
        reporter.note(f"warning: {message}")
    summaries: dict[int, dict[str, Any]] = {}
    with contextlib.ExitStack() as files:
        managers = [files.enter_context(checkpoint.open_manager(d / "ckpt")) for d in directories]
        begun = [
            _begin(job, i, directory=d, manager=m, reporter=reporter)
            for i, (d, m) in enumerate(zip(directories, managers, strict=True))
        ]
        groups: dict[int, list[int]] = {}
        for i, (_, state, _) in enumerate(begun):
            groups.setdefault(int(state.round), []).append(i)
        for numbers in groups.values():
            some = only(job, numbers)
            states = [begun[i][1] for i in numbers]
            state = states[0] if len(states) == 1 else checkpoint.stack(states)
            state = place(some, state, on_host=begun[0][2])
            done = _run(
                some,
                [begun[i][0] for i in numbers],
                state=state,
                on_host=begun[0][2],
                reporter=reporter,
                track=track,
            )
            summaries |= zip(numbers, done, strict=True)
    return [summaries[i] for i in range(len(directories))]


def _begin(job: Job, number: int, directory: Path, manager, reporter: Reporter):
    """A seed, its newest state, and whether client state stays in host memory."""
    cfg = job.configs[number]
    which = f"seed {cfg.seed}: " if len(job.configs) > 1 else ""
    state, on_host = first_state(job, number)
    restored, warnings = checkpoint.restore(manager, state)
    for message in warnings:
        reporter.note(f"warning: {which}{message}")
    if restored is not None:
        state = restored
        reporter.note(f"{which}resuming after round {int(state.round)}")
    rows = records.cut(directory / "metrics.jsonl", int(state.round))
    return Seed(cfg, directory, manager=manager, rows=rows), state, on_host


def _run(
    job: Job, seeds: list[Seed], state: State, on_host: bool, reporter: Reporter, track: Track
) -> list[dict[str, Any]]:
    """Train to the end and leave the last files; the summary of each seed."""
    reporter.start(tuple(seed.config.seed for seed in seeds))
    state = _train(job, seeds, state=state, on_host=on_host, reporter=reporter, track=track)
    personal = _personal(job, state, reporter=reporter)
    calibrated = _calibrated(job, state)
    up, down = traffic(job.task, job.data.pool)
    counts = np.asarray(job.data.class_counts)
    counts = counts.reshape(-1, *counts.shape[-2:])  # of each seed, or everybody's
    summaries = []
    for number, (seed, own, after) in enumerate(zip(seeds, personal, calibrated, strict=True)):
        cfg = seed.config
        summary = (
            reported.summarise(cfg, seed.rows, traffic=(up, down), seeds=len(seeds)) | own | after
        )
        title = f"{cfg.method} on {cfg.dataset} ({cfg.model}, seed {cfg.seed})"
        curves.one_run(seed.rows, title).savefig(seed.directory / "curves.png", dpi=120)
        bias.labels(counts[number % len(counts)], title).savefig(seed.directory / "labels.png")
        text = json.dumps(summary, indent=2) + "\n"
        rundir.write_atomically(seed.directory / "summary.json", text)
        summaries.append(summary)
    return summaries


def _train(
    job: Job, seeds: list[Seed], state: State, on_host: bool, reporter: Reporter, track: Track
) -> State:
    """All rounds that are left; returns the final state."""
    cfg, first = job.config, int(np.ravel(state.round)[0])
    apart = on_host or not job.executor.jit  # rounds are not one program
    streamed, feed = job.host is not None, job.feed
    examples = feed.clients(_participants(job, state, first=first))
    if apart:
        rounds_fn = _one_by_one(make_round(job.task, job.executor, clients_on_host=on_host))
    else:
        rounds_fn = make_rounds(job.task, job.executor, at_once=AT_ONCE, seeds=job.axes)
    evaluate_fn = evaluate.make_evaluate(
        job.task, job.executor, batch_size=cfg.evaluation.batch_size, seeds=job.axes
    )
    track_fn = make_track(job, track.names) if track.names else None
    averaged = cfg.rounds - cfg.evaluation.last
    hyper, managers = schedule.make_hyper(job.task, 0), [seed.manager for seed in seeds]
    clock, waiting, limit = time.perf_counter(), [], 1

    def tests(done: int) -> bool:
        return done % cfg.evaluation.every == 0 or done > averaged

    def saves(done: int) -> bool:
        return done % cfg.execution.checkpoint_every == 0 or done == cfg.rounds

    def finish(pending: Pending) -> None:
        nonlocal clock, limit
        new = _rows(pending, seeds)
        now = time.perf_counter()
        each = (now - clock) / len(new)
        for rows in new:
            for seed, row in zip(seeds, rows, strict=True):
                row |= {"seconds": each, "compiled": pending.compiled}
                records.append(seed.directory / "metrics.jsonl", row)
                seed.rows.append(row)
            reporter.round(rows, cfg.rounds)
        if not (pending.compiled or apart or streamed):
            limit = max(1, min(AT_ONCE, int(_SECONDS / each)))
        clock = now

    number, compiled = first, set()
    while number < cfg.rounds:
        done = number + 1
        while done - number < limit and not (tests(done) or saves(done) or track.due(done)):
            done += 1
        new = {"rounds"} | ({"tests"} if tests(done) else set())
        new = (new | ({"track"} if track.due(done) else set())) - compiled
        while new and waiting:  # what has run so far is not charged for compiling
            finish(waiting.pop(0))
        lrs = [schedule.learning_rate(cfg.local, n) for n in range(number, done)]
        with np.errstate(over="ignore"):  # an absurd one is told by what it does to the weights
            padded = np.resize(lrs, AT_ONCE).astype(hyper.lr.dtype)
        state, metrics = rounds_fn(state, hyper._replace(lr=padded), len(lrs), next(examples))
        scores = evaluate_fn(_tested(job, state), feed.tests()) if tests(done) else None
        tracked = (
            track_fn(state, schedule.make_hyper(job.task, done))
            if track_fn and track.due(done)
            else None
        )
        waiting.append(
            Pending(
                number, lrs, metrics=metrics, scores=scores, tracked=tracked, compiled=bool(new)
            )
        )
        compiled |= new
        # a round that waits would hold on to its examples
        while len(waiting) > (0 if saves(done) or new or streamed else 1):
            finish(waiting.pop(0))
        if saves(done):  # only now have these rounds' numbers been seen to be finite
            checkpoint.save(managers, state)
        number = done
    return state


def _tested(job: Job, state: State) -> Weights:
    return job.task.method.tested(state.weights, state.shared)


def _participants(job: Job, state: State, first: int) -> Iterator[np.ndarray]:
    """Who takes part in each round that is left, known ahead of all of them."""
    numbers = jnp.arange(first, job.config.rounds)
    choose = partial(schedule.participants, federation=job.task.federation)
    yield from np.asarray(jax.jit(jax.vmap(choose, (None, 0)))(state.key, numbers))


def _one_by_one(round_fn):
    """A round as `make_rounds` would give it, for what is not one program."""

    def run(state, hyper, count, data):
        assert count == 1
        state, metrics = round_fn(state, hyper._replace(lr=hyper.lr[0]), data)
        return state, jax.tree.map(lambda x: x[None], metrics)

    return run


def _rows(done: Pending, seeds: list[Seed]) -> list[list[dict[str, Any]]]:
    """Records of finished rounds, for each a row per seed."""
    several = len(seeds) > 1
    metrics, scores, tracked = jax.device_get((done.metrics, done.scores, done.tracked))
    result = []
    for r, lr in enumerate(done.lrs):
        rows = []
        for s, seed in enumerate(seeds):
            own = jax.tree.map(lambda x, r=r, s=s: x[r, s] if several else x[r], metrics)
            where = f"seed {seed.config.seed}, " if several else ""
            last_good = int(seed.manager.latest_step() or 0)
            rows.append(
                reported.row(done.first + r + 1, lr, metrics=own, where=where, last_good=last_good)
            )
        result.append(rows)
    for s, row in enumerate(result[-1]):
        own = [
            jax.tree.map(lambda x, s=s: x[s], found) if several and found else found
            for found in (scores, tracked)
        ]
        row |= (reported.tested(own[0]) if own[0] else {}) | (record(own[1]) if own[1] else {})
    return result


def _calibrated(job: Job, state: State) -> list[dict[str, Any]]:
    """Accuracy of the global model after the method's step that follows the last round."""
    if job.task.method.posthoc is None:
        return [{} for _ in job.configs]
    size = job.config.evaluation.batch_size
    feed = job.feed
    weights = evaluate.make_calibrate(job.task, job.executor, batch_size=size, seeds=job.axes)(
        _tested(job, state), state.key, feed
    )
    evaluate_fn = evaluate.make_evaluate(job.task, job.executor, batch_size=size, seeds=job.axes)
    scores = evaluate_fn(weights, feed.tests())
    each = (
        [scores]
        if job.seeds is None
        else [jax.tree.map(lambda x, i=i: x[i], scores) for i in range(len(job.configs))]
    )
    return [{"calibrated_accuracy": reported.tested(own)["global_accuracy"]} for own in each]


def _personal(job: Job, state: State, reporter: Reporter) -> list[dict[str, Any]]:
    """Accuracy of every client's own model: after one more local training, and fine-tuned."""
    cfg, method = job.config, job.task.method
    results: list[dict[str, Any]] = [
        {"personal_accuracy": None, "finetuned_accuracy": None} for _ in job.configs
    ]
    hyper = schedule.make_hyper(job.task, cfg.rounds - 1)
    wanted = [
        ("personal", cfg.evaluation.personal, method.phases, hyper.term_weights),
        ("finetuned", cfg.evaluation.finetune, method.finetune, ()),
    ]
    for name, on, phases, term_weights in wanted:
        if not on or not phases:
            continue
        score = evaluate.personalise(
            job.task,
            job.executor,
            batch_size=cfg.evaluation.batch_size,
            phases=phases,
            state=state,
            hyper=Hyper(hyper.lr, term_weights),
            feed=job.feed,
            progress=partial(reporter.stage, f"{name} models"),
            seeds=job.axes,
        )
        for i, result in enumerate(results):
            own = score if job.seeds is None else jax.tree.map(lambda x, i=i: x[i], score)
            result |= reported.over_time(name, own)
    return results
