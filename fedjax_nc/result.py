"""What a run comes to in Python: curves, summary, tables, plots, weights and analyses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_nc import tables
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import NOTHING
from fedjax_nc.host.records import average
from fedjax_nc.host.session import Outcome
from fedjax_nc.io import checkpoint
from fedjax_nc.types import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_METRIC = ("round", "compiled")


@dataclass(frozen=True, repr=False)
class Result:
    """One configuration's run over all its seeds; arrays have a leading axis of seeds."""

    outcomes: tuple[Outcome, ...]

    def __repr__(self) -> str:
        """Says what was run and what it came to."""
        cfg, seeds = self.config, len(self.outcomes)
        reached = f"{100 * self.summary['global_accuracy']:.2f} %"
        return f"<Result {cfg.method}: {tables.in_words(cfg)}, {seeds} seed(s), global {reached}>"

    @property
    def config(self) -> RunConfig:
        """Every setting as resolved; of several seeds, the first's."""
        return self.outcomes[0].config

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the leading axis."""
        return tuple(outcome.config.seed for outcome in self.outcomes)

    @cached_property
    def rounds(self) -> np.ndarray:
        """The tested rounds, counted from 1, up to where the first seed ends."""
        return np.array([row["round"] for row in self._tested[0]])

    @cached_property
    def curves(self) -> dict[str, np.ndarray]:
        """Every metric of the tested rounds, [seeds, tested rounds]."""
        first = self._tested[0][0]
        # a loss is None in a round in which everybody failed
        kinds = (float, type(None))
        names = [k for k, v in first.items() if isinstance(v, kinds) and k not in _NO_METRIC]
        return {
            name: np.array([[row[name] for row in rows] for rows in self._tested], float)
            for name in names
        }

    @property
    def rows(self) -> tuple[list[dict[str, Any]], ...]:
        """The records of all rounds, of each seed."""
        return tuple(outcome.rows for outcome in self.outcomes)

    @property
    def summaries(self) -> tuple[dict[str, Any], ...]:
        """The content of summary.json, of each seed."""
        return tuple(outcome.summary for outcome in self.outcomes)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary: numbers are means over seeds, `seeds` tells which."""
        found: dict[str, Any] = {}
        for name in self.summaries[0]:
            values: list[Any] = [summary.get(name) for summary in self.summaries]
            alike = all(value == values[0] for value in values)
            if any(value is None for value in values):  # such as a target that a seed missed
                found[name] = None
            elif all(isinstance(value, list) for value in values):
                found[name] = average(values)
            elif isinstance(values[0], float) or (isinstance(values[0], int) and not alike):
                found[name] = float(np.mean(values))
            else:
                found[name] = values[0]
        found.pop("seed")
        return found | {"seeds": list(self.seeds)}

    @property
    def directories(self) -> tuple[Path | None, ...]:
        """Each seed's run directory; None of a run in memory."""
        return tuple(outcome.directory for outcome in self.outcomes)

    @property
    def directory(self) -> Path | None:
        """The run directory; of several seeds, the first's."""
        return self.directories[0]

    @cached_property
    def weights(self) -> Weights:
        """The global model after the last round, as numpy arrays with an axis of seeds."""
        each = [_weights(outcome) for outcome in self.outcomes]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *each)

    def table(
        self,
        form: str = "markdown",
        *,
        columns: Sequence[str] = (),
        targets: Sequence[float] = (),
    ) -> str:
        """Writes the run as a table with one row: markdown, latex or csv.

        Args:
          form: of the text.
          columns: names of metrics to show in place of the usual accuracies.
          targets: accuracies, as shares, to show the rounds to.
        """
        return table(self, form=form, columns=columns, targets=targets)

    def plot(self) -> "Figure":
        """Draws accuracy over rounds, mean and spread over seeds, as a matplotlib figure."""
        return plot(self)

    def analyse(self, *studies: str, seed: int | None = None, **options: Any) -> dict[str, Any]:
        """Explains one seed's last model; returns the numbers of each study.

        Args:
          *studies: of hessian, landscape, collapse, spectrum, alignment, relations, bias and cost;
            by default all of them, which takes minutes.
          seed: which one; by default the first.
          **options: the flags of `analyse`, such as examples=500.
        """
        from fedjax_nc.study import analyse as analyses
        from fedjax_nc.study.options import STUDIES, Options
        from fedjax_nc.study.subject import Subject, load

        chosen = self.seeds[0] if seed is None else seed
        if chosen not in self.seeds:
            raise UserError(f"seed {chosen} was not run: choose from {self.seeds}")
        outcome = self.outcomes[self.seeds.index(chosen)]
        if outcome.directory is not None and outcome.given == NOTHING:
            subject = outcome.directory
        elif outcome.job is not None and outcome.state is not None:
            subject = Subject(
                job=outcome.job, state=outcome.state, rows=outcome.rows, options=Options()
            )
        else:
            assert outcome.directory is not None
            subject = load(outcome.directory, Options(), given=outcome.given)
        return analyses.analyse_run(subject, studies or STUDIES, **options)

    @cached_property
    def _tested(self) -> list[list[dict[str, Any]]]:
        last = min(rows[-1]["round"] for rows in self.rows)
        return [
            [row for row in rows if "global_accuracy" in row and row["round"] <= last]
            for rows in self.rows
        ]


def table(
    *results: Result,
    form: str = "markdown",
    columns: Sequence[str] = (),
    targets: Sequence[float] = (),
) -> str:
    """Writes several results as one table: markdown, latex or csv.

    Args:
      *results: a row for each.
      form: of the text.
      columns: names of metrics to show in place of the usual accuracies.
      targets: accuracies, as shares, to show the rounds to, and the speed-up beside the first.
    """
    rows = [tables.Row(r.config, r.summaries, records=r.rows) for r in results]
    return tables.render(tables.compare(rows, columns, targets=targets), form)


def plot(*results: Result, title: str = "") -> "Figure":
    """Draws the accuracy of several results over rounds: means and spread over their seeds."""
    from fedjax_nc.figures import curves

    labels = _apart([r.config for r in results])
    drawn = {
        label: (r.rounds, r.curves["global_accuracy"])
        for label, r in zip(labels, results, strict=True)
    }
    return curves.accuracy(drawn, title=title or tables.in_words(results[0].config))


def _apart(configs: Sequence[RunConfig]) -> list[str]:
    """Returns a name for each configuration; equal methods are told apart by their number."""
    names = [cfg.method for cfg in configs]
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _weights(outcome: Outcome) -> Weights:
    if outcome.state is not None:
        return jax.tree.map(np.asarray, outcome.state.weights)
    assert outcome.directory is not None
    folder = outcome.directory / "ckpt"
    stored: Mapping[str, Any] = checkpoint.raw(folder, checkpoint.last(folder))["weights"]
    return Weights(stored["params"], stored.get("stats") or {})
