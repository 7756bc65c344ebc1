"""The flags of `sweep`: its own by tyro, and those of `run`, each with one value or several."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fedjax_nc.cli.flags import read_plugins
from fedjax_nc.cli.reading import read
from fedjax_nc.errors import UserError, command
from fedjax_nc.inputs import check_path
from fedjax_nc.sweep import grid
from fedjax_nc.sweep.grid import Flag, Point
from fedjax_nc.sweep.launch import Where

_NAME = re.compile(r"[\w.-]{1,100}")


@dataclasses.dataclass(frozen=True)
class _Slurm:
    """Jobs that Slurm is asked for, under --launcher=slurm."""

    cluster: Literal["slurm", "local"] = "slurm"
    """Slurm itself, or submitit's stand-in for it on this machine."""
    partition: str | None = None
    """Partition of the jobs."""
    minutes: int = 1440
    """Time limit of a job; a cell that takes longer saves and goes on in a new job."""
    memory_gb: float | None = None
    """Memory of a job."""
    cpus: int = 1
    """Cores of a job."""
    warn_seconds: int = 120
    """Seconds before the limit at which the round that runs is finished and saved."""


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Which cells there are, beside the flags of `run`."""

    grid: str | None = None
    """YAML file of the grid, as `data.alpha: [0.1, 0.5]`; flags typed beside it win."""
    zip: tuple[str, ...] = ()
    """Walk these axes together: data.alpha rounds; several such groups: a,b c,d."""
    without: tuple[str, ...] = ()
    """Leave out cells: method=fedavg,hp.beta=0.5; several with spaces between."""
    dry_run: bool = False
    """List the cells with their state and expected time; nothing is trained."""


@dataclasses.dataclass(frozen=True)
class _Work:
    """How cells are trained, and where their table is left."""

    workers: int = 1
    """Cells at once."""
    launcher: str = "local"
    """Where processes run: local, ray or slurm."""
    address: str | None = None
    """Address of a Ray cluster, auto or host:port; without it Ray is started on this machine."""
    gpus: float = 0.0
    """GPUs of a cell under ray and slurm; Ray takes fractions, such as 0.5."""
    name: str | None = None
    """Name of the sweep's folder in OUT/sweeps; by default it is made of the cells."""
    columns: tuple[str, ...] = ()
    """Show these metrics of summary.json in place of the usual accuracies."""


class Asked(NamedTuple):
    """A parsed `sweep` command."""

    points: list[Point]
    where: Where
    name: str | None
    columns: tuple[str, ...]
    dry_run: bool


def parse(argv: list[str]) -> Asked:
    """Returns the cells that flags ask for; those of `run` are checked cell by cell later."""
    own, of_run = _split(argv)
    given: Any = read(_shape(), own, prog=command("sweep"))
    cells, work = given.cells, given.work
    if work.name is not None and not (_NAME.fullmatch(work.name) and work.name.strip(".")):
        raise UserError(f"--name={work.name}: give letters, digits, . _ or -")
    typed = grid.by_name(grid.flags_of(of_run))
    together, without = cells.zip, cells.without
    if cells.grid is not None:
        from fedjax_nc.sweep import file

        check_path("--grid", cells.grid)
        written = file.read(Path(cells.grid))
        typed = grid.by_name(written.flags) | typed
        together, without = together or written.together, without or written.without
    read_plugins([f"--plugin={path}" for path in _values(typed, "plugin")])
    made = grid.make(typed, together=together, without=without)
    slurm = dataclasses.asdict(given.slurm)
    if any(word.startswith("--slurm.") for word in own) and work.launcher != "slurm":
        raise UserError("--slurm. flags have no effect without --launcher=slurm")
    where = Where(work.launcher, work.workers, address=work.address, gpus=work.gpus, **slurm)
    return Asked(
        grid.points(made), where, name=work.name, columns=work.columns, dry_run=cells.dry_run
    )


def without_seeds(argv: Sequence[str]) -> list[str]:
    """Returns flags of a run without --seed and --seeds, with their values."""
    left, skipped = [], False
    for word in argv:
        if word.startswith("--"):
            skipped = word.split("=")[0] in ("--seeds", "--seed")
        if not skipped:
            left.append(word)
    return left


def _values(typed: dict[str, Flag], name: str) -> tuple[str, ...]:
    return typed[name].values if name in typed else ()


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Returns a sweep's own flags with their values, and all others."""
    names = {f.name for kind in (_Grid, _Work) for f in dataclasses.fields(kind)} | {"help"}
    own: list[str] = []
    of_run: list[str] = []
    place = of_run
    for word in argv:
        if word == "-h":
            word = "--help"
        if word.startswith("--"):
            name = word[2:].split("=")[0].replace("-", "_")
            place = own if name in names or name.startswith("slurm.") else of_run
        place.append(word)
    return own, of_run


def _shape() -> Any:
    """Returns what tyro reads the own flags as, and shows under --help."""
    import tyro

    plain = tyro.conf.arg(name="")
    shape = dataclasses.make_dataclass(
        "Sweep",
        [
            ("cells", Annotated[_Grid, plain], _Grid()),
            ("work", Annotated[_Work, plain], _Work()),
            ("slurm", _Slurm, _Slurm()),
        ],
        frozen=True,
    )
    prog = command("sweep")
    shape.__doc__ = (
        "Train a grid of runs in processes of their own, and write one table.\n\n"
        f"{prog} FLAGS OF `{command('run')}`, each with one value or several [options]\n\n"
        "Several values after a flag make an axis; one value is common to all cells. --hp.NAME "
        "goes to the methods that have it. Values that hold several words are quoted: "
        '--federation.mapping "256 128" "128". Every cell is an ordinary run directory: finished '
        "ones are read, begun ones go on, and the same command again trains what is left.\n\n"
        f"Example: {prog} --method fedavg fedetf 'fedavg | fd' --data.partition=dirichlet "
        "--data.alpha 0.05 0.1 --hp.beta 0.5 0.9 --seeds 0 1 2 --workers 2"
    )
    return shape
