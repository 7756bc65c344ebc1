"""Train several methods on the same terms and write one table.

python experiments/compare.py fedavg fedetf "fedbabu | fd" --to docs/results/first.md -- --seeds 0 1

Everything after `--` goes to every run as flags of run.py. Finished runs are not run again.
"""

import argparse
import shlex
import statistics
import sys
from pathlib import Path

from fedjax_nc import cli, flags
from fedjax_nc.errors import UserError

COLUMNS = {
    "global_accuracy": "global",
    "client_accuracy": "clients",
    "client_accuracy_worst": "worst tenth",
    "personal_accuracy": "personal",
    "finetuned_accuracy": "fine-tuned",
}


def main(argv: list[str]) -> int:
    """Run all methods; print the table, and append it to a file if asked."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="Train several methods and write one table.")
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--to", help="append the table, with its command, to this Markdown file")
    given = parser.parse_args(argv[:split])
    rest = argv[split + 1 :]
    try:
        commands = [flags.parse([f"--method={m}", *rest]) for m in given.methods]
        cli.start_jax(commands[0].configs[0].execution.devices)
        rows = [cli.run(command) for command in commands]
    except UserError as error:
        return flags.exit_with(error)
    table = markdown(rows)
    print(table)
    if given.to:
        head = rows[0][0]
        title = f"## {head['dataset']}, {head['model']}, {head['rounds']} rounds\n\n"
        command = f"python experiments/compare.py {shlex.join(argv)}"
        with Path(given.to).open("a") as file:
            file.write(f"{title}```\n{command}\n```\n\n{table}\n")
    return 0


def markdown(rows: list[list[dict]]) -> str:
    """Accuracies in per cent as mean ± std over seeds, and megabytes up."""
    lines = [f"| method | {' | '.join(COLUMNS.values())} | MB up per client and round |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for seeds in rows:
        cells = ["`" + seeds[0]["method"].replace("|", "\\|") + "`"]  # a bare bar ends the cell
        for key in COLUMNS:
            values = [100 * s[key] for s in seeds if s.get(key) is not None]
            spread = f" ± {statistics.pstdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
        cells.append(f"{seeds[0]['bytes_up_per_client'] / 1e6:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    seeds = ", ".join(str(s["seed"]) for s in rows[0])
    return "\n".join(lines) + f"\n\nPer cent, mean ± standard deviation over seeds {seeds}.\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
