"""What a person sees: progress, tables, lists. Plain lines when not on a terminal."""

import statistics
import time
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedjax_nc import protocols
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import MODELS

_PARTITIONS = {
    "iid": "equal random shares",
    "shards": "per_client single-label shards each; the test set dealt alike (FedDr+)",
    "dirichlet": "class shares from Dir(alpha); rules lda, fedetf, feddw",
    "classes": "per_client classes each",
    "quantity": "sizes from Dir(alpha), labels alike",
}
_LINE_SECONDS = 5.0  # between plain progress lines


class Progressing:
    """Shows rounds as they finish; a context manager because a bar must be closed."""

    def __init__(self, method: str, participants: int) -> None:
        """Prepare; nothing is shown before the first round."""
        self.console = Console(stderr=True)
        self.method, self.participants = method, participants
        self.description, self.seeds = method, 1
        self.first: int | None = None
        self.start_time = self.printed = time.monotonic()
        self.accuracy = ""
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(),
            console=self.console, disable=not self.console.is_terminal)  # fmt: skip
        self.job: Any = None

    def __enter__(self) -> "Progressing":
        """Start the bar."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar."""
        self.bar.stop()

    def note(self, message: str) -> None:
        """Say something once."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def start(self, seeds: tuple[int, ...]) -> None:
        """These seeds are trained now."""
        self.first, self.accuracy, self.seeds = None, "", len(seeds)
        numbers = " ".join(map(str, seeds))
        self.description = f"{self.method} seed{'s' if len(seeds) > 1 else ''} {numbers}"
        self.job = self.bar.add_task(self.description, total=None, text="compiling")

    def round(self, rows: list[dict[str, Any]], rounds: int) -> None:
        """Show a finished round of all seeds."""
        number, now = rows[0]["round"], time.monotonic()
        if self.first is None:
            self.first, self.start_time = number, now  # compile time is not in the estimate
        done, last = number - self.first, number == rounds
        if "global_accuracy" in rows[0]:
            values = " ".join(f"{row['global_accuracy']:.3f}" for row in rows)
            self.accuracy = f"accuracy {values}"
        text = f"round {number}/{rounds}  {self.accuracy}"
        if done:
            each = (now - self.start_time) / done
            text += f"  {self.seeds * self.participants / max(each, 1e-9):.1f} clients/s"
            if not last and not self.console.is_terminal:
                text += f"  eta {each * (rounds - number):.0f} s"
        self._show(self.job, self.description, text, number, rounds)

    def stage(self, name: str, done: int, total: int) -> None:
        """Show how far the work after the rounds is."""
        if self.bar.tasks[-1].description != name:
            self.bar.add_task(name, total=total, text="")
        self._show(self.bar.tasks[-1].id, name, f"client {done}/{total}", done, total)

    def _show(self, job: Any, name: str, text: str, done: int, total: int) -> None:
        self.bar.update(job, total=total, completed=done, text=text)
        now = time.monotonic()
        due = done == total or now - self.printed >= _LINE_SECONDS
        if due and not self.console.is_terminal:
            self.note(f"{name}: {text}")
            self.printed = now


def show_results(summaries: list[dict[str, Any]]) -> None:
    """The final table: a row per seed, and mean ± std below."""
    columns = {
        "global_accuracy": "global", "client_accuracy": "clients",
        "client_accuracy_worst": "worst",
        "personal_accuracy": "personal", "finetuned_accuracy": "fine-tuned",
        "calibrated_accuracy": "calibrated",
        "seconds_per_round": "s/round", "compile_seconds": "compile",
    }  # fmt: skip
    head = summaries[0]
    table = Table(title=f"{head['method']} on {head['dataset']}, {head['model']}, "
                        f"{head['rounds']} rounds ({head['protocol']})",
                  box=box.SIMPLE_HEAD, padding=0, pad_edge=False)  # fmt: skip
    table.add_column("seed")
    shown = [k for k in columns if any(s.get(k) is not None for s in summaries)]
    for key in shown:
        table.add_column(columns[key], justify="right")
    for summary in summaries:
        table.add_row(str(summary["seed"]), *(_cell(k, summary.get(k)) for k in shown))
    if len(summaries) > 1:
        cells = []
        for key in shown:
            values = [s[key] for s in summaries if s.get(key) is not None]
            scale = 100 if "accuracy" in key else 1
            mean, std = statistics.fmean(values), statistics.pstdev(values)
            cells.append(f"{mean * scale:.1f}±{std * scale:.1f}")
        table.add_row("mean±std", *cells)
    Console().print(table)


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 100:.2f}" if "accuracy" in key else f"{value:.2f}"


def show_list(dataset: str, messages: dict[str, Any]) -> None:
    """Everything that can be named on the command line; bytes are per client and round."""
    console = Console()
    title = f"Methods (upload per client and round on {dataset})"
    methods = Table("method", "family", "venue", "upload", "hyperparameters", "paper", title=title)
    for entry in catalogue.bases().values():
        found = messages.get(entry.name)  # none where no model takes such data
        size = f"{found.up / 1e3:.1f} kB ({found.model})" if found else ""
        methods.add_row(entry.name, entry.family, entry.venue, size, _hyper(entry),
                        entry.sections["Paper"])  # fmt: skip
    console.print(methods)
    extra = Table(
        "regulariser", "hyperparameters", "summary", title="Regularisers: 'method | name'"
    )
    for entry in catalogue.regularisers().values():
        extra.add_row(entry.name, _hyper(entry), entry.summary)
    console.print(extra)
    models = Table("model", "what", title="Models")
    for spec in MODELS.values():
        models.add_row(spec.name, spec.summary)
    console.print(models)
    data = Table("dataset", "shape", "classes", "train", "test", "from", title="Datasets")
    for spec in DATASETS.values():
        shape = "x".join(map(str, spec.shape))
        data.add_row(
            spec.name, shape, str(spec.classes), str(spec.train), str(spec.test), spec.source
        )
    console.print(data)
    how = Table("protocol", "what", title="Protocols")
    for name, protocol in protocols.PROTOCOLS.items():
        how.add_row(name, (protocol.__doc__ or "").splitlines()[0])
    console.print(how)
    partitions = Table("partition", "what", title="Partitions")
    for name, text in _PARTITIONS.items():
        partitions.add_row(name, text)
    console.print(partitions)


def _hyper(entry: catalogue.Entry) -> str:
    return ", ".join(f"{k}={v}" for k, v in entry.hyper.items())


def show_facts(title: str, facts: dict[str, str]) -> None:
    """Two columns: what, and how much."""
    table = Table(title=title, show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    Console().print(table)
