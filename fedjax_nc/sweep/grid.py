"""A grid of runs: flags with several values are axes, and a cell is one choice of each."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError, few, quoted, unknown
from fedjax_nc.methods import catalogue

MOST = 10_000  # cells of a grid; more are a mistake
# what belongs to all cells, and never makes an axis
_COMMON = ("out", "plugin", "seeds_parallel", "overwrite", "strict")
_OF_RUN = {
    "list": "it is a command of its own, fedjax-nc list",
    "distributed": "a sweep trains every cell in one process",
}


class Flag(NamedTuple):
    """A flag as it was given."""

    name: str  # dotted, with _
    word: str  # as typed, `--evaluation.no-personal`
    values: tuple[str, ...]


class Grid(NamedTuple):
    """Flags of runs, some of them with several values."""

    flags: dict[str, Flag]
    together: tuple[tuple[str, ...], ...] = ()  # axes that are walked together
    without: tuple[Mapping[str, str], ...] = ()  # cells to leave out, by values on axes

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The values on each axis."""
        found = {name: _texts(flag) for name, flag in self.flags.items() if name != "seeds"}
        return {name: texts for name, texts in found.items() if len(texts) > 1}


class Point(NamedTuple):
    """One cell of a grid: its place on the axes, and the flags of its run."""

    labels: dict[str, str]
    argv: tuple[str, ...]


