"""The `sweep` command: a grid over any flags of `run`, in processes, resumed, and one table."""

import contextlib
import secrets
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_nc import plugins
from fedjax_nc.cli import console, flags, measure, sweep_flags
from fedjax_nc.cli.exits import FAILED as MACHINE
from fedjax_nc.cli.exits import REFUSED, answered
from fedjax_nc.cli.streams import say
from fedjax_nc.cli.sweeping import Sweeping
from fedjax_nc.errors import Stopped, UserError, command
from fedjax_nc.host import stopping
from fedjax_nc.metrics import duration
from fedjax_nc.sweep import cells, launch
from fedjax_nc.sweep.cells import FAILED, FINISHED, STOPPED, Cell, Result, State, Task
from fedjax_nc.sweep.expect import Expected, Work, kind
from fedjax_nc.sweep.launch import Where
from fedjax_nc.sweep.work import SAVED, Order
from fedjax_nc.tables import named


@answered
def sweep(argv: list[str]) -> int:
    """Trains every cell of a grid that is not finished, and prints and writes their table."""
    asked = sweep_flags.parse(argv)
    launch.check(asked.where)
    named(asked.columns)
    with stopping.at_once():
        return _sweep(asked, typed=f"{command('sweep')} {shlex.join(argv)}")


def _sweep(asked: sweep_flags.Asked, typed: str) -> int:
    """Lists or trains the cells of a parsed command; returns the exit code."""
    with console.waiting(f"reading the flags of {len(asked.points)} cells"):
        tasks = tasks_of([Cell(point.labels, point.argv) for point in asked.points])
    if asked.dry_run:
        _show(tasks)
        return 0
    results, folder = _trained(tasks, asked.where, name=asked.name, typed=typed)
    from fedjax_nc.sweep import report

    print(report.write_table(folder, results, columns=asked.columns))
    say(f"written: {folder}")
    return _code(results)


def run_cells(
    asked: Sequence[Cell],
    *,
    out: str = "runs",
    workers: int = 1,
    launcher: str = launch.HERE,
    name: str | None = None,
    **where: Any,
) -> list[Result]:
    """Trains cells in processes of their own, those that are finished not again.

    A cell that cannot be trained is told by its result, and the others go on. Cells whose flags
    are refused are refused here, before the first one trains.

    Args:
      asked: each with what it is called and the flags of `fedjax-nc run`.
      out: where the run directories are made.
      workers: cells at once.
      launcher: local, ray or slurm.
      name: of the sweep's folder in `out`/sweeps; by default it is made of the cells.
      **where: what Ray and Slurm are asked for, as the fields of `Where`.

    Returns:
      A result for each cell and seed, in order; cells that are the same run have one.
    """
    place = Where(launcher, workers, **where)
    launch.check(place)
    tasks = tasks_of([Cell(cell.labels, (*cell.argv, f"--out={out}")) for cell in asked])
    return _trained(tasks, place, name=name, typed="fedjax_nc.run_cells")[0]


def tasks_of(asked: Sequence[Cell]) -> list[Task]:
    """Returns what processes train: every cell's seeds alone, or at once if it says so.

    All flags are checked, and what lies in the run directories.
    """
    from fedjax_nc.io import rundir

    several = len({cell.labels.get("method") for cell in asked}) > 1
    found: list[Task] = []
    for cell in asked:
        try:
            one = flags.parse(list(cell.argv), prog=command("run"), beside=several)
            if one.list != "no" or one.dry_run or one.distributed.wanted:
                raise UserError("--list, --dry-run and --distributed are no flags of a cell")
            for cfg in one.configs:
                directory = rundir.path_of(one.out, cfg)
                rundir.check(directory, cfg, overwrite=one.overwrite, plugins=plugins.record())
        except UserError as error:
            if len(asked) == 1:
                raise
            where = cells.words(cell.labels, ())
            raise UserError(f"{where}: {error}") from error.__cause__
        base = sweep_flags.without_seeds(cell.argv)
        groups = [one.configs] if one.seeds_parallel else [(cfg,) for cfg in one.configs]
        for configs in groups:
            seeds = [str(cfg.seed) for cfg in configs]
            words = ["--seeds", *seeds] if len(seeds) > 1 else [f"--seed={seeds[0]}"]
            found.append(
                Task(
                    cell.labels,
                    argv=(*base, *words),
                    configs=configs,
                    directories=tuple(rundir.path_of(one.out, cfg) for cfg in configs),
                    track=(one.track, one.track_every),
                    overwrite=one.overwrite,
                    out=one.out,
                )
            )
    return _once(found)


def _once(tasks: list[Task]) -> list[Task]:
    """Returns the tasks without those that are the same run as another, and says how many."""
    kept = cells.once(tasks)
    if len(kept) < len(tasks):
        count = len(tasks) - len(kept)
        say(f"{count} of {len(tasks)} cells are the same run as another one: trained once")
    return kept


