"""Errors a person can act on: what was given, what is allowed, what to do."""

import difflib
import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LONGEST = 400  # characters of a message: five lines of a terminal, which people still read
_QUOTED = 60  # characters of a value that is quoted in a message
_WORD = 160  # characters of a word without a space: paths are shorter, nonsense is longer
_SHOWN = 6  # names of a long list that are shown
_ADVICE = 200  # characters kept at the end of a message, where the advice stands
_NAMES = re.compile(rf"(?:[^\s,:;]{{1,60}}, ){{{2 * _SHOWN},}}[^\s,:;]+")
_SCRIPTS = {
    "run": "run.py",
    "compare": "compare.py",
    "sweep": "sweep.py",
    "table": "table.py",
    "curves": "curves.py",
    "board": "board.py",
    "analyse": "analyse.py",
    "prepare": "prepare_data.py",
    "list": "run.py --list",
}
# kinds of names that `list` shows, and under which word
_LISTED = {
    "method": "methods",
    "regulariser": "methods",
    "model": "models",
    "dataset": "datasets",
    "protocol": "protocols",
    "recipe": "recipes",
}

_REPR = reprlib.Repr()  # looks at a few items of a few levels only
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _QUOTED


class UserError(Exception):
    """Bad input. The command line prints its message on one line and exits with code 2.

    Whatever a file or a flag put into the message, it is one line of at most `LONGEST` characters
    that a terminal can show, and what it says at its end, the advice, is kept.
    """

    def __init__(self, message: str) -> None:
        """Shortens a message where it is too long."""
        super().__init__(_shortened(_plain(message)))


class Fault(Exception):
    """The machine fails, as by a full disk. The command line prints one line and exits with 3.

    Its message is shortened as a `UserError`'s is.
    """

    def __init__(self, message: str) -> None:
        """Shortens a message where it is too long."""
        super().__init__(_shortened(_plain(message)))


class Stopped(KeyboardInterrupt):
    """A signal ends a run. The command line prints the message and exits with the code.

    Its message is shortened as a `UserError`'s is.
    """

    def __init__(self, message: str, code: int) -> None:
        """Keeps the code beside the message."""
        super().__init__(_shortened(_plain(message)))
        self.code = code


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """Returns the error for a name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given[:_QUOTED], names, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? " if near else ""
    shown = _some(kind, names)
    return UserError(f"unknown {kind} '{_cut(given, _QUOTED)}': {hint}choose from {shown}")


def _some(kind: str, names: list[str]) -> str:
    """Returns the names, or of many the first ones and where all of them are listed."""
    whole = ", ".join(names)
    if len(whole) < LONGEST // 2:
        return whole
    where = f": {command('list')} {_LISTED[kind]}" if kind in _LISTED else ""
    return few(names) + where


def few(names: Sequence[str]) -> str:
    """Returns names, or of many the first ones and how many more there are."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"


def quoted(value: object) -> str:
    """Returns a value as Python writes it, cut in the middle where it is long or deep."""
    try:
        return _cut(_REPR.repr(value), _QUOTED)
    except ValueError:  # a number of more digits than Python writes
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else "a value"


def reason(error: BaseException) -> str:
    """Returns what another library says of a fault, for the middle of a message."""
    return short(str(error)).rstrip(".") or type(error).__name__


def short(text: str) -> str:
    """Returns what somebody else wrote as a part of a line, which a terminal can show."""
    return _cut(_plain(text), LONGEST // 4)


def _plain(text: str) -> str:
    """Returns a text on one line, without characters that move a terminal's cursor."""
    line = re.sub(r"\s*[\r\n]+\s*", " ", text).strip()
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _shortened(line: str) -> str:
    """Returns at most `LONGEST` characters: words, then lists, then the middle are cut."""
    if len(line) <= LONGEST:
        return line
    line = " ".join(_cut(word, _WORD) for word in line.split(" "))
    if len(line) > LONGEST:
        line = _NAMES.sub(lambda names: few(names[0].split(", ")), line)
    return _cut(line, LONGEST, end=_ADVICE)


def _cut(text: str, most: int, end: int | None = None) -> str:
    """Returns a text without its middle where it is longer than `most`."""
    if len(text) <= most:
        return text
    end = most // 3 if end is None else end
    return f"{text[: most - end - 3]}...{text[-end:]}"


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
