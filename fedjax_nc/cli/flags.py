"""The flags of a run: parsed in two stages and without jax, so that a typo answers at once.

The first stage reads plugins, protocol, dataset, model and method; they decide the defaults of
everything else and which `--hp.` flags exist. The second is tyro on the resulting configuration.
"""

import dataclasses
import itertools
import re
from typing import Annotated, Any, Literal, NamedTuple

from fedjax_nc import effects, plugins, processes, protocols
from fedjax_nc.cli.reading import given_names, plugin_flag, read, values_of
from fedjax_nc.config import RunConfig, check_seed, validate
from fedjax_nc.data.catalogue import sized
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.inputs import check_path
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import check
from fedjax_nc.processes import Distributed
from fedjax_nc.study.options import TRACKED, chosen

LISTS = ("all", "methods", "models", "datasets", "protocols", "recipes", "partitions")
PAPER = "paper"  # the word for the seeds of a protocol's paper
_EPILOGUE = (
    "Examples: --method=fedetf | --method='dot_regression | fd(beta=0.9)' | --list\n\n"
    "Exit codes: 0 done, 2 refused, 3 the machine failed, 75 stopped by a signal and saved, 130 "
    "stopped at once."
)


class Command(NamedTuple):
    """A parsed `run` command."""

    configs: tuple[RunConfig, ...]  # one per seed
    given: frozenset[str]  # dotted names of the flags that were typed
    seeds_parallel: bool
    out: str
    overwrite: bool
    strict: bool
    dry_run: bool
    list: str  # of LISTS, or `no`
    track: tuple[str, ...]  # of TRACKED
    track_every: int
    track_clients: int
    track_examples: int
    plugins: tuple[str, ...]
    distributed: Distributed = Distributed()


@dataclasses.dataclass(frozen=True)
class _Session:
    seeds: tuple[int, ...] = ()
    """Run these seeds one after another instead of --seed; `paper`: those the paper names."""
    seeds_parallel: bool = False
    """Run the seeds as one program: the same numbers up to rounding, sooner than one by one."""
    out: str = "runs"
    """Directory under which every run gets its own."""
    overwrite: bool = False
    """Start again, deleting what this configuration left before."""
    strict: bool = False
    """Refuse clients without data, and to resume on other devices or another jax."""
    dry_run: bool = False
    """Show size, work, memory and time of the run without training."""
    list: Literal["no", *LISTS] = "no"  # type: ignore[valid-type]
    """Show which methods, models, datasets, protocols, recipes, partitions exist; alone all."""
    track: str = ""
    """Analyses to record: collapse, spectrum, alignment, consistency, with commas between."""
    track_every: int = 10
    """Rounds between two records of --track."""
    track_clients: int = 5
    """Clients whose local models alignment and consistency look at, evenly spread by number."""
    track_examples: int = 1000
    """Test examples that --track looks at, balanced over classes and the same every time."""


def parse(argv: list[str], prog: str = "run", *, beside: bool = False) -> Command:
    """Returns the run that flags ask for, checked as far as is possible without data.

    Args:
      argv: what was typed.
      prog: the command's name.
      beside: whether the flags are those of other methods too.
    """
    argv = _spelled_out(argv)
    read_plugins(argv)
    default = RunConfig()
    first = {
        name: [getattr(default, name), *values_of(argv, f"--{name}")][-1]  # the last one counts
        for name in ("method", "dataset", "protocol")
    }
    model = [None, *values_of(argv, "--model")][-1]
    base = protocols.resolve(first["protocol"], first["dataset"], spec=first["method"], model=model)
    hyper = catalogue.hyper_of(base.method)
    _check_hyper(argv, base.method, hyper=hyper)
    words = _paper_seeds(_list_all(argv), base.protocol)
    flags, spec = _read(words, base, hyper=hyper, prog=prog)
    again = protocols.resolve(base.protocol, base.dataset, spec=spec, model=model)
    if dataclasses.replace(again, method=base.method) != base:  # by a hyperparameter
        base = dataclasses.replace(again, method=base.method)
        flags, spec = _read(words, base, hyper=hyper, prog=prog)
    run, session = flags.run, flags.session
    run = dataclasses.replace(run, method=spec, protocol=base.protocol, dataset=base.dataset)
    run = protocols.in_one_place(run)
    validate(run)
    given = given_names(argv)
    if beside and run.is_centralised:
        given -= effects.OF_SEVERAL
    if session.list == "no":
        shape = sized(run.dataset, run.data).shape
        if shape:  # of the Hub's datasets only the examples tell it
            check(run.model, shape)
        effects.check(given, run)
    _check_session(session, run, given=given)
    processes.check(flags.distributed)
    configs = tuple(dataclasses.replace(run, seed=seed) for seed in session.seeds or (run.seed,))
    return Command(
        configs,
        given,
        seeds_parallel=session.seeds_parallel,
        out=session.out,
        overwrite=session.overwrite,
        strict=session.strict,
        dry_run=session.dry_run,
        list=session.list,
        track=chosen(session.track, TRACKED, flag="--track"),
        track_every=session.track_every,
        track_clients=session.track_clients,
        track_examples=session.track_examples,
        plugins=flags.plugin,
        distributed=flags.distributed,
    )


