"""Small mistakes in training and methods, each tried on the tests that ought to notice it.

    python tests/mutations.py              # all of them, which takes hours
    python tests/mutations.py 3 17         # these
    python tests/mutations.py --list

A mistake is noticed if a test fails. Every one is tried in a copy of the project.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".git", ".venv*", ".pytest_cache", "runs", "__pycache__")


class Mistake(NamedTuple):
    """One change of one place, and the tests that are asked."""

    file: str  # below fedjax_nc
    was: str
    becomes: str
    tests: tuple[str, ...]


def read() -> list[Mistake]:
    """Returns the mistakes of mutations.yaml."""
    content = yaml.safe_load((ROOT / "tests/mutations.yaml").read_text())
    return [
        Mistake(**mistake | {"tests": tuple(content["tests"][mistake["tests"]])})
        for mistake in content["mistakes"]
    ]


def noticed(mistake: Mistake, tests: tuple[str, ...]) -> str:
    """Returns the first test that fails on a mistake, or nothing."""
    with tempfile.TemporaryDirectory() as home:
        copy = Path(home) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        file = copy / "fedjax_nc" / mistake.file
        text = file.read_text()
        if text.count(mistake.was) != 1:
            raise SystemExit(f"{mistake.file} has {text.count(mistake.was)} times {mistake.was!r}")
        file.write_text(text.replace(mistake.was, mistake.becomes))
        env = os.environ | {"PYTHONPATH": str(copy)}
        files = [f"tests/test_{name}.py" for name in tests]  # the likeliest first
        command = [sys.executable, "-m", "pytest", "-x", *files]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
        if done.returncode not in (0, 1, 2):
            raise SystemExit(done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        found = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        if done.returncode:
            return found[0].split(" - ")[0] if found else done.stdout[-300:]
    return ""


def main() -> None:
    """Tries the mistakes and prints the share that is noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="of mistakes; all if none is given")
    parser.add_argument("--list", action="store_true", help="print them")
    parser.add_argument(
        "--tests", nargs="*", default=(), help="these instead: round, variants, ..."
    )
    args = parser.parse_args()
    found, mistakes = 0, read()
    numbers = args.numbers or range(1, len(mistakes) + 1)

    def told(number: int) -> str:
        mistake = mistakes[number - 1]
        return f"{number:2} {mistake.file}: {mistake.was!r} -> {mistake.becomes!r}"

    if args.list:
        print("\n".join(map(told, numbers)))
        return

    def tried(number: int) -> str:
        return noticed(mistakes[number - 1], tuple(args.tests) or mistakes[number - 1].tests)

    with ThreadPool(2) as pool:  # each is a process of its own
        for number, test in zip(numbers, pool.imap(tried, numbers), strict=True):
            found += bool(test)
            print(f"{told(number)}\n   {test or 'NOT NOTICED'}", flush=True)
    print(f"{found} of {len(numbers)} noticed")


if __name__ == "__main__":
    main()
