"""Draw the accuracy of finished or running runs over each other and print their table.

python experiments/curves.py runs/cifar10-dirichlet0.1/*/*/seed0 --to docs/results/five_systems.png
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from fedjax_nc.cli.flags import exit_with
from fedjax_nc.errors import UserError
from fedjax_nc.figures import curves
from fedjax_nc.io import records

PERSONAL = {
    "client_accuracy": "clients",
    "personal_accuracy": "personal",
    "finetuned_accuracy": "fine-tuned",
}
LAST = 10  # rounds whose mean is given beside the last one: single rounds swing


def read(directory: Path) -> tuple[str, list[dict], dict]:
    """Name, recorded rounds and summary of a run; of a running one the summary is empty."""
    summary, config = directory / "summary.json", directory / "config.yaml"
    if not config.is_file():
        raise UserError(f"{directory} is not a run directory: it has no config.yaml")
    rows = [row for row in records.read(directory / "metrics.jsonl") if "global_accuracy" in row]
    if not rows:
        raise UserError(f"{directory} has no evaluated round yet")
    found = json.loads(summary.read_text()) if summary.is_file() else {}
    return found.get("method", directory.parent.parent.name), rows, found


def markdown(runs: list[tuple[str, list[dict], dict]]) -> str:
    """A row per run, accuracies in per cent."""
    head = [
        "method",
        "rounds",
        "last round",
        f"mean of last {LAST}",
        "best",
        *PERSONAL.values(),
        "s/round",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, rows, summary in runs:
        values = [100 * row["global_accuracy"] for row in rows]
        cells = ["`" + name.replace("|", "\\|") + "`", str(rows[-1]["round"])]
        cells += [f"{v:.1f}" for v in (values[-1], statistics.fmean(values[-LAST:]), max(values))]
        own = {**rows[-1], **summary}
        cells += [f"{100 * own[k]:.1f}" if own.get(k) is not None else "-" for k in PERSONAL]
        seconds = statistics.median(row["seconds"] for row in rows)
        lines.append(f"| {' | '.join([*cells, f'{seconds:.1f}'])} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Read the runs, print their table, draw them."""
    parser = argparse.ArgumentParser(description="Accuracy of several runs over each other.")
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR")
    parser.add_argument("--to", metavar="PNG", help="write the curves to this picture")
    parser.add_argument("--title", default="")
    given = parser.parse_args(argv)
    try:
        runs = [read(Path(directory)) for directory in given.runs]
    except UserError as error:
        return exit_with(error)
    print(markdown(runs))
    if given.to:
        groups = {name: [rows] for name, rows, _ in runs}
        curves.together(groups, title=given.title).savefig(given.to, dpi=120)
        print(f"\nwritten: {given.to}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