def _trained(
    tasks: list[Task], where: Where, *, name: str | None, typed: str
) -> tuple[list[Result], Path]:
    """Trains what is not finished; returns all results, and the folder of the sweep."""
    from fedjax_nc.sweep import loop, report

    states = [cells.look(task, again=task.overwrite) for task in tasks]
    folder = report.folder_of(tasks[0].out, tasks, name=name)
    left = [t for t, state in zip(tasks, states, strict=True) if state.name != FINISHED]
    expected = _expected(tasks, states, timed=False, room=where.workers)
    made = loop.Sweep(tasks, states, expected=expected)
    write = partial(report.write_list, folder, command=typed)
    if not left:
        write(made.all())
        return made.all(), folder
    if len(left) < len(tasks):
        say(f"{len(tasks) - len(left)} of {len(tasks)} cells are finished already")
    stop = folder / f"stop-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as held:
        launcher = held.enter_context(launch.opened(where, folder))
        reporter = held.enter_context(Sweeping(where.workers))
        held.callback(partial(stop.unlink, missing_ok=True))
        heard = held.enter_context(stopping.listening(reporter.note))
        heard.busy = True  # there is always something to save
        write(made.all())

        def order(i: int) -> Order:
            log = (folder / "logs" / f"{i:04d}.log").absolute()
            signals = where.launcher == launch.HERE
            asked_by = None if signals else stop.absolute()
            return Order(tasks[i].argv, log, folder=Path.cwd(), stop=asked_by)

        results = loop.train(
            made,
            launcher,
            order=order,
            asked=lambda: heard.by,
            reporter=reporter,
            changed=lambda: write(made.all()),
        )
    write(results)
    if any(result.state == STOPPED for result in results):
        done = sum(result.state == FINISHED for result in results)
        again = " without --overwrite" if any(task.overwrite for task in tasks) else ""
        raise Stopped(
            f"{done} of {len(results)} cells are finished; the same command{again} goes on",
            code=SAVED,
        )
    return results, folder


def _expected(
    tasks: Sequence[Task], states: Sequence[State], *, timed: bool, room: int
) -> Expected:
    """Returns what cells are expected to take; the work of their kinds is counted first.

    Nothing is counted where cells of every kind are finished, or where there is no order to find.
    """
    kinds = {kind(task.configs[0]): task for task in reversed(tasks)}
    done = [state.name == FINISHED for state in states]
    left = [task for task, finished in zip(tasks, done, strict=True) if not finished]
    known = {kind(task.configs[0]) for task, d in zip(tasks, done, strict=True) if d}
    unknown = {name: task for name, task in kinds.items() if name not in known}
    works: dict[str, Work] = {}
    if unknown and (timed or (len(kinds) > 1 and len(left) > room)):
        counted = unknown if timed else kinds  # the speed is that of those that are finished
        with console.waiting(f"counting the work of {len(counted)} kinds of cells"):
            found = measure.works([task.argv for task in counted.values()], timed=timed)
        works = {name: work for name, (work, _) in zip(counted, found, strict=True)}
        for task, (_, why) in zip(counted.values(), found, strict=True):
            if why:
                say(f"warning: {cells.words(task.labels, task.seeds)}: {why}")
    return Expected(works)


def _show(tasks: list[Task]) -> None:
    """Prints every cell, how far it is, and about how long it will take."""
    from fedjax_nc.sweep import report

    states = [cells.look(task, again=task.overwrite) for task in tasks]
    expected = _expected(tasks, states, timed=True, room=1)
    total, rows, missing = 0.0, [], 0
    for task, state in zip(tasks, states, strict=True):
        if state.name == FINISHED:
            expected.learn(task, state.seconds or 0.0)
    axes = report.axes_of(tasks)
    for task, state in zip(tasks, states, strict=True):
        rounds = task.configs[0].rounds
        seconds = 0.0 if state.name == FINISHED else expected.seconds(task)
        if seconds is not None:
            seconds *= 1 - min(state.round, rounds) / rounds
        total, missing = total + (seconds or 0.0), missing + (seconds is None)
        told = "-" if state.name == FINISHED else _hours(seconds)
        how = f"{state.name}, round {state.round}" if 0 < state.round < rounds else state.name
        place = [task.labels.get(name, "-") for name in axes]
        rows.append([*place, " ".join(map(str, task.seeds)), str(rounds), how, told])
    header = [*axes, "seed", "rounds", "state", "expected"]
    done = sum(state.name == FINISHED for state in states)
    console.show_table("Dry run: nothing is trained", header, rows=rows)
    about = f"about {duration(total)} for the others, one after another"
    if missing:
        about = f"{about}, and {missing} of which nobody knows" if total else "time unknown"
    told = about if done < len(tasks) else "nothing is left to train"
    print(f"{len(tasks)} cells, {done} finished; {told}")


def _hours(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration(seconds)


def _code(results: Sequence[Result]) -> int:
    """Returns how a sweep ends: all done, some refused, or some failed otherwise."""
    failed = [result for result in results if result.state == FAILED]
    if not failed:
        return 0
    say(f"error: {len(failed)} of {len(results)} cells failed, as the lines below the table say")
    return REFUSED if all(result.code == REFUSED for result in failed) else MACHINE
