"""The host's loop: rounds, tests, checkpoints and records until the last round.

Rounds between which nothing happens are dispatched together, and their numbers are fetched while
the next ones run.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import metrics, processes
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import Stopped, UserError
from fedjax_nc.host import records as rows_of
from fedjax_nc.host.assemble import Job
from fedjax_nc.host.reporting import Reporter
from fedjax_nc.host.states import clients_on_host
from fedjax_nc.host.stopping import SAVED, Asked
from fedjax_nc.host.track import Track, make_track, record
from fedjax_nc.io import checkpoint, files, records
from fedjax_nc.io.lock import Lock
from fedjax_nc.methods.base import the_last
from fedjax_nc.train import schedule
from fedjax_nc.train import seeds as axis
from fedjax_nc.train.evaluate import Score, make_evaluate
from fedjax_nc.train.round import RoundMetrics, make_round, make_rounds
from fedjax_nc.types import State, Weights

AT_ONCE = 10  # rounds in one dispatch, at most
NO_TRACK = Track()
_AHEAD = 1000  # rounds whose participants are drawn at once, at most
_DRAWN = 1_000_000  # clients among whom they are drawn, of all these rounds together: 20 MB or so
_SECONDS = 1.0  # that a dispatch should take at most: progress shows, and Ctrl-C is heard


class Seed(NamedTuple):
    """One seed's settings and records; without a directory they stay in memory."""

    config: RunConfig
    rows: list[dict[str, Any]]
    directory: Path | None = None
    manager: Any = None  # of its checkpoints
    lock: Lock | None = None  # of the directory
    lines: list[str] | None = None  # the rows as they are in metrics.jsonl
    about: Mapping[str, Any] = MappingProxyType({})  # what its checkpoints say of the run

    def record(self, row: dict[str, Any]) -> None:
        """Adds the row of a finished round."""
        if self.lock is not None:
            self.lock.check()
        if self.directory is not None and self.lines is not None:
            self.lines.append(records.line_of(row))
            records.append(self.directory / "metrics.jsonl", self.lines[-1])
        self.rows.append(row)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint of this seed holds beside the state."""
        return {**self.about, "rows": "".join(self.lines or ())}

    @property
    def last_saved(self) -> int:
        """The round of the newest checkpoint, 0 if there is none."""
        return 0 if self.manager is None else int(self.manager.latest_step() or 0)


class Pending(NamedTuple):
    """Dispatched rounds whose numbers have not been fetched."""

    first: int
    lrs: list[float]  # one per round
    metrics: RoundMetrics  # axes: rounds, seeds
    scores: dict[str, Score] | None  # after the last of them
    tracked: dict[str, Any] | None  # likewise
    compiled: bool  # something was compiled on the way, so their time is no round's

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What is fetched."""
        return self.metrics, self.scores, self.tracked


@dataclasses.dataclass(frozen=True)
class Plan:
    """What happens after which round."""

    config: RunConfig
    track: Track

    def tests(self, done: int) -> bool:
        """Returns whether the global model is tested after so many rounds."""
        evaluation = self.config.evaluation
        return done % evaluation.every == 0 or done > self.config.rounds - evaluation.last

    def saves(self, done: int) -> bool:
        """Returns whether a checkpoint is written after so many rounds."""
        return done % self.config.execution.checkpoint_every == 0 or done == self.config.rounds

    def work(self, done: int) -> set[str]:
        """Returns the programs that run for a dispatch that ends after so many rounds."""
        programs = {"rounds": True, "tests": self.tests(done), "track": self.track.due(done)}
        return {name for name, due in programs.items() if due}

    def end(self, number: int, limit: int) -> int:
        """Returns after which round a dispatch of at most `limit` rounds ends."""
        done = number + 1
        while done - number < limit and self.work(done) == {"rounds"} and not self.saves(done):
            done += 1
        return done