def flags_of(argv: Sequence[str]) -> list[Flag]:
    """Splits what was typed into flags with their values."""
    found: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            typed, equals, value = word.partition("=")
            found.append((typed, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise UserError(f"unknown argument {quoted(word)}: a sweep takes flags, see --help")
    return [Flag(plain(word), word, values=tuple(values)) for word, values in found]


def plain(word: str) -> str:
    """Returns the dotted name of a flag: `--evaluation.no-personal` is evaluation.personal."""
    group, dot, name = word.removeprefix("--").replace("-", "_").rpartition(".")
    return f"{group}{dot}{name.removeprefix('no_')}"


def by_name(flags: Sequence[Flag]) -> dict[str, Flag]:
    """Returns flags by name; one that comes twice is refused, but for plugins, which add up."""
    found: dict[str, Flag] = {}
    for flag in flags:
        last = flag.word.rpartition(".")[2].removeprefix("--")
        if flag.values and last.startswith(("no-", "no_")):
            raise UserError(f"{flag.word} takes no value: write --{flag.name} True False")
        if flag.name in found and flag.name != "plugin":
            raise UserError(
                f"{flag.word} was given twice: give an axis all its values after one flag"
            )
        before = found[flag.name].values if flag.name in found else ()
        found[flag.name] = flag._replace(values=before + flag.values)
    return found


def make(
    flags: dict[str, Flag], *, together: Sequence[str] = (), without: Sequence[str] = ()
) -> Grid:
    """Returns the grid that flags make, checked.

    Args:
      flags: those of runs.
      together: names of axes to walk together, `a b`, or several such groups, `a,b c,d`.
      without: cells to leave out, as `method=fedavg,rounds=3`.
    """
    for name, told in _OF_RUN.items():
        if name in flags:
            raise UserError(f"--{name} is no flag of a sweep: {told}")
    if any(name.startswith("distributed.") for name in flags):
        raise UserError(f"--distributed is no flag of a sweep: {_OF_RUN['distributed']}")
    if not flags:
        raise UserError(
            "no flag was given, so there are no cells: give some several values, as --method "
            "fedavg fedetf --seeds 0 1 2"
        )
    if "seeds" in flags and not flags["seeds"].values:
        raise UserError("--seeds without a number: give some, as --seeds 0 1 2")
    if "seed" in flags and "seeds" in flags:
        raise UserError("--seed has no effect with --seeds: leave out one of them")
    if "seed" in flags and len(flags["seed"].values) > 1:
        raise UserError("--seed takes one number: several are given as --seeds 0 1 2")
    grid = Grid(flags)
    for name in _COMMON:
        if name in grid.axes and name != "plugin":
            raise UserError(f"--{name} is no axis: give it one value, common to all cells")
    for name, texts in grid.axes.items():
        if len(set(texts)) < len(texts):
            raise UserError(f"--{name} has a value twice ({' '.join(texts)}): give each once")
    grouped = any("," in text for text in together)
    groups = [tuple(map(plain, t.split(","))) for t in together if grouped]
    if together and not grouped:
        groups = [tuple(map(plain, together))]
    _check_together(grid, groups)
    excluded = tuple(_condition(grid, text) for text in without)
    return grid._replace(together=tuple(groups), without=excluded)


def points(grid: Grid) -> list[Point]:
    """Returns the cells, every one once; a hyperparameter is only given to methods that have it."""
    methods = {spec: set(catalogue.hyper_of(spec)) for spec in _methods(grid)}
    _check_hyper(grid, methods)
    found: dict[tuple[str, ...], Point] = {}
    for labels in _walk(grid):
        spec = labels.get("method") or _methods(grid)[0]
        named = {name: name[3:] for name in grid.flags if name.startswith("hp.")}
        absent = {name for name, short in named.items() if short not in methods[spec]}
        labels = {name: text for name, text in labels.items() if name not in absent}
        if any(_holds(condition, labels) for condition in grid.without):
            continue
        words: list[str] = []
        for name, flag in grid.flags.items():
            if name not in absent:
                words += _words(flag, labels.get(name))
        found.setdefault(tuple(words), Point(labels, tuple(words)))
    if not found:
        raise UserError("--without leaves no cell: leave out fewer")
    return list(found.values())


def _walk(grid: Grid) -> Iterator[dict[str, str]]:
    """Yields every choice of a value on each axis; axes that go together have one place."""
    axes = grid.axes
    groups: list[tuple[str, ...]] = []
    for name in axes:
        group = next((g for g in grid.together if name in g), (name,))
        if group not in groups:
            groups.append(group)
    sizes = [len(axes[group[0]]) for group in groups]
    if (count := math.prod(sizes)) > MOST:
        raise UserError(f"the grid has {count:,} cells: give at most {MOST:,}")
    for places in itertools.product(*map(range, sizes)):
        at = {n: i for group, i in zip(groups, places, strict=True) for n in group}
        yield {name: texts[at[name]] for name, texts in axes.items()}


def _texts(flag: Flag) -> tuple[str, ...]:
    """Returns the values of a flag; of one that takes several words at once, each is quoted."""
    if flag.name == "plugin" or (_takes_several(flag.name) and not any(map(_spaced, flag.values))):
        return (" ".join(flag.values),)
    return flag.values


def _spaced(text: str) -> bool:
    return " " in text.strip()


def _takes_several(name: str) -> bool:
    """Returns whether a flag takes several words, as --federation.mapping 256 128 does."""
    if name.startswith("hp."):
        entries = [*catalogue.bases().values(), *catalogue.regularisers().values()]
        return any(isinstance(entry.hyper.get(name[3:]), tuple) for entry in entries)
    value: object = RunConfig()
    for part in name.split("."):
        value = getattr(value, part, None)
    return isinstance(value, tuple)


def _words(flag: Flag, text: str | None) -> list[str]:
    """Returns how a run is given a flag, or one of its values."""
    if flag.name == "plugin":
        return [f"--plugin={value}" for value in flag.values]
    if flag.name == "seeds":
        return ["--seeds", *flag.values]
    if text is None:
        if not flag.values:
            return [flag.word]
        (text,) = _texts(flag)
    if text.lower() in ("true", "false"):
        group, dot, name = flag.name.rpartition(".")
        return [f"--{group}{dot}{'' if text.lower() == 'true' else 'no-'}{name}"]
    if _takes_several(flag.name):
        return [f"--{flag.name}", *text.split()]
    return [f"--{flag.name}={text}"]


def _methods(grid: Grid) -> tuple[str, ...]:
    flag = grid.flags.get("method")
    return flag.values if flag and flag.values else (RunConfig().method,)


def _check_hyper(grid: Grid, methods: Mapping[str, set[str]]) -> None:
    """Refuses a hyperparameter that no method has."""
    known = set().union(*methods.values())
    for name in grid.flags:
        if name.startswith("hp.") and name[3:] not in known:
            if not known:
                raise UserError(f"--{name}: {few(list(methods))} has no hyperparameters")
            raise unknown(f"hyperparameter of {few(list(methods))}", name[3:], allowed=known)


def _check_together(grid: Grid, groups: Sequence[tuple[str, ...]]) -> None:
    """Refuses axes to walk together that are none, come twice, or differ in length."""
    axes, seen = grid.axes, set()
    for group in groups:
        for name in group:
            _check_axis(grid, name, flag="--zip")
            if name in seen:
                raise UserError(f"--zip names {name} twice: an axis is walked once")
            seen.add(name)
        if len(group) < 2:
            raise UserError(f"--zip {','.join(group)}: name two axes or more to walk together")
        sizes = {name: len(axes[name]) for name in group}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise UserError(f"--zip {' '.join(group)}: {told} values: give as many of each")


def _check_axis(grid: Grid, name: str, flag: str) -> None:
    if name not in grid.axes:
        if not grid.axes:
            raise UserError(f"{flag} {name}: there is no axis, as no flag has several values")
        raise unknown(f"axis in {flag}", name, allowed=grid.axes)


def _condition(grid: Grid, text: str) -> dict[str, str]:
    """Returns which values on which axes a text means: method=fedavg,hp.beta=0.5."""
    found = {}
    for part in re.split(r",(?![^(]*\))", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise UserError(
                f"--without {quoted(text)}: give axis=value, joined by commas, as "
                "method=fedavg,hp.beta=0.5"
            )
        name = plain(name.strip())
        _check_axis(grid, name, flag="--without")
        texts = grid.axes[name]
        same = [one for one in texts if _same(one, value.strip())]
        if not same:
            raise unknown(f"value of {name} in --without", value.strip(), allowed=texts)
        found[name] = same[0]
    return found


def _holds(condition: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == text for name, text in condition.items())


def _same(left: str, right: str) -> bool:
    """Returns whether two values are the same text, or the same number."""
    try:
        return left == right or float(left) == float(right)
    except ValueError:
        return left.replace(" ", "") == right.replace(" ", "")