def _read(
    words: list[str], base: RunConfig, *, hyper: dict[str, tuple[Any, str]], prog: str
) -> tuple[Any, str]:
    """Returns what was typed, and the method's specification with its hyperparameters."""
    shape, start = _shape(base, hyper)
    flags = read(shape, words, prog=prog, default=start)
    own = {name: getattr(flags.hp, name) for name in hyper} if hyper else {}
    # the method as resolved, not as typed: the protocol may have set hyperparameters
    return flags, catalogue.with_hyper(base.method, own)


def read_plugins(argv: list[str]) -> None:
    """Makes the methods, models and datasets of every `--plugin` known, without importing them."""
    plugins.read(values_of(argv, "--plugin"))


def _check_session(session: _Session, run: RunConfig, given: frozenset[str]) -> None:
    """Refuses seeds and records that make no sense."""
    check_path("--out", session.out)
    seeds = [*session.seeds] or [run.seed]
    for seed in seeds:
        check_seed("--seeds", seed)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give different numbers")
    if session.seeds and "seed" in given:
        raise UserError("--seed has no effect with --seeds: leave out one of them")
    if session.seeds_parallel and len(seeds) < 2:
        raise UserError(
            f"--seeds_parallel with one seed ({seeds[0]}): give several, as --seeds 0 1"
        )
    if session.seeds_parallel and run.execution.executor == "debug":
        raise UserError("--seeds_parallel with --execution.executor=debug: leave out one of them")
    for name in ("track_every", "track_clients", "track_examples"):
        if getattr(session, name) < 1:
            raise UserError(f"--{name}={getattr(session, name)}: give a number above zero")
        if name in given and not session.track:
            raise UserError(f"--{name} has no effect without --track: say what to record")
    followed = any(name in session.track for name in ("alignment", "consistency"))
    if "track_clients" in given and not followed:
        raise UserError(
            f"--track_clients has no effect with --track={session.track}: leave it out, it belongs "
            "to alignment and consistency"
        )


def _shape(base: RunConfig, hyper: dict[str, tuple[Any, str]]) -> tuple[Any, Any]:
    """Returns the dataclass that tyro fills, and its defaults."""
    import tyro  # a third of a second that a mistyped method need not wait for

    fields: list[Any] = [
        ("run", Annotated[RunConfig, tyro.conf.arg(name="")], base),
        ("session", Annotated[_Session, tyro.conf.arg(name="")], _Session()),
        ("plugin", plugin_flag(), ()),
        ("distributed", Distributed, Distributed()),
    ]
    if hyper:
        words = catalogue.choices_of(base.method)
        kinds = {k: Literal[words[k]] if k in words else _kind(v) for k, (v, _) in hyper.items()}
        made = dataclasses.make_dataclass(
            "Hyper",
            [
                (name, Annotated[kinds[name], tyro.conf.arg(help=text)], value)
                for name, (value, text) in hyper.items()
            ],
            frozen=True,
        )
        made.__doc__ = f"Hyperparameters of {base.method}."
        fields.append(("hp", made, made()))
    shape = dataclasses.make_dataclass("Flags", fields, frozen=True)
    shape.__doc__ = f"Train one federated method and leave a run directory.\n\n{_EPILOGUE}"
    return shape, shape(**{name: value for name, _, value in fields})


def _kind(default: Any) -> Any:
    """Returns the type of a hyperparameter's flag."""
    if not isinstance(default, tuple):
        return type(default)
    inner = {type(value) for value in default}
    return tuple[inner.pop() if len(inner) == 1 else str, ...]


def _spelled_out(argv: list[str]) -> list[str]:
    """Returns the flags with what `--distributed` alone and `--stop_at` are short for put in."""
    words = ["--distributed.on" if word == "--distributed" else word for word in argv]
    return [re.sub("^--stop[_-]at(?==|$)", "--evaluation.stop_at", word) for word in words]


def _list_all(argv: list[str]) -> list[str]:
    """Returns the flags with the word that `--list` alone stands for put in."""
    pairs = list(itertools.pairwise([*argv, "--"]))
    words = ["--list=all" if a == "--list" and b.startswith("-") else a for a, b in pairs]
    for given in values_of(words, "--list"):
        if given not in LISTS:
            raise unknown("list", given, allowed=LISTS)
    return words


def _paper_seeds(argv: list[str], protocol: str) -> list[str]:
    """Returns the flags with the seeds that `--seeds paper` stands for put in."""
    words: list[str] = []
    for word in argv:
        flag, _, value = word.partition("=")
        if (flag, value) == ("--seeds", PAPER):
            words += ["--seeds", *map(str, protocols.seeds_of(protocol))]
        elif word == PAPER and words and words[-1] == "--seeds":
            words += map(str, protocols.seeds_of(protocol))
        else:
            words.append(word)
    return words


def _check_hyper(argv: list[str], method: str, hyper: dict[str, Any]) -> None:
    """Refuses a hyperparameter that the method does not have."""
    for word in argv:
        if word.startswith("--hp."):
            name = word[5:].split("=")[0].replace("-", "_").removeprefix("no_")
            if name not in hyper:
                if not hyper:
                    raise UserError(f"'{method}' has no hyperparameters, '{name}' was given")
                raise unknown(f"hyperparameter of {method}", name, allowed=hyper)
