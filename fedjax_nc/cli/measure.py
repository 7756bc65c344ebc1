"""The process that counts the work of cells for a sweep, which starts no jax of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fedjax_nc.cli import flags, run
from fedjax_nc.cli.exits import answered, in_words
from fedjax_nc.errors import UserError, command
from fedjax_nc.sweep.expect import Work


def works(argvs: Sequence[Sequence[str]], *, timed: bool) -> list[tuple[Work, str]]:
    """Returns the work of a round of each run and why it cannot be told; in another process.

    Args:
      argvs: flags of runs, each of one seed.
      timed: whether a local step of each is measured too.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fedjax_nc.cli.measure"],
        input=json.dumps({"argvs": [list(argv) for argv in argvs], "timed": timed}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found = []
    for line in done.stdout.splitlines():
        told = json.loads(line)
        found.append((Work(told.get("flops"), told.get("seconds")), told.get("error", "")))
    return [*found, *[(Work(), "")] * (len(argvs) - len(found))]  # it may have been killed


@answered
def measure(argv: list[str]) -> int:
    """Prints a line of JSON for each run that standard input names."""
    del argv
    asked = json.loads(sys.stdin.read())
    for words in asked["argvs"]:
        print(json.dumps(_work(words, timed=asked["timed"])), flush=True)
    return 0


def _work(argv: list[str], *, timed: bool) -> dict[str, Any]:
    """Returns the operations of a run's round and, measured, its seconds."""
    try:
        asked = flags.parse(argv, prog=command("run"))
        run.start_jax(asked)
        from fedjax_nc.host import dry_run
        from fedjax_nc.host.assemble import assemble

        job = assemble(asked.configs[0], strict=asked.strict)
        found: dict[str, Any] = {"flops": dry_run.round_flops(job)}
        if timed and job.executor.jit:
            found["seconds"] = dry_run.expected_seconds(job)[0] / job.config.rounds
        return found
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": in_words(error) or type(error).__name__}


if __name__ == "__main__":
    sys.exit(measure())
