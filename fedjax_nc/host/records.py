"""From a run's numbers to its records: a row per round, a summary at the end."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError
from fedjax_nc.host.passes import Cost
from fedjax_nc.metrics import METRICS, ODD, curve, measure, to_target
from fedjax_nc.train.evaluate import Score
from fedjax_nc.train.round import RoundMetrics


def trained(
    number: int, lr: float, *, metrics: RoundMetrics, where: str, last_saved: int
) -> dict[str, Any]:
    """Returns a finished round's record; refuses one in which a client's update is not finite.

    Args:
      number: the round, counted from 1.
      lr: its learning rate.
      metrics: what the round reports.
      where: how the message begins, such as the seed.
      last_saved: the round of the newest checkpoint.
    """
    if not metrics.finite.all():
        clients = ", ".join(str(i) for i in np.asarray(metrics.ids)[~metrics.finite][:5])
        raise UserError(
            f"{where}round {number}, client {clients}: the update is NaN or infinite; lower "
            f"--local.lr (now {lr:g}) or set --local.clip. Last good checkpoint: round {last_saved}"
        )
    sums = {k: float(v) for k, v in metrics.sums.items()}
    examples = sums.pop("examples")
    means: dict[str, Any] = {k: v / max(examples, 1.0) for k, v in sums.items()}
    who = {name: getattr(metrics, name) for name in ODD}
    failed = {name: int(each.sum()) for name, each in who.items() if each is not None}
    if failed and not examples:  # everybody failed, and a loss of zero would be a lie
        means = dict.fromkeys(means)
    return {"round": number, "lr": lr} | means | failed


def tested(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Returns what an evaluation adds to its round's record."""
    return measure("global", scores["global"]) | measure("client", scores["clients"])


def over_time(whose: str, scores: Score) -> dict[str, Any]:
    """Returns clients' accuracy at the end of personal training, and after each of its steps."""
    steps = [
        measure(whose, jax.tree.map(lambda x, i=i: np.asarray(x)[i], scores))
        for i in range(len(scores.correct))
    ]
    curve = {f"{whose}_curve": [step[f"{whose}_accuracy"] for step in steps]}
    return steps[-1] | (curve if len(steps) > 1 else {})


def summarise(
    cfg: RunConfig,
    rows: list[dict[str, Any]],
    *,
    traffic: Mapping[str, tuple[int, int]],
    seeds: int,
    cost: Cost | None = None,
) -> dict[str, Any]:
    """Returns what a run comes to: accuracies as the protocol reports them, time and traffic.

    Args:
      cfg: the run's configuration.
      rows: the records of all rounds.
      traffic: bytes a client sends and receives in a round, by part.
      seeds: how many seeds the program ran, whose times these are.
      cost: of the method, where the run has a target.
    """
    seen, rounds = [row for row in rows if "global_accuracy" in row], rows[-1]["round"]
    reported = [row for row in seen if row["round"] > rounds - cfg.evaluation.last]
    cold = [row["seconds"] for row in rows if row["compiled"]]  # again after every resume
    steady = statistics.fmean([row["seconds"] for row in rows if not row["compiled"]] or cold)
    up, down = map(sum, zip(*traffic.values(), strict=True))
    total = rounds * cfg.federation.participants
    failed = {name: sum(row[name] for row in rows) for name in ODD if name in rows[-1]}
    summary = {
        "method": cfg.method,
        "dataset": cfg.dataset,
        "model": cfg.model,
        "protocol": cfg.protocol,
        "seed": cfg.seed,
        "rounds": rounds,
        "global_accuracy": statistics.fmean(row["global_accuracy"] for row in reported),
        "averaged_rounds": len(reported),
        "final_accuracy": seen[-1]["global_accuracy"],
        "best_accuracy": max(row["global_accuracy"] for row in seen),
        "global_loss": seen[-1]["global_loss"],
        **_by_class(reported),
        **{k: seen[-1][k] for k in seen[-1] if k.startswith("client_")},
        "seconds_per_round": steady,
        "compile_seconds": sum(max(seconds - steady, 0.0) for seconds in cold),
        "clients_per_second": seeds * cfg.federation.participants / steady,
        "seeds_in_parallel": seeds,
        "bytes_up": up * (total - failed.get("dropped", 0)),
        "bytes_down": down * total,
        "bytes_up_per_client": up,
        "bytes_down_per_client": down,
        "bytes_per_part": {name: list(moved) for name, moved in traffic.items()},
        **failed,
    }
    if cost is None or cfg.evaluation.stop_at is None:
        return summary
    per_round = {
        "bytes_up": up * cfg.federation.participants,
        "bytes_down": down * cfg.federation.participants,
        "mflops": cost.multiply_adds / 1e6,  # FedAlign, table 8: of an example in every round
    }
    found = to_target(curve(rows), cfg.evaluation.stop_at, per_round=per_round)
    if found["round"] is not None:  # who never answers sends nothing
        found["bytes_up"] -= up * sum(row.get("dropped", 0) for row in rows[: found["round"]])
    return summary | {
        "stop_at": cfg.evaluation.stop_at,
        "rounds_to_target": found.pop("round"),
        **{f"{name}_to_target": value for name, value in found.items()},
        "forward_mflops": cost.multiply_adds / 1e6,
        "stored_parameters": cost.parameters,
    }


def average(values: Sequence[Any]) -> Any:
    """Returns the mean of numbers, or of lists place by place; None where one of them is None."""
    if isinstance(values[0], list):
        return [average(places) for places in zip(*values, strict=True)]
    return None if None in values else statistics.fmean(values)


def _by_class(reported: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the global model's other metrics as means over the rounds its accuracy is of.

    Those that a round of an older version does not have are left out.
    """
    given = ("global_accuracy", "global_loss")
    names = [m.name for m in METRICS if m.whose == "global" and m.name not in given]
    return {
        name: average([row[name] for row in reported])
        for name in names
        if all(name in row for row in reported)
    }
