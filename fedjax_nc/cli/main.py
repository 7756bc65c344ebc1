"""The command `fedjax-nc`, also `python -m fedjax_nc`: one word, then that command's flags."""

from fedjax_nc.cli.analyse import analyse
from fedjax_nc.cli.board import board
from fedjax_nc.cli.compare import compare
from fedjax_nc.cli.curves import curves
from fedjax_nc.cli.exits import Main, answered
from fedjax_nc.cli.listing import show
from fedjax_nc.cli.prepare import prepare
from fedjax_nc.cli.run import train
from fedjax_nc.cli.sweep import sweep
from fedjax_nc.cli.table import table
from fedjax_nc.errors import UserError, command, unknown

COMMANDS: dict[str, tuple[str, Main]] = {
    "run": ("train one method and leave a run directory", train),
    "compare": ("train several methods and write one table", compare),
    "sweep": ("train a grid of runs in processes of their own", sweep),
    "table": ("make a paper's table or curves again", table),
    "curves": ("draw the accuracy of runs and print their table", curves),
    "board": ("write one HTML page to filter, group and draw many runs", board),
    "analyse": ("explain runs: numbers, figures, a report", analyse),
    "prepare": ("download or read a dataset, check it and keep it", prepare),
    "list": ("show methods, models, datasets, protocols, recipes, partitions", show),
}


@answered
def main(argv: list[str]) -> int:
    """Runs the command that the first word names; returns the exit code."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("--help", "-h"):
        print(_overview())
        return 0
    if name.startswith("-"):
        raise UserError(f"{name} comes after a command, as {command('run')} {name}: see --help")
    if name not in COMMANDS:
        raise unknown("command", name, allowed=COMMANDS)
    return COMMANDS[name][1](rest)


def _overview() -> str:
    """Returns the list of commands."""
    lines = [f"usage: {command('COMMAND')} ...", "", "Federated learning under label skew.", ""]
    lines += [f"  {name:<8} {summary}" for name, (summary, _) in COMMANDS.items()]
    lines += ["", f"Flags of a command: {command('run')} --help"]
    return "\n".join(lines)
