"""The analysis of runs: what is computed and kept as JSON, what is drawn, and the report."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc import config
from fedjax_nc.errors import UserError
from fedjax_nc.figures import alignment as figures_alignment
from fedjax_nc.figures import bias as figures_bias
from fedjax_nc.figures import canvas, report
from fedjax_nc.figures import collapse as figures_collapse
from fedjax_nc.figures import cost as figures_cost
from fedjax_nc.figures import hessian as figures_hessian
from fedjax_nc.figures import landscape as figures_landscape
from fedjax_nc.figures import relations as figures_relations
from fedjax_nc.figures import spectrum as figures_spectrum
from fedjax_nc.io import checkpoint, files, rundir
from fedjax_nc.study import cost, curvature, geometry, subject
from fedjax_nc.study.options import STUDIES, Options, chosen
from fedjax_nc.study.subject import Progress, Subject
from fedjax_nc.study.tables import Runs, tables


class Study(NamedTuple):
    """One way to look at a run."""

    title: str
    intro: str
    compute: Callable[[Subject, Progress], dict[str, Any]]
    draw: Callable[[Runs], list[canvas.Drawn]]
    uses: tuple[str, ...] = ("examples",)  # options that change its numbers


_CLIENTS = ("examples", "clients")
WAYS = {
    "hessian": Study(
        "Curvature",
        "The Hessian of the mean cross-entropy over training examples, the network in "
        "evaluation mode, with respect to the parameters the method trains. λ_max and the trace "
        "are of the global model; H_N and H_D compare the diagonals of clients' Hessians after "
        "local training, one number per tensor (FedAlign's code) or per parameter (its text).",
        compute=curvature.hessian,
        draw=figures_hessian.draw,
        uses=(*_CLIENTS, "few", "eigenvalues", "products", "probes", "seed"),
    ),
    "landscape": Study(
        "Loss landscape",
        "The mean training cross-entropy over planes through the global model. "
        "BatchNorm keeps the global model's statistics; clients' models are shown where the plane "
        "comes nearest to them.",
        compute=curvature.landscape,
        draw=figures_landscape.draw,
        uses=(*_CLIENTS, "few", "grid", "radius", "products", "seed"),
    ),
    "collapse": Study(
        "Neural collapse",
        "How close the global model's test features are to one point per "
        "class and these to a simplex ETF: 0 is full collapse in every row but the consistency of "
        "prototypes, where 1 is best.",
        compute=geometry.collapse,
        draw=figures_collapse.draw,
        uses=_CLIENTS,
    ),
    "spectrum": Study(
        "Spectrum of features",
        "Singular values of the test features' covariance, and the number "
        "of directions they amount to, before and after the projector.",
        compute=geometry.spectrum,
        draw=figures_spectrum.draw,
    ),
    "alignment": Study(
        "Alignment",
        "Clients' models after local training against the global model they started "
        "from, on test examples of the classes each client has and of those it has not; means over "
        "clients with their standard error.",
        compute=geometry.alignment,
        draw=figures_alignment.draw,
        uses=_CLIENTS,
    ),
    "relations": Study(
        "Class relations",
        "CR: the softmax of class vectors' products. SL: the mean soft label "
        "of every class under clients' models.",
        compute=geometry.relations,
        draw=figures_relations.draw,
        uses=(*_CLIENTS, "seed"),
    ),
    "bias": Study(
        "Classifier bias",
        "How alike clients' class vectors and prototypes point after local training.",
        compute=geometry.bias,
        draw=figures_bias.draw,
        uses=_CLIENTS,
    ),
    "cost": Study(
        "Cost",
        "What the network and a round cost, and when an accuracy was reached.",
        compute=cost.cost,
        draw=figures_cost.draw,
        uses=("targets",),
    ),
}
assert tuple(WAYS) == STUDIES


def analyse(
    directory: Path, options: Options, data_dir: str | None, overwrite: bool, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Every study of a run, from its `analysis` folder where it is there already.

    What a run cannot be asked is left out with the reason, unless it alone was asked for.
    """
    cfg, folder = rundir.read(directory), directory / "analysis"
    number = options.round or checkpoint.last(directory / "ckpt")
    names = chosen(options.only, STUDIES, flag="--only")
    loaded: Subject | None = None
    found = {}
    for name in names:
        file, asked = folder / f"{name}.json", _asked(name, options, number=number)
        known = None if overwrite else _kept(file, asked)
        if known is None:
            loaded = loaded or subject.load(directory, options, data_dir=data_dir)
            start = time.perf_counter()
            try:
                numbers = plain(WAYS[name].compute(loaded, _prefixed(name, progress)))
            except UserError as error:
                if len(names) == 1:
                    raise
                numbers = {"skipped": str(error)}
            seconds = round(time.perf_counter() - start, 2)
            known = {
                "study": name,
                "method": cfg.method,
                "seconds": seconds,
                "asked": asked,
                "numbers": numbers,
            }
            folder.mkdir(exist_ok=True)
            files.write_atomically(file, json.dumps(known) + "\n")
        found[name] = known["numbers"]
        progress("studies", len(found), len(names))
    return found


