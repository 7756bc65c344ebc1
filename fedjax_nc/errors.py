"""Errors a person can act on: what was given, what is allowed, what to do."""

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

_SCRIPTS = {
    "run": "run.py",
    "compare": "compare.py",
    "curves": "curves.py",
    "analyse": "analyse.py",
    "prepare": "prepare_data.py",
    "list": "run.py --list",
}


class UserError(Exception):
    """Bad input. The command line prints its message on one line and exits with code 2."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """Returns the error for a name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}': {hint}choose from {', '.join(names)}")


def command(name: str) -> str:
    """Returns how a command is typed the way the present one was: `fedjax-nc prepare`.

    Scripts in experiments/ and `python -m fedjax_nc` are named when one of them was started;
    anything else, such as a notebook, has the installed command.
    """
    started = Path(sys.argv[0] if sys.argv else "")
    if (started.parent.name, started.name) == ("fedjax_nc", "__main__.py"):
        return f"python -m fedjax_nc {name}"
    file = _SCRIPTS[name].split()[0] if name in _SCRIPTS else ""
    if started.name in _SCRIPTS.values() and (started.parent / file).is_file():
        return f"python {started.parent / _SCRIPTS[name]}"
    return f"fedjax-nc {name}"
