"""Errors a person can act on: what was given, what is allowed, what to do."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints its message on one line and exits with code 2."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}': {hint}choose from {', '.join(names)}")
