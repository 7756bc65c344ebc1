"""The commands: parse first, then import jax, then run."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_nc import devices
from fedjax_nc.cli import flags
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError


def train(argv: list[str]) -> int:
    """`experiments/run.py`: train, `--list`, `--dry-run`. Returns the exit code."""
    try:
        command = flags.parse(argv)
        if command.list != "no":
            from fedjax_nc.cli import console

            def messages():
                from fedjax_nc.host import dry_run

                return dry_run.messages(dataset)

            dataset = command.configs[0].dataset
            console.show_list(command.list, dataset, messages=messages)
            return 0
        devices.start(command.configs[0].execution.devices)
        if command.dry_run:
            from fedjax_nc.cli import console
            from fedjax_nc.host import assemble, dry_run

            prepared = assemble.prepare(command.configs[0], strict=command.strict)
            console.show_facts("Dry run: nothing is trained or written", dry_run.facts(prepared))
            return 0
        summaries = run(command)
    except UserError as error:
        return flags.exit_with(error)
    except BrokenPipeError:  # `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130
    from fedjax_nc.cli import console

    console.show_results(summaries)
    return 0


def analyse(argv: list[str]) -> int:
    """`experiments/analyse.py`: explain runs. Returns the exit code."""
    try:
        asked = flags.parse_analysis(argv)
        directories = [Path(run) for run in asked.runs]
        from fedjax_nc.io import rundir

        for directory in directories:  # all of them before the first is looked at
            rundir.read(directory)
        devices.start(0)
        from fedjax_nc.cli import console
        from fedjax_nc.study import analyse as studies

        named = studies.labels(directories)
        with console.Progressing("analysis", 1) as progress:
            if asked.check:
                for label, directory in named.items():
                    facts = studies.check(directory, asked.options, data_dir=asked.data_dir)
                    console.show_facts(f"{label}: the dense Hessian beside products", facts)
                return 0
            found = {
                label: studies.analyse(
                    directory,
                    asked.options,
                    data_dir=asked.data_dir,
                    overwrite=asked.overwrite,
                    progress=partial(progress.step, label),
                )
                for label, directory in named.items()
            }
            pages = [
                studies.publish({label: found[label]}, {label: d}, folder=d / "analysis")
                for label, d in named.items()
            ]
            if len(named) > 1:
                beside = Path(asked.to or Path(os.path.commonpath(directories)) / "analysis")
                pages.append(studies.publish(found, named, folder=beside))
    except UserError as error:
        return flags.exit_with(error)
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    for title, table in studies.summaries(found):
        console.show_table(title, table.header, rows=table.rows)
    for page in pages:
        print(f"report: {page}", file=sys.stderr)
    return 0


def run(command: flags.Command) -> list[dict[str, Any]]:
    """All seeds of a command: their summaries, from disk where they are finished."""
    from fedjax_nc.io import rundir

    for cfg in command.configs:  # all of them before the first is trained
        rundir.check(rundir.path_of(command.out, cfg), cfg, overwrite=command.overwrite)
    configs = command.configs
    groups = [configs] if command.seeds_parallel else [(cfg,) for cfg in configs]
    found = [summary for group in groups for summary in _run(group, command)]
    return sorted(found, key=lambda summary: [cfg.seed for cfg in configs].index(summary["seed"]))


def _run(configs: tuple[RunConfig, ...], command: flags.Command) -> list[dict[str, Any]]:
    """Seeds of one program, finished ones first."""
    from fedjax_nc.io import rundir

    summaries, left = [], []
    for cfg in configs:
        directory = rundir.path_of(command.out, cfg)
        finished = directory / "summary.json"
        if finished.exists() and not command.overwrite:
            print(f"already finished: {directory} (--overwrite starts again)", file=sys.stderr)
            summaries.append(json.loads(finished.read_text()))
        else:
            left.append(cfg)
    return summaries + (_train(left, command) if left else [])


def _train(configs: list[RunConfig], command: flags.Command) -> list[dict[str, Any]]:
    """Prepare, describe, train."""
    from fedjax_nc.cli import console
    from fedjax_nc.host import assemble, loop
    from fedjax_nc.io import rundir

    prepared = assemble.prepare(*configs, strict=command.strict)
    directories = [rundir.path_of(command.out, cfg) for cfg in configs]
    words = [*sys.orig_argv[:1], *sys.argv]
    for cfg, directory in zip(configs, directories, strict=True):
        rundir.describe(directory, cfg, command=words, overwrite=command.overwrite)
    with console.Progressing(configs[0].method, configs[0].federation.participants) as progress:
        track = loop.Track(command.track, command.track_every)
        summaries = loop.run(prepared, directories, reporter=progress, track=track)
    for directory in directories:
        print(f"run directory: {directory}", file=sys.stderr)
    return summaries
