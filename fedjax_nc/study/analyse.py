"""The analysis of runs: studies are computed or read, drawn side by side, and put into a report."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import config
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.figures import canvas, report
from fedjax_nc.io import checkpoint, files, rundir
from fedjax_nc.study import dense, results, subject
from fedjax_nc.study.base import Results, Runs, Study
from fedjax_nc.study.options import STUDIES, Options, chosen, validate
from fedjax_nc.study.subject import Progress, Subject

RECORDS: dict[str, Study] = {
    name: import_module(f"fedjax_nc.study.{name}").STUDY for name in STUDIES
}


class Analysed(NamedTuple):
    """The results of a run's studies, by the study's name.

    A study that the run does not allow has only {"skipped": the reason}.
    """

    asked: dict[str, Results]  # the studies that were asked for
    others: dict[str, Results]  # those that earlier analyses have left


def analyse(
    directory: Path, options: Options, data_dir: str | None, overwrite: bool, progress: Progress
) -> Analysed:
    """Analyses the run in a directory; results go into its `analysis` folder.

    A study that the run does not allow is left out with its reason, or refused if no other is
    asked for.

    Args:
      directory: the run's.
      options: what is asked for.
      data_dir: where the datasets are now, if not where the run found them.
      overwrite: whether results that are there already are computed again.
      progress: told how far the analysis is.
    """
    cfg = rundir.read(directory)
    options = dataclasses.replace(
        options, round=options.round or checkpoint.last(directory / "ckpt")
    )
    names = chosen(options.only, STUDIES, flag="--only")
    run: Subject | None = None
    asked, others = {}, {}
    for name in names:
        under = results.conditions(options, RECORDS[name].uses)
        known, _ = (None, "") if overwrite else results.read(directory, name, under=under)
        if known is None:
            run = run or subject.load(directory, options, data_dir=data_dir, progress=progress)
            start = time.perf_counter()
            known = _compute(name, run, alone=len(names) == 1)
            results.write(
                directory,
                name,
                method=cfg.method,
                seconds=time.perf_counter() - start,
                under=under,
                results=known,
            )
        asked[name] = known
        progress("studies", len(asked), len(names))
    for name in (name for name in STUDIES if name not in names):
        under = results.conditions(options, RECORDS[name].uses)
        known, differences = results.read(directory, name, under=under)
        if differences:
            known = {"skipped": f"earlier results are for {differences}"}
        others |= {} if known is None else {name: known}
    return Analysed(asked, others)


def analyse_run(
    run: Subject | Path | str,
    only: str | Iterable[str] = STUDIES,
    *,
    data_dir: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Results]:
    """Analyses a run in memory or in a directory.

    A run in memory leaves no file. In a directory, results are read and written as by `analyse`.

    Args:
      run: the run in memory, or its directory.
      only: names of studies, with commas between them or one by one.
      data_dir: of a directory: where the datasets are now, if not where the run found them.
      overwrite: of a directory: whether results that are there already are computed again.
      **options: other fields of `Options`, in place of the defaults or of the Subject's own.

    Returns:
      Each study's results, or {"skipped": the reason}, by the study's name.
    """
    fields = {f.name for f in dataclasses.fields(Options)} - {"only"}
    for name in options:
        if name not in fields:
            raise unknown("option", name, allowed=fields)
    base = run.options if isinstance(run, Subject) else Options()
    only = ",".join(chosen(only, STUDIES, flag="only"))
    asked = dataclasses.replace(base, **options, only=only)
    validate(asked)
    if not isinstance(run, Subject):
        return analyse(
            Path(run), asked, data_dir=data_dir, overwrite=overwrite, progress=subject.silent
        ).asked
    if options:  # what the Subject has cached depends on its options
        run = dataclasses.replace(run, options=asked)
    names = chosen(only, STUDIES, flag="only")
    return {name: _compute(name, run, alone=len(names) == 1) for name in names}


def _compute(name: str, run: Subject, alone: bool) -> Results:
    """Computes a study, or returns why the run does not allow it; raises if it is asked alone."""
    try:
        return results.plain(RECORDS[name].compute(run))
    except UserError as error:
        if alone:
            raise
        return {"skipped": str(error)}


def check(directory: Path, options: Options, data_dir: str | None) -> dict[str, str]:
    """Compares Hessian products with a dense Hessian on features of the run in a directory."""
    return dense.compare(subject.load(directory, options, data_dir=data_dir))


def publish(runs: dict[str, Analysed], directories: dict[str, Path], folder: Path) -> Path:
    """Draws all results of runs side by side and writes them into a report, `report.html`.

    Args:
      runs: what was found, by the run's label.
      directories: of the same runs.
      folder: for the figures and the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {label: analysed.others | analysed.asked for label, analysed in runs.items()}
    sections = []
    for name, study in RECORDS.items():
        shown, left_out = _of_study(name, found)
        if not shown and not left_out:
            continue
        # a run without the study keeps its colour
        drawn = study.draw({label: shown.get(label, {}) for label in runs})
        for file, content in canvas.encoded(drawn):
            files.write_atomically(folder / file, content)
        notes = "".join(f" Left out: {reason}." for reason in left_out)
        tables = [study.table(shown)] if shown else []
        sections.append(
            report.Section(study.title, study.intro + notes, tables=tables, drawn=drawn)
        )
    title = " and ".join(runs) if len(runs) < 4 else f"{len(runs)} runs"
    page = report.page(f"Why: {title}", _facts(directories), sections=sections)
    path = folder / "report.html"
    files.write_atomically(path, page)
    return path


