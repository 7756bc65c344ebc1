"""The commands: parse first, then import jax, then run."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_nc import devices
from fedjax_nc.cli import flags
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

            prepared = assemble.assemble(command.configs[0], strict=command.strict)
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
    """Trains all seeds of a command and returns their summaries, from disk where they are there."""
    from fedjax_nc.cli import console
    from fedjax_nc.host import session
    from fedjax_nc.host.track import Track

    request = session.Request(
        command.configs,
        out=command.out,
        seeds_parallel=command.seeds_parallel,
        overwrite=command.overwrite,
        strict=command.strict,
        track=Track(command.track, command.track_every),
        command=(*sys.orig_argv[:1], *sys.argv),
    )
    cfg = command.configs[0]
    with console.Progressing(cfg.method, cfg.federation.participants) as progress:
        outcomes = session.run_seeds(request, progress)
    for outcome in outcomes:
        progress.note(f"run directory: {outcome.directory}")
    return [outcome.summary for outcome in outcomes]
