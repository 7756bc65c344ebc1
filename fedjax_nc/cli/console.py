"""What a person sees: progress, tables, lists. Plain lines when not on a terminal."""

import statistics
import time
from collections.abc import Callable
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
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
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
        self._stage(name, f"client {done}/{total}", done, total)

    def step(self, run: str, name: str, done: int, total: int) -> None:
        """Show how far the analysis of a run is."""
        self._stage(f"{run}: {name}", f"{done}/{total}", done, total)

    def _stage(self, name: str, text: str, done: int, total: int) -> None:
        if not self.bar.tasks or self.bar.tasks[-1].description != name:
            self.bar.add_task(name, total=total, text="")
        self._show(self.bar.tasks[-1].id, name, text, done, total)

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
    table = Table(
        title=f"{head['method']} on {head['dataset']}, {head['model']}, "
        f"{head['rounds']} rounds ({head['protocol']})",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
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


def show_list(what: str, dataset: str, messages: Callable[[], dict[str, Any]]) -> None:
    """What can be named on the command line, one kind of it or `all`."""
    tables = {
        "methods": lambda: (_methods(dataset, messages()), _regularisers()),
        "models": lambda: (_models(),),
        "datasets": lambda: (_datasets(),),
        "protocols": lambda: (_protocols(),),
        "partitions": lambda: (_partitions(),),
    }
    for name in tables if what == "all" else [what]:
        Console().print(*tables[name]())


def _methods(dataset: str, messages: dict[str, Any]) -> Table:
    table = Table(
        "method",
        "paper and venue, hyperparameters",
        "kB up",
        title=f"Methods by family (upload per client and round on {dataset})",
        caption="with the protocol's model or, *, resnet8; more: docs/methods.md",
    )
    table.columns[0].no_wrap = True
    family = ""
    for entry in sorted(catalogue.bases().values(), key=lambda entry: entry.family):
        if entry.family != family:
            family = entry.family
            table.add_section()
            table.add_row(f"[bold]{family}[/]")
        found = messages.get(entry.name)  # none where no model takes such data
        mark = "*" if found and found.model == "resnet8" else ""
        size = f"{found.up / 1e3:.1f}{mark}" if found else ""
        table.add_row(f"  {entry.name}", _described(entry, entry.sections["Paper"]), size)
    return table


def _regularisers() -> Table:
    table = Table("regulariser", "what it is, hyperparameters", title="'method | regulariser'")
    for entry in catalogue.regularisers().values():
        table.add_row(entry.name, _described(entry, entry.summary))
    return table


def _models() -> Table:
    table = Table(
        "model",
        "what; norm, least pixels, who publishes the size",
        "M param",
        "MFLOPs",
        title="Models (sizes for 32x32 colour images and ten classes)",
        caption="MFLOPs: millions of multiply-adds of a forward pass",
    )
    table.columns[0].no_wrap = True
    for spec in MODELS.values():
        text = f"{spec.summary}; {spec.norm}, {spec.min_size}, {spec.counted}"
        parameters = f"{spec.parameters / 1e6:.2f}" if spec.parameters else "-"
        table.add_row(spec.name, text, parameters, f"{spec.mflops:.1f}" if spec.mflops else "-")
    return table


def _datasets() -> Table:
    table = Table("dataset", "shape", "classes", "train", "test", "from", title="Datasets")
    for spec in DATASETS.values():
        shape = "x".join(map(str, spec.shape))
        table.add_row(
            spec.name, shape, str(spec.classes), str(spec.train), str(spec.test), spec.origin
        )
    return table


def _protocols() -> Table:
    table = Table("protocol", "what", title="Protocols")
    for name, protocol in protocols.PROTOCOLS.items():
        table.add_row(name, (protocol.__doc__ or "").splitlines()[0])
    return table


def _partitions() -> Table:
    table = Table("partition", "what", title="Partitions")
    for name, text in _PARTITIONS.items():
        table.add_row(name, text)
    return table


def _described(entry: catalogue.Entry, text: str) -> str:
    hyper = ", ".join(f"{k}={v}" for k, v in entry.hyper.items())
    return f"{text}\n[dim]{hyper}[/]" if hyper else text


def show_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Text in columns, the first on the left."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table, markup=False)


def show_facts(title: str, facts: dict[str, str]) -> None:
    """Two columns: what, and how much."""
    table = Table(title=title, show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    Console().print(table)
