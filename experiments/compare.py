"""Train several methods on the same terms and write one table.

python experiments/compare.py fedavg fedetf "fedbabu | fd" --to docs/results/first.md -- --seeds 0 1
python experiments/compare.py all -- --dataset=cifar10 --data.limit=5000

Everything after `--` goes to every run as flags of run.py. Finished runs are not run again. `all`
is every method; those that cannot do what is asked, such as FedAlign on a network without stages,
are named below the table.
"""

import argparse
import shlex
import statistics
import sys
from pathlib import Path

from fedjax_nc import devices
from fedjax_nc.cli import flags
from fedjax_nc.cli import main as cli
from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue

COLUMNS = {
    "global_accuracy": "global",
    "client_accuracy": "clients",
    "client_accuracy_worst": "worst tenth",
    "personal_accuracy": "personal",
    "finetuned_accuracy": "fine-tuned",
    "calibrated_accuracy": "calibrated",
}


def main(argv: list[str]) -> int:
    """Run all methods; print the table, and append it to a file if asked."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="Train several methods and write one table.")
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--to", help="append the table, with its command, to this Markdown file")
    given = parser.parse_args(argv[:split])
    rest = argv[split + 1 :]
    every = dict.fromkeys(catalogue.bases(), True) if "all" in given.methods else {}
    methods = every | {m: False for m in given.methods if m != "all"}  # may it be left out?
    rows, refused = [], []
    try:
        commands = {m: flags.parse([f"--method={m}", *rest]) for m in methods}
        devices.start(next(iter(commands.values())).configs[0].execution.devices)
        for name, command in commands.items():
            try:
                rows.append(cli.run(command))
            except UserError as error:
                if not methods[name]:
                    raise
                refused.append(f"- `{name}`: {error}")
    except UserError as error:
        return flags.exit_with(error)
    table = markdown(rows) + "".join(f"\n{line}" for line in refused) + "\n" * bool(refused)
    print(table)
    if given.to:
        head = rows[0][0]
        title = f"## {head['dataset']}, {head['model']}, {head['rounds']} rounds\n\n"
        command = f"python experiments/compare.py {shlex.join(argv)}"
        with Path(given.to).open("a") as file:
            file.write(f"{title}```\n{command}\n```\n\n{table}\n")
    return 0


def markdown(rows: list[list[dict]]) -> str:
    """Accuracies in per cent as mean ± std over seeds; seconds and kilobytes of a round."""
    shown = [k for k in COLUMNS if any(s.get(k) is not None for seeds in rows for s in seeds)]
    lines = [f"| method | {' | '.join(COLUMNS[k] for k in shown)} | s/round | kB up | kB down |"]
    lines.append("|---" * (len(shown) + 4) + "|")
    for seeds in rows:
        cells = ["`" + seeds[0]["method"].replace("|", "\\|") + "`"]  # a bare bar ends the cell
        for key in shown:
            values = [100 * s[key] for s in seeds if s.get(key) is not None]
            spread = f" ± {statistics.pstdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
        cells.append(f"{statistics.fmean(s['seconds_per_round'] for s in seeds):.2f}")
        cells += [f"{seeds[0][f'bytes_{way}_per_client'] / 1e3:.0f}" for way in ("up", "down")]
        lines.append(f"| {' | '.join(cells)} |")
    first = rows[0]
    seeds, together = ", ".join(str(s["seed"]) for s in first), first[0]["seeds_in_parallel"]
    whose = f" of {together} seeds at once" if together > 1 else ""
    lines += [
        "",
        f"Per cent, mean ± standard deviation over seeds {seeds}. Kilobytes per client "
        f"and round; seconds of a round{whose}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
