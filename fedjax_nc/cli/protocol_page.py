"""Prints the protocols, or one of them with its settings, commands and deviations."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedjax_nc import effects, protocols
from fedjax_nc.cli.console import Lasting
from fedjax_nc.cli.flags import PAPER
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import command
from fedjax_nc.methods import catalogue

_PLAIN = "fedavg"  # the method whose settings are everybody's unless told otherwise
_GROUPS = ("data", "local", "federation", "evaluation")


def overview() -> Table:
    """Returns the table of all protocols and their regimes."""
    table = Table(
        "protocol",
        "whose setting",
        title="Protocols, with their regimes",
        caption="the first regime is the default; all of one: list protocols NAME",
    )
    table.columns[0].no_wrap = True
    for name, protocol in protocols.PROTOCOLS.items():
        table.add_section()
        table.add_row(name, escape(protocol.about[0]))
        for regime, text in protocol.regimes.items():
            table.add_row(f"{name}/{regime}", escape(text))
    return table


def show(asked: str) -> None:
    """Prints all there is to say about a protocol, or about one of its regimes.

    Args:
      asked: name or name/regime.
    """
    console = Lasting()
    for part in _parts(asked):
        console.print(part, soft_wrap=isinstance(part, Text))  # commands stay whole, to be copied


def _parts(asked: str) -> Iterator[Any]:
    name, regime = protocols.split(asked)
    protocol = protocols.PROTOCOLS[name]
    regimes = [regime] if "/" in asked else [*protocol.regimes] or [""]
    title, *paragraphs = protocol.about
    yield f"[bold]{escape(title)}[/]"
    for text in paragraphs:
        yield Padding(escape(text), (1, 0, 0, 0))
    yield Padding(f"Seeds: {_seeds(protocol)}.", (1, 0))
    for each in regimes:
        yield _settings(name, each)
    yield _own(name, regimes[0])
    yield _commands(name, regimes)
    if protocol.varied:
        yield _varied(protocol.varied)


def _seeds(protocol: protocols.Protocol) -> str:
    if not protocol.seeds:
        return protocol.repeats
    return f"{' '.join(map(str, protocol.seeds))} (--seeds {PAPER}); {protocol.repeats}"


def _settings(name: str, regime: str) -> Table:
    """Returns what a regime gives to each dataset of the paper."""
    protocol = protocols.PROTOCOLS[name]
    full = protocols.full_name(name, regime)
    about = f": {protocol.regimes[regime]}" if regime else ""
    table = Table("setting", title=f"{full}{about}")
    flat = []
    for dataset in protocol.datasets:
        table.add_column(dataset, overflow="fold")
        flat.append(_flat(protocols.resolve(full, dataset, spec=_PLAIN)))
    for setting in _values(RunConfig()):
        values = [settings.get(setting, "-") for settings in flat]
        if {*values} - {"-", "0", "0.0", "False"}:
            table.add_row(setting, *values)
    return table


def _own(name: str, regime: str) -> Table:
    """Returns which methods and regularisers have settings of their own, and on which dataset."""
    protocol, full = protocols.PROTOCOLS[name], protocols.full_name(name, regime)
    table = Table("method", "what is set for it", title="Settings of methods")
    table.columns[0].no_wrap = True
    specs = {entry: entry for entry in catalogue.bases()}
    specs |= {f"| {entry}": f"{_PLAIN} | {entry}" for entry in catalogue.regularisers()}
    for entry, spec in specs.items():
        said: dict[str, list[str]] = {}  # the same words of several datasets once
        for dataset in protocol.datasets:
            made = protocols.resolve(full, dataset, spec=spec)
            plain = _flat(protocols.resolve(full, dataset, spec=_PLAIN))
            words = [f"{k}={v}" for k, v in _flat(made).items() if plain.get(k) != v]
            given = made.method.removeprefix(f"{_PLAIN} | ")
            words = [given] * (given != entry.removeprefix("| ")) + words
            if words:
                said.setdefault(", ".join(words), []).append(dataset)
        lines = [
            text if len(where) == len(protocol.datasets) else f"{', '.join(where)}: {text}"
            for text, where in said.items()
        ]
        if lines:
            table.add_row(entry, escape("\n".join(lines)))
    return table


def _commands(name: str, regimes: Iterable[str]) -> Text:
    """Returns the command of every dataset and regime, with the paper's own method."""
    protocol = protocols.PROTOCOLS[name]
    method = name if name in catalogue.bases() else RunConfig().method
    seeds = f" --seeds {PAPER}" if protocol.seeds else ""
    lines = [
        f"{command('run')} --protocol={protocols.full_name(name, regime)} --dataset={dataset} "
        f"--method={method}{seeds}"
        for regime in regimes
        for dataset in protocol.datasets
    ]
    return _listed("Commands", lines)


def _varied(varied: Mapping[str, str]) -> Text:
    lines = [f"{command('run')} {flags}  # {about}" for about, flags in varied.items()]
    return _listed("What else the paper varies (after the semicolon: other values)", lines)


def _listed(title: str, lines: Iterable[str]) -> Text:
    return Text.assemble((f"\n{title}\n", "italic"), "\n".join(lines))


def _flat(config: RunConfig) -> dict[str, str]:
    """Returns the settings of a configuration that have an effect, by dotted name, as words."""
    idle = {
        setting
        for rule in effects.RULES
        if not rule.matters(config)
        for setting in rule.settings.split()
    }
    shown = {k: v for k, v in _values(config).items() if k not in idle and v not in (None, ())}
    return {k: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in shown.items()}


def _values(config: RunConfig) -> dict[str, Any]:
    """Returns all settings of a configuration that its protocol decides, by dotted name."""
    found: dict[str, Any] = {"model": config.model, "rounds": config.rounds}
    for group in _GROUPS:
        values = getattr(config, group)
        for field in dataclasses.fields(values):
            found[f"{group}.{field.name}"] = getattr(values, field.name)
    return found
