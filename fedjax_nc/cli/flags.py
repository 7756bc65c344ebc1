"""Command-line flags: parsed in two stages and without jax, so that a typo answers at once.

The first stage reads protocol, dataset and method; they decide the defaults of everything else and
which `--hp.` flags exist. The second is tyro on the resulting configuration.
"""

import contextlib
import dataclasses
import difflib
import io
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fedjax_nc import protocols
from fedjax_nc.config import RunConfig, check_seed, validate
from fedjax_nc.data.catalogue import DATASETS, sized
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import check
from fedjax_nc.study.options import TRACKED, Options, chosen
from fedjax_nc.study.options import validate as validate_options

LISTS = ("all", "methods", "models", "datasets", "protocols", "partitions")
_EPILOGUE = "Examples: --method=fedetf | --method='dot_regression | fd(beta=0.9)' | --list"


class Analysis(NamedTuple):
    """What was asked for of runs."""

    runs: tuple[str, ...]
    options: Options
    data_dir: str | None
    to: str | None
    overwrite: bool
    check: bool


class Command(NamedTuple):
    """What was asked for."""

    configs: tuple[RunConfig, ...]  # one per seed
    seeds_parallel: bool
    out: str
    overwrite: bool
    strict: bool
    dry_run: bool
    list: str  # of LISTS, or `no`
    track: tuple[str, ...]  # of TRACKED
    track_every: int


@dataclasses.dataclass(frozen=True)
class _Session:
    seeds: tuple[int, ...] = ()
    """Run these seeds one after another instead of --seed."""
    seeds_parallel: bool = False
    """Run them as one program: the same numbers up to rounding, in less time than one by one."""
    out: str = "runs"
    """Directory under which every run gets its own."""
    overwrite: bool = False
    """Start again, deleting what this configuration left before."""
    strict: bool = False
    """Refuse clients without data instead of skipping them."""
    dry_run: bool = False
    """Show size, work and memory of the run without training."""
    list: Literal["no", *LISTS] = "no"  # type: ignore[valid-type]
    """Show what there is, all of it (also without a word) or one kind."""
    track: str = ""
    """Record analyses while training, of collapse, spectrum, alignment, with commas between."""
    track_every: int = 10
    """Rounds between them."""


def parse(argv: list[str], prog: str = "run.py") -> Command:
    """Flags to configurations, all checked as far as is possible without data."""
    default = RunConfig()
    first = {
        name: _peek(argv, name, default=getattr(default, name))
        for name in ("method", "dataset", "protocol")
    }
    if first["dataset"] not in DATASETS:
        raise unknown("dataset", first["dataset"], allowed=DATASETS)
    base = protocols.resolve(first["protocol"], first["dataset"], spec=first["method"])
    hyper = catalogue.hyper_of(base.method)
    _check_hyper(argv, base.method, hyper=hyper)
    flags, rest = _tyro(_list_all(argv), prog, base=base, hyper=hyper)
    if rest:
        raise _unknown_flag(rest[0], (flags.run, flags.session, getattr(flags, "hp", None)))
    run, session = flags.run, flags.session
    given = {name: getattr(flags.hp, name) for name in hyper} if hyper else {}
    # the method as resolved, not as typed: the protocol may have set hyperparameters
    spec = catalogue.with_hyper(base.method, given)
    run = dataclasses.replace(run, method=spec, protocol=base.protocol, dataset=base.dataset)
    validate(run)
    if not session.list:
        check(run.model, sized(run.dataset, run.data).shape)
    seeds = session.seeds or (run.seed,)
    for seed in seeds:
        check_seed("--seeds", seed)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give different numbers")
    if session.seeds_parallel and len(seeds) < 2:
        raise UserError(
            f"--seeds_parallel with one seed ({seeds[0]}): give several, as --seeds 0 1"
        )
    if session.seeds_parallel and run.execution.executor == "debug":
        raise UserError("--seeds_parallel with --execution.executor=debug: leave out one of them")
    if session.track_every < 1:
        raise UserError(f"--track_every={session.track_every}: give a number above zero")
    configs = tuple(dataclasses.replace(run, seed=seed) for seed in seeds)
    return Command(
        configs,
        session.seeds_parallel,
        out=session.out,
        overwrite=session.overwrite,
        strict=session.strict,
        dry_run=session.dry_run,
        list=session.list,
        track=chosen(session.track, TRACKED, flag="--track"),
        track_every=session.track_every,
    )


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


