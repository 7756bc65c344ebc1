"""The `run` command: parse first, then start jax, then train."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_nc import devices, effects, plugins, processes
from fedjax_nc.cli import console, flags, listing
from fedjax_nc.cli.exits import answered, in_words
from fedjax_nc.cli.streams import say
from fedjax_nc.errors import Fault, Stopped, UserError, command, few
from fedjax_nc.host import stopping
from fedjax_nc.io import facts


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
    results = execute(asked)
    if processes.is_first():
        console.show_results(results)
    return 0


def execute(asked: flags.Command) -> list[dict[str, Any]]:
    """Trains all seeds of a command and returns their summaries, finished ones from disk."""
    from fedjax_nc.io import rundir

    directories = {cfg.seed: rundir.path_of(asked.out, cfg) for cfg in asked.configs}
    for cfg in asked.configs:  # all of them before the first is trained
        rundir.check(
            directories[cfg.seed], cfg, overwrite=asked.overwrite, plugins=plugins.record()
        )
    record = {"track": asked.track, "track_every": asked.track_every}
    found = [
        None if asked.overwrite else rundir.finished(d, **record) for d in directories.values()
    ]
    if all(found) and not asked.distributed.wanted:  # answered without jax
        for cfg in asked.configs:
            if damaged := rundir.mend(directories[cfg.seed], cfg):
                say(f"warning: {damaged}")
        for directory in directories.values():
            say(f"already finished: {directory} (--overwrite starts again)")
        return [one[1] for one in found if one]
    try:
        with stopping.at_once():
            processes.in_step(partial(start_jax, asked))
            return _train(asked)
    except Stopped as stop:
        raise Stopped(_saved(asked, directories), code=stop.code) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_saved(asked, directories)) from None
    except UserError:
        raise
    except Exception as error:
        if words := in_words(error, asked.out):
            raise Fault(f"{words}; {_saved(asked, directories)}") from error
        raise


def start_jax(asked: flags.Command) -> None:
    """Starts jax, imports plugins and refuses what has no effect on the backend."""
    with console.waiting("starting jax"):
        count = asked.configs[0].execution.devices
        devices.start(count, distributed=asked.distributed)
        import jax

        from fedjax_nc.host import session  # noqa: F401  takes seconds, which are waited for here

        backend = jax.default_backend()
        plugins.load()
    effects.check(asked.given, asked.configs[0], backend=backend)


def _train(asked: flags.Command) -> list[dict[str, Any]]:
    from fedjax_nc.host import session
    from fedjax_nc.host.reporting import Quiet
    from fedjax_nc.host.track import Track

    request = session.Request(
        asked.configs,
        out=asked.out,
        seeds_parallel=asked.seeds_parallel,
        overwrite=asked.overwrite,
        strict=asked.strict,
        track=Track(
            asked.track,
            asked.track_every,
            clients=asked.track_clients,
            examples=asked.track_examples,
        ),
        command=tuple(sys.orig_argv),
        plugins=tuple(plugins.record()),
    )
    first = asked.configs[0]
    if not processes.is_first():
        return [outcome.summary for outcome in session.run_seeds(request, Quiet())]
    with console.Progressing(first.method, first.federation.participants) as progress:
        outcomes = session.run_seeds(request, progress)
    for outcome in outcomes:
        progress.note(f"run directory: {outcome.directory}")
    return [outcome.summary for outcome in outcomes]


def _saved(asked: flags.Command, directories: dict[int, Path]) -> str:
    """Returns what the person whose run was stopped should know: what is saved, how to go on."""
    left = {s: d for s, d in directories.items() if not (d / "summary.json").exists()}
    saved = [step for d in left.values() for step in facts.steps(d / "ckpt")]
    if saved:
        without = " without --overwrite" if asked.overwrite else ""
        return f"saved after round {max(saved)}; the same command{without} goes on"
    every = asked.configs[0].execution.checkpoint_every
    seeds = few([str(seed) for seed in left])
    return (
        f"no checkpoint was made yet, so nothing of seed {seeds} is saved; one is made every "
        f"{every} rounds (--execution.checkpoint_every)"
    )


def _dry_run(asked: flags.Command) -> None:
    """Prints how much work a run is, and about how long it takes on this machine."""
    start_jax(asked)
    from fedjax_nc.host import dry_run
    from fedjax_nc.host.assemble import assemble

    first = asked.configs[0]
    with console.waiting(f"reading {first.dataset} and building {first.model}"):
        job = assemble(first, strict=asked.strict)
    with console.waiting("compiling a round"):
        facts = dry_run.facts(job)
    with console.waiting("measuring a local step"):
        facts |= dry_run.estimate(job)
    if not processes.is_first():
        return
    facts["kept"] = "caches that a run reads: compiled programs, decoded examples if prepared"
    console.show_facts("Dry run: nothing is trained, no run directory is written", facts)