def check(directory: Path, options: Options, data_dir: str | None) -> dict[str, str]:
    """What products say of a Hessian beside the whole matrix."""
    return curvature.check(subject.load(directory, options, data_dir=data_dir))


def publish(
    runs: dict[str, dict[str, dict[str, Any]]], directories: dict[str, Path], folder: Path
) -> Path:
    """Draw what was found in runs, side by side, and write it with its tables into one page."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = []
    for name, way in WAYS.items():
        shown, left_out = _of_study(name, runs)
        if not shown and not left_out:
            continue
        # a run without the study keeps its colour
        drawn = way.draw({label: shown.get(label, {}) for label in runs})
        canvas.save(drawn, folder)
        notes = "".join(f" Left out: {reason}." for reason in left_out)
        sections.append(
            report.Section(
                way.title,
                way.intro + notes,
                tables=tables(name, shown) if shown else [],
                drawn=drawn,
            )
        )
    title = " and ".join(runs) if len(runs) < 4 else f"{len(runs)} runs"
    page = report.page(f"Why: {title}", _facts(directories), sections=sections)
    path = folder / "report.html"
    files.write_atomically(path, page)
    return path


def summaries(runs: dict[str, dict[str, dict[str, Any]]]) -> Iterator[tuple[str, report.Table]]:
    """The tables of all studies, for the terminal."""
    for name, way in WAYS.items():
        shown, _ = _of_study(name, runs)
        if shown:
            yield from ((way.title, table) for table in tables(name, shown))


def labels(directories: list[Path]) -> dict[str, Path]:
    """A short name for every run, by what sets it apart."""
    known = {directory: rundir.read(directory) for directory in directories}
    ways: list[Callable[[Path, config.RunConfig], str]] = [
        lambda d, c: c.method,
        lambda d, c: f"{c.method}, seed {c.seed}",
        lambda d, c: f"{c.method}, {c.dataset}, {c.model}, seed {c.seed}",
        lambda d, c: f"{c.method}, {config.config_hash(c)}, seed {c.seed}",
        lambda d, c: str(d),
    ]
    for way in ways:
        names = [way(directory, cfg) for directory, cfg in known.items()]
        if len(set(names)) == len(names):
            return dict(zip(names, known, strict=True))
    raise AssertionError("paths differ")


def plain(value: Any) -> Any:
    """Arrays as lists and numbers that JSON has; what does not exist is null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    array = np.asarray(value)
    if array.ndim:
        return [plain(v) for v in array]
    number = array.item()
    if isinstance(number, int):
        return number
    return float(f"{number:.7g}") if math.isfinite(number) else None


def _of_study(name: str, runs: dict[str, dict[str, dict[str, Any]]]) -> tuple[Runs, list[str]]:
    """A study's numbers of every run, and why some have none."""
    mine = {label: found[name] for label, found in runs.items() if name in found}
    left_out = [f"{label}: {n['skipped']}" for label, n in mine.items() if "skipped" in n]
    shown = {label: n for label, n in mine.items() if "skipped" not in n}
    return cost.common(shown) if shown and name == "cost" else shown, left_out


def _asked(name: str, options: Options, number: int) -> dict[str, Any]:
    """What the numbers of a study depend on."""
    values = dataclasses.asdict(options)
    return {"round": number} | {k: plain(values[k]) for k in WAYS[name].uses}


def _kept(file: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The study as it was left, if it is the one that is asked for."""
    try:
        content = json.loads(file.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return content if content.get("asked") == asked else None


def _prefixed(name: str, progress: Progress) -> Progress:
    return lambda what, done, total: progress(f"{name}: {what}", done, total)


def _facts(directories: dict[str, Path]) -> dict[str, str]:
    """What a stranger has to know of the runs."""
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