def summaries(runs: dict[str, Analysed]) -> Iterator[tuple[str, report.Table]]:
    """Yields title and table of every study that was asked for."""
    found = {label: analysed.asked for label, analysed in runs.items()}
    for name, study in RECORDS.items():
        shown, _ = _of_study(name, found)
        if shown:
            yield study.title, study.table(shown)


def labels(directories: list[Path]) -> dict[str, Path]:
    """Returns the runs by a short label each, made of what sets them apart."""
    configs = {directory: rundir.read(directory) for directory in directories}
    forms: list[Callable[[Path, config.RunConfig], str]] = [
        lambda d, c: c.method,
        lambda d, c: f"{c.method}, seed {c.seed}",
        lambda d, c: f"{c.method}, {c.dataset}, {c.model}, seed {c.seed}",
        lambda d, c: f"{c.method}, {config.config_hash(c)}, seed {c.seed}",
        lambda d, c: str(d),
    ]
    for form in forms:
        names = [form(directory, cfg) for directory, cfg in configs.items()]
        if len(set(names)) == len(names):
            return dict(zip(names, configs, strict=True))
    raise AssertionError("paths differ")


def _of_study(name: str, found: dict[str, dict[str, Results]]) -> tuple[Runs, list[str]]:
    """Returns a study's results in every run that has them, and why others have none."""
    mine = {label: studies[name] for label, studies in found.items() if name in studies}
    left_out = [f"{label}: {r['skipped']}" for label, r in mine.items() if "skipped" in r]
    shown = {label: r for label, r in mine.items() if "skipped" not in r}
    return RECORDS[name].align(shown) if shown else shown, left_out


def _facts(directories: dict[str, Path]) -> dict[str, str]:
    """Returns, for each run, what a stranger has to know of it."""
    facts = {}
    for label, directory in directories.items():
        cfg = rundir.read(directory)
        data = config.partition_name(cfg.data)
        facts[label] = (
            f"{cfg.model} on {cfg.dataset} ({data}), {cfg.federation.clients} clients, "
            f"{cfg.federation.participants} per round, {cfg.rounds} rounds of "
            f"{cfg.local.epochs} epochs, seed {cfg.seed}; {os.path.relpath(directory)}"
        )
    return facts