def train_rounds(
    job: Job,
    seeds: list[Seed],
    *,
    state: State,
    reporter: Reporter,
    track: Track = NO_TRACK,
    asked: Asked | None = None,
) -> State:
    """Runs all rounds that are left and returns the final state.

    Args:
      job: the run.
      seeds: whose records are kept.
      state: of all seeds.
      reporter: told of every round.
      track: what else is recorded.
      asked: whether a signal has come; then the rounds that run are finished and saved, and
        `Stopped` is raised.
    """
    asked = asked or Asked()
    cfg, plan = job.config, Plan(job.config, track)
    number = int(np.ravel(state.round)[0])
    apart = clients_on_host(state) or not job.executor.jit  # rounds are not one program
    streamed, feed = job.host is not None, job.feed
    examples = feed.clients(_participants(job, state, first=number))
    rounds_fn = make_rounds_of(job, state)
    evaluate_fn = make_evaluate(
        job.task, job.executor, batch_size=cfg.evaluation.batch_size, seeds=job.seeds
    )
    track_fn = make_track(job, track) if track.names else None
    hyper, managers = schedule.make_hyper(job.task, 0), [seed.manager for seed in seeds]
    clock, waiting, limit, compiled, slow = time.perf_counter(), [], 1, set(), True
    saved = time.monotonic()

    def hear(arrays: Any) -> None:
        """Waits for what is computed, where that takes long, so that a second signal is heard.

        Not only fetching would wait inside jax: several devices of a CPU have room for one program.
        """
        if slow:
            processes.until_ready(arrays)

    def fetch() -> None:
        """Fetches and records the oldest dispatched rounds."""
        nonlocal clock, limit, slow
        pending = waiting.pop(0)
        hear(pending.arrays)
        try:
            new = _rows(pending, seeds)
        except UserError as error:  # all processes have the same numbers
            processes.ends_all(error)
            raise
        now = time.perf_counter()
        each, slow = (now - clock) / len(new), now - clock > _SECONDS
        for rows in new:
            for seed, row in zip(seeds, rows, strict=True):
                seed.record(row | {"seconds": each, "compiled": pending.compiled})
            reporter.round(rows, cfg.rounds)
        if not (pending.compiled or apart or streamed):
            limit = max(1, min(AT_ONCE, int(_SECONDS / each)))
        clock = now

    def save() -> None:
        """Saves all rounds so far, whose numbers have been seen to be finite."""
        nonlocal saved
        for seed in seeds:
            if seed.lock is not None:
                seed.lock.look()
            if seed.directory is not None:
                files.flush(seed.directory / "metrics.jsonl")
        checkpoint.save(managers, state, about=[seed.facts for seed in seeds])
        saved = time.monotonic()

    while number < cfg.rounds and not _reached(seeds):
        if waiting:
            hear(waiting[-1].arrays)
        late = 0 < cfg.execution.save_seconds < time.monotonic() - saved
        # clocks and signals differ: the first process decides, and a signal to one is for all
        told = processes.of_all(np.array([plan.end(number, limit), late, bool(asked.by)]))
        if told[:, 2].any():
            asked.by = asked.by or "another process"
            break
        done, late = int(told[0, 0]), bool(told[0, 1])
        new = plan.work(done) - compiled
        while new and waiting:  # what has run so far is not charged for compiling
            fetch()
        lrs = [schedule.learning_rate(cfg.local, n) for n in range(number, done)]
        with np.errstate(over="ignore"):  # an absurd one is told by what it does to the weights
            padded = np.resize(lrs, AT_ONCE).astype(hyper.lr.dtype)
        state, metrics = rounds_fn(state, hyper._replace(lr=padded), len(lrs), next(examples))
        asked.busy = True
        scores = tracked = None
        if plan.work(done) != {"rounds"}:
            hear(metrics)
        if plan.tests(done):
            scores = evaluate_fn(tested_weights(job, state), feed.tests())
        if track_fn and track.due(done):
            tracked = track_fn(state, schedule.make_hyper(job.task, done))
        waiting.append(
            Pending(
                number, lrs, metrics=metrics, scores=scores, tracked=tracked, compiled=bool(new)
            )
        )
        compiled |= new
        # a round that waits would hold on to its examples, or may be the last one
        decides = scores is not None and cfg.evaluation.stop_at is not None
        saves = plan.saves(done) or late
        while len(waiting) > (0 if saves or new or streamed or decides else 1):
            fetch()
        if saves or (decides and _reached(seeds)):
            save()
        number = done
    # what came while the last rounds ran only one process knows yet
    if processes.of_all(np.array(bool(asked.by))).any():
        asked.by = asked.by or "another process"
        while waiting:
            fetch()
        if processes.of_all(np.array(any(seed.last_saved < number for seed in seeds)))[0]:
            save()
        for manager in managers:
            manager.wait_until_finished()
        stop = Stopped(f"saved after round {number}; the same call goes on", code=SAVED)
        raise processes.ends_all(stop)
    return state


