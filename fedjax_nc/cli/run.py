"""The `run` command: parse first, then start jax, then train."""

import json
import sys
from pathlib import Path
from typing import Any

from fedjax_nc import devices, effects, plugins
from fedjax_nc.cli import console, flags, listing
from fedjax_nc.cli.exits import answered
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError, command


@answered
def train(argv: list[str]) -> int:
    """Trains a method, or answers `--list` and `--dry-run`."""
    asked = flags.parse(argv, prog=command("run"))
    if asked.list != "no":
        listing.show_list(asked.list)
        return 0
    if asked.dry_run:
        _dry_run(asked)
        return 0
    console.show_results(execute(asked))
    return 0


def execute(asked: flags.Command) -> list[dict[str, Any]]:
    """Trains all seeds of a command and returns their summaries, finished ones from disk."""
    from fedjax_nc.io import rundir

    directories = {cfg.seed: rundir.path_of(asked.out, cfg) for cfg in asked.configs}
    for cfg in asked.configs:  # all of them before the first is trained
        rundir.check(directories[cfg.seed], cfg, overwrite=asked.overwrite)
    done = {} if asked.overwrite else _finished(asked, directories)
    groups = [asked.configs] if asked.seeds_parallel else [(cfg,) for cfg in asked.configs]
    try:
        if len(done) < len(asked.configs):
            start_jax(asked)
        for group in groups:
            for cfg in (cfg for cfg in group if cfg.seed in done):
                where = directories[cfg.seed]
                print(f"already finished: {where} (--overwrite starts again)", file=sys.stderr)
            left = [cfg for cfg in group if cfg.seed not in done]
            if left:
                done |= {found["seed"]: found for found in _train_together(left, asked)}
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_saved(asked, directories)) from None
    return [done[cfg.seed] for cfg in asked.configs]


def start_jax(asked: flags.Command) -> None:
    """Starts jax, imports plugins and refuses what has no effect on the backend."""
    with console.waiting("starting jax"):
        devices.start(asked.configs[0].execution.devices)
        import jax

        from fedjax_nc.host import loop  # noqa: F401  takes seconds, which are waited for here

        backend = jax.default_backend()
        plugins.load()
    effects.check(asked.given, asked.configs[0], backend=backend)


def _finished(asked: flags.Command, directories: dict[int, Path]) -> dict[int, dict[str, Any]]:
    """Returns the summaries of finished seeds; refuses to record more about them."""
    from fedjax_nc.io import records

    found = {}
    for seed, directory in directories.items():
        if not (directory / "summary.json").exists():
            continue
        rows = records.read(directory / "metrics.jsonl")
        due = [row for row in rows if row["round"] % asked.track_every == 0]
        absent = [name for name in asked.track if any(name not in row for row in due)]
        if absent:
            raise UserError(
                f"--track={','.join(absent)} records while training, and {directory} is already "
                "finished: add --overwrite to train it again"
            )
        found[seed] = json.loads((directory / "summary.json").read_text())
    return found


def _train_together(configs: list[RunConfig], asked: flags.Command) -> list[dict[str, Any]]:
    """Trains seeds as one program, into their run directories."""
    from fedjax_nc.host import assemble, loop
    from fedjax_nc.io import rundir

    first = configs[0]
    with console.waiting(f"reading {first.dataset} and building {first.model}"):
        prepared = assemble.prepare(*configs, strict=asked.strict)
    directories = [rundir.path_of(asked.out, cfg) for cfg in configs]
    for cfg, directory in zip(configs, directories, strict=True):
        rundir.describe(directory, cfg, command=sys.orig_argv, overwrite=asked.overwrite)
    with console.Progressing(first.method, first.federation.participants) as progress:
        track = loop.Track(asked.track, asked.track_every)
        summaries = loop.run(prepared, directories, reporter=progress, track=track)
    for directory in directories:
        print(f"run directory: {directory}", file=sys.stderr)
    return summaries


def _saved(asked: flags.Command, directories: dict[int, Path]) -> str:
    """Returns what a person who stopped a run should know: what is saved, and how to go on."""
    left = {s: d for s, d in directories.items() if not (d / "summary.json").exists()}
    saved = [int(p.name) for d in left.values() for p in (d / "ckpt").glob("*") if p.name.isdigit()]
    if saved:
        without = " without --overwrite" if asked.overwrite else ""
        return f"the same command{without} resumes from the checkpoint of round {max(saved)}"
    every = asked.configs[0].execution.checkpoint_every
    return (
        f"no checkpoint was made yet, so nothing of seed {', '.join(map(str, left))} is saved; one "
        f"is made every {every} rounds (--execution.checkpoint_every)"
    )


def _dry_run(asked: flags.Command) -> None:
    """Prints how much work a run is, and about how long it takes on this machine."""
    start_jax(asked)
    from fedjax_nc.host import assemble, dry_run

    first = asked.configs[0]
    with console.waiting(f"reading {first.dataset} and building {first.model}"):
        prepared = assemble.prepare(first, strict=asked.strict)
    with console.waiting("compiling a round"):
        facts = dry_run.facts(prepared)
    with console.waiting("measuring a local step"):
        facts |= dry_run.estimate(prepared)
    facts["kept"] = "caches that a run reads: compiled programs, decoded examples if prepared"
    console.show_facts("Dry run: nothing is trained, no run directory is written", facts)
