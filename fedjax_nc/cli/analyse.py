"""The `analyse` command: numbers, figures and a report of finished or running runs."""

import dataclasses
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fedjax_nc import devices, plugins
from fedjax_nc.cli import console
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.flags import read_plugins
from fedjax_nc.cli.reading import plugin_flag, read
from fedjax_nc.errors import UserError, command
from fedjax_nc.inputs import check_path
from fedjax_nc.study.options import Options, validate


class Analysis(NamedTuple):
    """A parsed `analyse` command."""

    runs: tuple[str, ...]
    options: Options
    data_dir: str | None
    to: str | None
    overwrite: bool
    check: bool


@dataclasses.dataclass(frozen=True)
class _Files:
    data_dir: str | None = None
    """Where the datasets are now, if not where they were."""
    to: str | None = None
    """Folder of the figures and report of several runs. Default: analysis, beside them."""
    overwrite: bool = False
    """Compute again what is there already."""
    check: bool = False
    """Compare eigenvalues and trace with the dense Hessian of a small network on the run's
    features, and do nothing else."""


@answered
def analyse(argv: list[str]) -> int:
    """Explains runs: computes, draws, writes reports and prints the main tables."""
    read_plugins(argv)
    asked = parse(argv)
    directories = [Path(run) for run in asked.runs]
    from fedjax_nc.io import rundir

    for directory in directories:  # all of them before the first is looked at
        rundir.read(directory)
    with console.waiting("starting jax"):
        devices.start(0)
        plugins.load()
        from fedjax_nc.study import analyse as studies

    named = studies.labels(directories)
    if asked.check:
        for label, directory in named.items():
            with console.waiting(f"{label}: the dense Hessian"):
                facts = studies.check(directory, asked.options, data_dir=asked.data_dir)
            console.show_facts(f"{label}: the dense Hessian beside products", facts)
        return 0
    try:
        found, pages = _study(asked, named)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on where it was") from None
    for title, table in studies.summaries(found):
        console.show_table(title, table.header, rows=table.rows)
    for page in pages:
        print(f"report: {page}", file=sys.stderr)
    return 0


def _study(asked: Analysis, named: dict[str, Path]) -> tuple[dict[str, Any], list[Path]]:
    """Returns what was found of every run, and the pages that were written."""
    from fedjax_nc.study import analyse as studies

    with console.Progressing("analysis", 1) as progress:
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
            beside = Path(asked.to or Path(os.path.commonpath(list(named.values()))) / "analysis")
            pages.append(studies.publish(found, named, folder=beside))
    return found, pages


def parse(argv: list[str]) -> Analysis:
    """Returns the analysis that flags ask for, checked as far as is possible without the runs."""
    import tyro

    prog = command("analyse")
    about = tyro.conf.arg(
        metavar="RUN_DIR ...", help="Run directories; several side by side.", help_behavior_hint=""
    )
    shape = dataclasses.make_dataclass(
        "Analyse",
        [
            ("runs", Annotated[tyro.conf.Positional[tuple[str, ...]], about]),
            ("analysis", Annotated[Options, tyro.conf.arg(name="")], Options()),
            ("files", Annotated[_Files, tyro.conf.arg(name="")], _Files()),
            ("plugin", plugin_flag(), ()),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Explain finished or running runs: numbers, figures and a report.\n\n"
        f"Example: {prog} runs/mnist5k-classes2/*/*/seed0 --only=collapse,spectrum"
    )
    flags = read(shape, argv, prog=prog)
    validate(flags.analysis)
    if not flags.runs:
        raise UserError(f"no run directory was given: name one that `{command('run')}` has left")
    for run in flags.runs:
        check_path("run directory", run)
    check_path("--data_dir", flags.files.data_dir or "")
    check_path("--to", flags.files.to or "")
    if len({Path(run).absolute() for run in flags.runs}) < len(flags.runs):
        raise UserError("the same run directory was given twice: give each once")
    return Analysis(flags.runs, flags.analysis, **vars(flags.files))
