"""A run from what is asked for to what it comes to: on disk, where it resumes, or in memory."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_nc.config import RunConfig
from fedjax_nc.data import federated
from fedjax_nc.host.assemble import (
    NOTHING,
    Given,
    Job,
    assemble,
    only,
    place,
    stack_states,
    state_of_seed,
)
from fedjax_nc.host.finish import finish
from fedjax_nc.host.loop import NO_TRACK, Seed, train_rounds
from fedjax_nc.host.reporting import Reporter
from fedjax_nc.host.track import Track
from fedjax_nc.io import checkpoint, records, rundir
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
    places = {cfg.seed: _place(request, cfg) for cfg in request.configs}
    for cfg in request.configs:  # all of them before the first is trained
        if (directory := places[cfg.seed]) is not None:
            rundir.check(directory, cfg, overwrite=request.overwrite, plugins=request.plugins)
            if older := _older(request, cfg, directory=directory):
                reporter.note(
                    f"{older} has this run on examples in stored order: --data.order=stored goes "
                    "on with it"
                )
    found = {}
    together = request.seeds_parallel
    for group in [request.configs] if together else [(cfg,) for cfg in request.configs]:
        done = {
            cfg.seed: _finished(cfg, places[cfg.seed], request=request, reporter=reporter)
            for cfg in group
        }
        left = [cfg for cfg in group if done[cfg.seed] is None]
        found |= {seed: outcome for seed, outcome in done.items() if outcome is not None}
        if not left:
            continue
        with reporter.waiting(f"reading {left[0].dataset} and building {left[0].model}"):
            job = assemble(*left, given=request.given, strict=request.strict)
        outcomes = _train(job, request, reporter=reporter, places=places)
        found |= {outcome.config.seed: outcome for outcome in outcomes}
    return [found[cfg.seed] for cfg in request.configs]


def _place(request: Request, cfg: RunConfig) -> Path | None:
    return None if request.out is None else rundir.path_of(request.out, cfg)


def _older(request: Request, cfg: RunConfig, directory: Path) -> Path | None:
    """Returns the directory of the same run in stored order, if it has none in official order."""
    if cfg.data.order == "stored" or directory.exists():
        return None
    stored = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, order="stored"))
    place = _place(request, stored)
    return place if place and place.exists() else None


def _finished(
    cfg: RunConfig, directory: Path | None, request: Request, reporter: Reporter
) -> Outcome | None:
    """Returns a run that is there already."""
    if directory is None or request.overwrite:
        return None
    track = request.track
    found = rundir.finished(directory, track=track.names, track_every=track.every)
    if found is None:
        return None
    reporter.note(f"already finished: {directory} (--overwrite starts again)")
    return Outcome(cfg, found[0], summary=found[1], directory=directory, given=request.given)


def _train(
    job: Job, request: Request, *, reporter: Reporter, places: dict[int, Path | None]
) -> list[Outcome]:
    """Trains seeds to their end, resuming from checkpoints; those at the same round together."""
    directories = [places[cfg.seed] for cfg in job.configs]
    for cfg, split, directory in zip(job.configs, job.splits, directories, strict=True):
        if directory is not None:
            rundir.describe(
                directory,
                cfg,
                command=list(request.command),
                plugins=request.plugins,
                overwrite=request.overwrite,
            )
            temporary = directory / "partition.tmp"  # a killed run leaves no half of it
            federated.save_split(temporary, cfg.data, split=split, dataset=cfg.dataset)
            os.replace(temporary, directory / "partition.npz")
    for message in job.warnings:
        reporter.note(f"warning: {message}")
    outcomes: dict[int, Outcome] = {}
    with contextlib.ExitStack() as files:
        begun = []
        for i, directory in enumerate(directories):
            manager = None
            if directory is not None:
                manager = files.enter_context(checkpoint.open_manager(directory / "ckpt"))
            begun.append(resume(job, i, directory=directory, manager=manager, reporter=reporter))
        groups: dict[int, list[int]] = {}
        for i, (_, state) in enumerate(begun):
            groups.setdefault(int(state.round), []).append(i)
        for members in groups.values():
            some, seeds = only(job, members), [begun[i][0] for i in members]
            done = _to_the_end(
                some,
                seeds,
                states=[begun[i][1] for i in members],
                request=request,
                reporter=reporter,
            )
            outcomes |= zip(members, done, strict=True)
    return [outcomes[i] for i in range(len(directories))]


def resume(
    job: Job, number: int, *, directory: Path | None, manager: Any, reporter: Reporter
) -> tuple[Seed, State]:
    """Returns a seed with its records so far, and its newest state."""
    cfg, state = job.configs[number], state_of_seed(job, number)
    if directory is None:
        return Seed(cfg, []), state
    which = f"seed {cfg.seed}: " if len(job.configs) > 1 else ""
    restored, warnings = checkpoint.restore(manager, state)
    for message in warnings:
        reporter.note(f"warning: {which}{message}")
    if restored is not None:
        state = restored
        reporter.note(f"{which}resuming after round {int(state.round)}")
    rows = records.cut(directory / "metrics.jsonl", int(state.round))
    return Seed(cfg, rows, directory=directory, manager=manager), state


def _to_the_end(
    job: Job,
    seeds: list[Seed],
    states: Sequence[State],
    request: Request,
    reporter: Reporter,
) -> list[Outcome]:
    reporter.start(tuple(seed.config.seed for seed in seeds))
    state = place(job, stack_states(states))
    state = train_rounds(job, seeds, state=state, reporter=reporter, track=request.track)
    summaries = finish(job, seeds, state=state, reporter=reporter)
    return [
        Outcome(
            seed.config,
            seed.rows,
            summary=summary,
            directory=seed.directory,
            given=job.given,
            job=only(job, [i]),
            state=jax.tree.map(lambda x: x, axis.take(state, i)),
        )
        for i, (seed, summary) in enumerate(zip(seeds, summaries, strict=True))
    ]