def _reached(seeds: list[Seed]) -> bool:
    """Returns whether every seed has reached its target accuracy in some tested round."""
    targets = [seed.config.evaluation.stop_at for seed in seeds]
    return all(
        target is not None and metrics.to_target(metrics.curve(seed.rows), target)["round"]
        for seed, target in zip(seeds, targets, strict=True)
    )


def tested_weights(job: Job, state: State) -> Weights:
    """Returns the global model that is tested, of every seed."""
    method = job.task.method
    if method.tested is the_last:
        return state.weights
    return job.seeds.over(method.tested, (0, 0))(state.weights, dict(state.shared))


def _participants(job: Job, state: State, first: int) -> Iterator[np.ndarray]:
    """Yields who takes part in each round that is left; known ahead of all of them."""
    choose = partial(schedule.participants, federation=job.task.federation)
    several = jax.jit(jax.vmap(choose, (None, 0)))
    # the examples of several seeds are all on the devices, so any seed's participants will do
    key = state.key[0]
    ahead = max(1, min(_AHEAD, _DRAWN // job.task.federation.clients))
    for start in range(first, job.config.rounds, ahead):
        rounds = jnp.arange(start, min(start + ahead, job.config.rounds))
        yield from np.asarray(several(key, rounds))


def make_rounds_of(job: Job, state: State) -> Callable[..., tuple[State, RoundMetrics]]:
    """Makes the rounds of a job, a function of (state, hyper with `AT_ONCE` rates, count, data)."""
    if clients_on_host(state) or not job.executor.jit:
        return _one_by_one(job, state)
    return make_rounds(job.task, job.executor, at_once=AT_ONCE, seeds=job.seeds)


def _one_by_one(job: Job, state: State) -> Callable[..., tuple[State, RoundMetrics]]:
    """Makes rounds with `make_rounds`'s arguments for one seed, where they are not one program."""
    on_host = clients_on_host(state)
    round_fn = make_round(job.task, job.executor, clients_on_host=on_host)

    def one_round(state, hyper, count, data):
        assert count == 1 and job.seeds.count == 1
        new, metrics = round_fn(axis.take(state, 0), hyper._replace(lr=hyper.lr[0]), data)
        own = jax.tree.map(lambda x: x[None], new.clients)  # of numpy arrays a view
        light = axis.lead(dataclasses.replace(new, clients={}))
        return dataclasses.replace(light, clients=own), jax.tree.map(
            lambda x: x[None, None], metrics
        )

    return one_round


def _rows(done: Pending, seeds: list[Seed]) -> list[list[dict[str, Any]]]:
    """Returns the records of finished rounds, for each round a row per seed."""
    metrics, scores, tracked = jax.device_get(done.arrays)
    result = []
    for r, lr in enumerate(done.lrs):
        rows = []
        for s, seed in enumerate(seeds):
            where = f"seed {seed.config.seed}, " if len(seeds) > 1 else ""
            rows.append(
                rows_of.trained(
                    done.first + r + 1,
                    lr,
                    metrics=jax.tree.map(lambda x, r=r, s=s: x[r, s], metrics),
                    where=where,
                    last_saved=seed.last_saved,
                )
            )
        result.append(rows)
    for s, row in enumerate(result[-1]):
        if scores is not None:
            row |= rows_of.tested(axis.take(scores, s))
        if tracked is not None:
            row |= record(axis.take(tracked, s))
    return result