def parse_analysis(argv: list[str], prog: str = "analyse.py") -> Analysis:
    """Flags of an analysis, checked as far as is possible without the runs."""
    import tyro

    about = tyro.conf.arg(metavar="RUN_DIR ...", help="Run directories; several side by side.")
    shape = dataclasses.make_dataclass(
        "Analyse",
        [
            ("runs", Annotated[tyro.conf.Positional[tuple[str, ...]], about]),
            ("analysis", Annotated[Options, tyro.conf.arg(name="")], Options()),
            ("files", Annotated[_Files, tyro.conf.arg(name="")], _Files()),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Explain finished or running runs: numbers, figures and a report.\n\n"
        "Example: analyse.py runs/mnist5k-classes2/*/*/seed0 --only=collapse,spectrum"
    )
    flags, rest = _read(lambda: tyro.cli(shape, args=argv, prog=prog, return_unknown_args=True))
    if rest:
        raise _unknown_flag(rest[0], (flags.analysis, flags.files))
    validate_options(flags.analysis)
    if not flags.runs:
        raise UserError("no run directory was given: name one that run.py has left")
    if len({Path(run).absolute() for run in flags.runs}) < len(flags.runs):
        raise UserError("the same run directory was given twice: give each once")
    return Analysis(flags.runs, flags.analysis, **vars(flags.files))


def _tyro(argv, prog, base: RunConfig, hyper) -> tuple[Any, list[str]]:
    import tyro  # a third of a second that a mistyped method need not wait for

    fields: list[Any] = [
        ("run", Annotated[RunConfig, tyro.conf.arg(name="")], base),
        ("session", Annotated[_Session, tyro.conf.arg(name="")], _Session()),
    ]
    if hyper:
        words = catalogue.choices_of(base.method)
        made = dataclasses.make_dataclass(
            "Hyper",
            [
                (
                    k,
                    Annotated[
                        Literal[words[k]] if k in words else type(v), tyro.conf.arg(help=text)
                    ],
                    v,
                )
                for k, (v, text) in hyper.items()
            ],
            frozen=True,
        )
        made.__doc__ = f"Hyperparameters of {base.method}."
        fields.append(("hp", made, made()))
    shape = dataclasses.make_dataclass("Flags", fields, frozen=True)
    shape.__doc__ = f"Train one federated method and leave a run directory.\n\n{_EPILOGUE}"
    default = shape(**{name: value for name, _, value in fields})
    return _read(
        lambda: tyro.cli(shape, args=argv, prog=prog, default=default, return_unknown_args=True)
    )


def _read(parse: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What tyro makes of the flags; its boxed error as one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as stop:
        if stop.code:
            raise UserError(_reason(said.getvalue())) from None
        raise


def _reason(box: str) -> str:
    """The sentence in the box tyro draws around an error, on one line."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    start = 1 if lines and lines[0].startswith("─") else 0
    rules = (i for i, line in enumerate(lines) if i >= start and line.startswith("──"))
    text = " ".join(" ".join(lines[start : next(rules, len(lines))]).split()).rstrip(".")
    text = text.removeprefix("Error parsing ")
    return f"{text[:1].lower()}{text[1:]}: see --help" if text else "bad flags: see --help"


def _peek(argv: list[str], name: str, default: str) -> str:
    """The value of a flag before the real parse; the last one given counts."""
    value = default
    for i, word in enumerate(argv):
        if word.startswith(f"--{name}="):
            value = word.split("=", 1)[1]
        elif word == f"--{name}" and i + 1 < len(argv):
            value = argv[i + 1]
    return value


def _list_all(argv: list[str]) -> list[str]:
    """The same with the word that `--list` alone stands for."""
    words = [*argv, "--"]
    alone = [a == "--list" and b.startswith("-") for a, b in itertools.pairwise(words)]
    given = _peek([w for w, no in zip(argv, alone, strict=True) if not no], "list", default="all")
    if given not in LISTS:
        raise unknown("list", given, allowed=LISTS)
    return ["--list=all" if no else word for word, no in zip(argv, alone, strict=True)]


def _check_hyper(argv, method, hyper) -> None:
    for word in argv:
        if word.startswith("--hp."):
            name = word[5:].split("=")[0].replace("-", "_").removeprefix("no_")
            if name not in hyper:
                if not hyper:
                    raise UserError(f"'{method}' has no hyperparameters, '{name}' was given")
                raise unknown(f"hyperparameter of {method}", name, allowed=hyper)


def _unknown_flag(word: str, groups: Iterable[Any]) -> UserError:
    names = []
    for group in groups:
        for field in dataclasses.fields(group) if group else ():
            value = getattr(group, field.name)
            inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
            names += [f"--{field.name}.{f.name}" for f in inner] or [f"--{field.name}"]
    given = word.split("=")[0]
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    kind = "flag" if word.startswith("-") else "argument"
    return UserError(f"unknown {kind} {given}: {hint}see --help")


def exit_with(error: UserError) -> int:
    """Print one line and give the exit code of bad input."""
    print(f"error: {error}", file=sys.stderr)
    return 2
