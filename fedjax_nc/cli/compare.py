"""The `compare` command: train several methods on the same terms and write one table."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

from fedjax_nc import processes
from fedjax_nc.cli import flags, run
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.reading import read
from fedjax_nc.errors import UserError, command
from fedjax_nc.inputs import check_path
from fedjax_nc.methods import catalogue
from fedjax_nc.tables import Row, check_targets, in_words, named, render
from fedjax_nc.tables import compare as table_of


@answered
def compare(argv: list[str]) -> int:
    """Trains all methods, prints their table, and appends it to a file if asked."""
    split = argv.index("--") if "--" in argv else len(argv)
    given, rest = parse(argv[:split]), argv[split + 1 :]
    flags.read_plugins(rest)
    every = dict.fromkeys(catalogue.bases(), True) if "all" in given.methods else {}
    methods = every | {m: False for m in given.methods if m != "all"}  # may it be left out?
    several = len(methods) > 1
    commands = {
        m: flags.parse([f"--method={m}", *rest], prog=command("run"), beside=several)
        for m in methods
    }
    check_targets(given.targets, [asked.configs[0] for asked in commands.values()])
    rows: list[Row] = []
    refused: list[str] = []
    try:
        for name, asked in commands.items():
            try:
                rows.append(_trained(asked, records=bool(given.targets)))
            except UserError as error:
                if not methods[name]:
                    raise
                refused.append(f"- `{name}`: {error}")
    except KeyboardInterrupt as stop:
        done = f"{len(rows)} of {len(commands)} methods are finished"
        stop.args = (f"{done}; the same command goes on with the others",)
        raise
    if not processes.is_first():
        return 0
    if not rows:
        raise UserError(f"none of {len(commands)} methods can do this, such as {refused[0][2:]}")
    table = render(table_of(rows, given.columns, targets=given.targets))
    table += "".join(f"\n{line}" for line in refused) + "\n" * bool(refused)
    print(table)
    if given.to:
        typed = f"{command('compare')} {shlex.join(argv)}"
        _append(Path(given.to), f"## {in_words(rows[0].config)}\n\n```\n{typed}\n```\n\n{table}\n")
    return 0


def _trained(asked: flags.Command, records: bool) -> Row:
    """Trains all seeds of a command; with the records of their rounds, which they leave on disk."""
    row = Row(asked.configs[0], run.execute(asked))
    if not records or not processes.is_first():
        return row
    from fedjax_nc.io import rundir

    each = [rundir.results(rundir.path_of(asked.out, cfg))[0] for cfg in asked.configs]
    return row._replace(records=each)


def _append(path: Path, text: str) -> None:
    """Adds a table to a file, which a full disk leaves as it was."""
    from fedjax_nc.io.files import write_atomically

    write_atomically(path, (path.read_text() if path.is_file() else "") + text)


def parse(argv: list[str]) -> Any:
    """Returns the methods and the file; whatever is wrong is told before anything is trained."""
    import tyro

    prog = command("compare")
    about = tyro.conf.arg(
        metavar="METHOD ...",
        help="Methods, or `all` of them; those that cannot do what is asked are named below the "
        "table.",
        help_behavior_hint="",
    )
    to = tyro.conf.arg(
        metavar="FILE",
        help="Append the table and its command to a Markdown file.",
        help_behavior_hint="",
    )
    columns = tyro.conf.arg(
        metavar="NAME ...",
        help="Show these metrics of summary.json in place of the usual accuracies.",
        help_behavior_hint="",
    )
    targets = tyro.conf.arg(
        metavar="SHARE ...",
        help="Show the rounds to these accuracies, as 0.2 0.3, and the speed-up.",
        help_behavior_hint="",
    )
    shape = dataclasses.make_dataclass(
        "Compare",
        [
            ("methods", Annotated[tyro.conf.Positional[tuple[str, ...]], about]),
            ("to", Annotated[str | None, to], None),
            ("columns", Annotated[tuple[str, ...], columns], ()),
            ("targets", Annotated[tuple[float, ...], targets], ()),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Train several methods on the same terms and write one table.\n\n"
        f"{prog} METHOD ... [--to FILE] [--columns NAME ...] [--targets SHARE ...] -- FLAGS OF "
        f"`{command('run')}`\n\n"
        "Everything after -- goes to every run. Finished runs are not run again.\n\n"
        f"Example: {prog} fedavg 'fedbabu | fd' --to table.md -- --dataset=digits --seeds 0 1 2"
    )
    known = ("--to", "--columns", "--targets", "--help")
    stray = [w for w in argv if w.startswith("--") and w.split("=")[0] not in known]
    if stray:
        raise UserError(
            f"{stray[0]} is no flag of compare: flags of run follow --, as {prog} ... -- {stray[0]}"
        )
    given: Any = read(shape, argv, prog=prog)
    if not given.methods:
        raise UserError(f"no method was given: name some, or all, as {prog} fedavg fedetf")
    named(given.columns)
    check_targets(given.targets)
    check_path("--to", given.to or "")
    if given.to and (Path(given.to).is_dir() or not Path(given.to).absolute().parent.is_dir()):
        raise UserError(f"--to={given.to}: give a file in a folder that exists")
    return given
