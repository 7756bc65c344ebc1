"""A run from what is asked for to what it comes to: on disk, where it resumes, or in memory."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_nc import processes
from fedjax_nc.config import RunConfig, fingerprint
from fedjax_nc.data import federated
from fedjax_nc.errors import UserError
from fedjax_nc.host import alike, stopping
from fedjax_nc.host.assemble import NOTHING, Given, Job, assemble, only
from fedjax_nc.host.finish import finish
from fedjax_nc.host.loop import NO_TRACK, Seed, train_rounds
from fedjax_nc.host.reporting import Reporter
from fedjax_nc.host.states import place, stack_states, state_of_seed
from fedjax_nc.host.track import Track
from fedjax_nc.io import checkpoint, environment, files, records, rundir
from fedjax_nc.io.lock import Lock, hold
from fedjax_nc.train import seeds as axis
from fedjax_nc.types import State


class Request(NamedTuple):
    """What is asked for."""

    configs: tuple[RunConfig, ...]  # one per seed
    given: Given = NOTHING
    out: str | None = "runs"  # None: nothing is written
    seeds_parallel: bool = False
    overwrite: bool = False
    strict: bool = False
    track: Track = NO_TRACK
    command: tuple[str, ...] = ()  # how it was asked for
    plugins: tuple[dict[str, str], ...] = ()


class Place(NamedTuple):
    """Where a seed is written, and the lock that keeps others away; nowhere if in memory.

    Of several processes only the first one has the lock, and writes.
    """

    directory: Path | None = None
    lock: Lock | None = None

    @property
    def mine(self) -> Path | None:
        """The directory, if this process writes it."""
        return self.directory if processes.is_first() else None


class Outcome(NamedTuple):
    """What one seed comes to."""

    config: RunConfig
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    directory: Path | None = None
    given: Given = NOTHING
    job: Job | None = None  # of this seed, if it was trained now
    state: State | None = None  # its last one, without the axis of seeds; likewise


def run_seeds(request: Request, reporter: Reporter) -> list[Outcome]:
    """Trains every seed that is not finished, and returns what all of them come to, in order."""
    processes.compare(alike.asked(request))
    found: dict[int, Outcome] = {}
    places: dict[int, Place] = {}
    with contextlib.ExitStack() as held:
        for cfg in request.configs:  # all of them before the first is trained
            claimed = processes.in_turn(
                partial(_claim, cfg, request, held=held, reporter=reporter),
                others=partial(_look, cfg, request),
            )
            if isinstance(claimed, Outcome):
                found[cfg.seed] = claimed
            else:
                places[cfg.seed] = claimed
        processes.compare(
            {f"whether seed {cfg.seed} is finished": cfg.seed in found for cfg in request.configs}
        )
        together = request.seeds_parallel
        for group in [request.configs] if together else [(cfg,) for cfg in request.configs]:
            left = [cfg for cfg in group if cfg.seed in places]
            for seed in (cfg.seed for cfg in group if cfg not in left):
                where = found[seed].directory
                reporter.note(f"already finished: {where} (--overwrite starts again)")
            if not left:
                continue
            with reporter.waiting(f"reading {left[0].dataset} and building {left[0].model}"):
                made = partial(assemble, *left, given=request.given, strict=request.strict)
                job = processes.in_step(made)
            outcomes = _train(job, request, reporter=reporter, places=places)
            found |= {outcome.config.seed: outcome for outcome in outcomes}
    return [found[cfg.seed] for cfg in request.configs]


def _claim(
    cfg: RunConfig, request: Request, *, held: contextlib.ExitStack, reporter: Reporter
) -> Outcome | Place:
    """Returns a seed that is finished already, or the place that is held for it."""
    directory = _place(request, cfg)
    if directory is None:
        return Place()
    if older := _older(request, cfg, directory=directory):
        reporter.note(
            f"{older} has this run on examples in stored order: --data.order=stored goes on with it"
        )
    outcome, lock = _finished(cfg, directory, request=request), None
    if outcome is None:  # else it is only read, perhaps where nobody may write
        lock = held.enter_context(hold(directory))
        files.remove_leftovers(directory)
        outcome = _finished(cfg, directory, request=request)
    rundir.check(directory, cfg, overwrite=request.overwrite, plugins=request.plugins)
    if outcome is None and not request.overwrite:
        if mended := rundir.mend(directory, cfg):
            reporter.note(f"warning: {mended}")
        if damaged := rundir.damage(directory):
            reporter.note(f"warning: {damaged}: it is made again of the last checkpoint")
    return outcome or Place(directory, lock)


def _look(cfg: RunConfig, request: Request) -> Outcome | Place:
    """Returns what the first process has claimed, as another one sees it."""
    directory = _place(request, cfg)
    if directory is None:
        return Place()
    return _finished(cfg, directory, request=request) or Place(directory)


def _place(request: Request, cfg: RunConfig) -> Path | None:
    return None if request.out is None else rundir.path_of(request.out, cfg)


def _older(request: Request, cfg: RunConfig, directory: Path) -> Path | None:
    """Returns the directory of the same run in stored order, if it has none in official order."""
    if cfg.data.order == "stored" or directory.exists():
        return None
    stored = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, order="stored"))
    place = _place(request, stored)
    return place if place and place.exists() else None


def _finished(cfg: RunConfig, directory: Path, request: Request) -> Outcome | None:
    """Returns a run that is there already."""
    if request.overwrite:
        return None
    track = request.track
    found = rundir.finished(directory, track=track.names, track_every=track.every)
    if found is None:
        return None
    return Outcome(cfg, found[0], summary=found[1], directory=directory, given=request.given)


def _train(
    job: Job, request: Request, *, reporter: Reporter, places: dict[int, Place]
) -> list[Outcome]:
    """Trains seeds to their end, resuming from checkpoints; those at the same round together."""
    for message in job.warnings:
        reporter.note(f"warning: {message}")
    begun: list[tuple[Seed, State]] = []
    start = alike.start_of_all(job.executor.devices)
    for i, cfg in enumerate(job.configs):
        one = partial(
            resume,
            job,
            i,
            place=places[cfg.seed],
            request=request,
            reporter=reporter,
            start=start,
        )
        begun.append(processes.in_turn(one, others=one))
    for i, (seed, state) in enumerate(begun):
        processes.compare(
            alike.begun(seed.config.seed, _facts(job, i), rows=seed.rows, state=state)
        )
    outcomes: dict[int, Outcome] = {}
    with contextlib.ExitStack() as opened:
        opened.enter_context(checkpoint.told_once())
        seeds = [
            seed._replace(manager=opened.enter_context(checkpoint.open_manager(directory / "ckpt")))
            if (directory := places[seed.config.seed].directory) is not None
            else seed
            for seed, _ in begun
        ]
        groups: dict[int, list[int]] = {}
        for i, (_, state) in enumerate(begun):
            groups.setdefault(int(state.round), []).append(i)
        for members in groups.values():
            done = _to_the_end(
                only(job, members),
                [seeds[i] for i in members],
                states=[begun[i][1] for i in members],
                request=request,
                reporter=reporter,
                places=places,
            )
            outcomes |= zip(members, done, strict=True)
    return [outcomes[i] for i in range(len(seeds))]


def resume(
    job: Job,
    number: int,
    *,
    place: Place,
    request: Request,
    reporter: Reporter,
    start: Mapping[str, Any],
) -> tuple[Seed, State]:
    """Returns a seed with its records so far, and its newest state; describes it on disk."""
    cfg, state, directory = job.configs[number], state_of_seed(job, number), place.directory
    if directory is None:
        return Seed(cfg, []), state
    which = f"seed {cfg.seed}: " if len(job.configs) > 1 else ""
    run, found = _facts(job, number), checkpoint.Found()
    if not request.overwrite:
        found = checkpoint.restore(directory / "ckpt", state, run=run)
    for message in found.warnings:
        reporter.note(f"warning: {which}{message}")
    if found.state is not None:
        state = found.state
        reporter.note(f"{which}resuming after round {int(state.round)}")
    elif not request.overwrite and (damaged := rundir.damage(directory)):
        raise UserError(
            f"{damaged}, and there is no checkpoint to make it of: --overwrite trains it again"
        )
    start = {**start, "round": int(state.round)}
    before = [] if request.overwrite else environment.history(directory)
    begun = found.begun or (before or [start])[0] if found.state is not None else start
    if other := environment.differences(begun, start):
        if request.strict:
            raise UserError(f"{directory}: {other}: go on there, or leave out --strict")
        reporter.note(f"warning: {which}{other}: numbers may differ in rounding")
    about = {"run": run, "begun": begun, "start": start}
    if place.mine is None:
        alike.wait_for(directory, start=start)
        return Seed(cfg, [*found.rows], about=about), state
    rundir.describe(
        directory,
        cfg,
        command=list(request.command),
        plugins=request.plugins,
        overwrite=request.overwrite,
        history=[*(before or [begun] * (begun is not start)), start],
    )
    lines = [records.line_of(row) for row in found.rows]
    files.write_atomically(directory / "metrics.jsonl", "".join(lines))
    with files.replacing(directory / "partition.npz") as file:
        federated.save_split(file, cfg.data, split=job.splits[number], dataset=cfg.dataset)
    seed = Seed(cfg, [*found.rows], directory=directory, lock=place.lock, lines=lines, about=about)
    return seed, state


def _facts(job: Job, number: int) -> dict[str, str]:
    """Returns what tells a run from others; its checkpoints keep it."""
    cfg, split = job.configs[number], job.splits[number]
    return {
        "config": fingerprint(cfg),
        "order": cfg.data.order,
        "labels": split.labels,
        "examples": job.examples,
        "partition": federated.fingerprint(split),
    }


def _to_the_end(
    job: Job,
    seeds: list[Seed],
    states: Sequence[State],
    request: Request,
    reporter: Reporter,
    places: dict[int, Place],
) -> list[Outcome]:
    reporter.start(tuple(seed.config.seed for seed in seeds))
    state = place(job, stack_states(states))
    with contextlib.ExitStack() as heard:
        asked = None
        if request.out is not None:  # what stays in memory is lost anyway
            asked = heard.enter_context(stopping.listening(reporter.note))
        state = train_rounds(
            job, seeds, state=state, reporter=reporter, track=request.track, asked=asked
        )
    summaries = finish(job, seeds, state=state, reporter=reporter)
    return [
        Outcome(
            seed.config,
            seed.rows,
            summary=summary,
            directory=places[seed.config.seed].directory,
            given=job.given,
            job=only(job, [i]),
            state=jax.tree.map(lambda x: x, axis.take(state, i)),
        )
        for i, (seed, summary) in enumerate(zip(seeds, summaries, strict=True))
    ]
