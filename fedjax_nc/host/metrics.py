"""From a run's numbers to its records: a row per round, a summary at the end."""

import statistics
from typing import Any

import numpy as np

from fedjax_nc import config
from fedjax_nc.errors import UserError
from fedjax_nc.train import evaluate
from fedjax_nc.train.round import RoundMetrics


def row(number: int, lr: float, metrics: RoundMetrics, where: str, last_good: int) -> dict:
    """A finished round as a record; refuses one in which a client's update is not finite."""
    if not metrics.finite.all():
        clients = ", ".join(str(i) for i in np.asarray(metrics.ids)[~metrics.finite][:5])
        raise UserError(
            f"{where}round {number}, client {clients}: the update is NaN or infinite; lower "
            f"--local.lr (now {lr:g}) or set --local.clip. Last good checkpoint: round {last_good}"
        )
    sums = {k: float(v) for k, v in metrics.sums.items()}
    examples = max(sums.pop("examples"), 1.0)
    return {"round": number, "lr": lr} | {k: v / examples for k, v in sums.items()}


def tested(scores: dict[str, evaluate.Score]) -> dict[str, float]:
    """What an evaluation adds to its round's record."""
    accuracy, loss = evaluate.overall(scores["global"])
    clients = evaluate.summarise(scores["clients"])
    return {"global_accuracy": accuracy, "global_loss": loss} | spread("client", clients)


def spread(name: str, summary: evaluate.Summary) -> dict[str, float]:
    """Accuracy over clients, by the names of records."""
    return {
        f"{name}_accuracy": summary.mean,
        f"{name}_accuracy_std": summary.std,
        f"{name}_accuracy_worst": summary.worst,
    }


def over_time(name: str, scores: evaluate.Score) -> dict[str, Any]:
    """Accuracy over clients at the end of personal training, and after each of its steps."""
    steps = [
        evaluate.summarise(evaluate.Score(*(np.asarray(x)[i] for x in scores)))
        for i in range(len(scores.correct))
    ]
    curve = {f"{name}_curve": [step.mean for step in steps]} if len(steps) > 1 else {}
    return spread(name, steps[-1]) | curve


def summarise(
    cfg: config.RunConfig, rows: list[dict[str, Any]], traffic: tuple[int, int], seeds: int
) -> dict[str, Any]:
    """What a run comes to: accuracies as the protocol reports them, time and traffic.

    Times are the program's, which ran so many seeds.
    """
    seen = [row for row in rows if "global_accuracy" in row]
    reported = seen[-cfg.evaluation.last :]
    cold = [row["seconds"] for row in rows if row["compiled"]]  # again after every resume
    steady = statistics.fmean([row["seconds"] for row in rows if not row["compiled"]] or cold)
    up, down = traffic
    total = cfg.rounds * cfg.federation.participants
    return {
        "method": cfg.method,
        "dataset": cfg.dataset,
        "model": cfg.model,
        "protocol": cfg.protocol,
        "seed": cfg.seed,
        "rounds": cfg.rounds,
        "global_accuracy": statistics.fmean(row["global_accuracy"] for row in reported),
        "averaged_rounds": len(reported),
        "final_accuracy": seen[-1]["global_accuracy"],
        "best_accuracy": max(row["global_accuracy"] for row in seen),
        "global_loss": seen[-1]["global_loss"],
        **{k: seen[-1][k] for k in seen[-1] if k.startswith("client_")},
        "seconds_per_round": steady,
        "compile_seconds": sum(max(seconds - steady, 0.0) for seconds in cold),
        "clients_per_second": seeds * cfg.federation.participants / steady,
        "seeds_in_parallel": seeds,
        "bytes_up": up * total,
        "bytes_down": down * total,
        "bytes_up_per_client": up,
        "bytes_down_per_client": down,
    }
