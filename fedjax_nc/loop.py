"""The host's loop: rounds, evaluation, checkpoints, records. Numbers are fetched one round late."""

import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from fedjax_nc import evaluate
from fedjax_nc.data import federated
from fedjax_nc.errors import UserError
from fedjax_nc.io import checkpoint, plots, records, rundir
from fedjax_nc.job import Job, first_state, place
from fedjax_nc.train import local, schedule
from fedjax_nc.train.round import RoundMetrics, make_round, traffic
from fedjax_nc.types import Hyper, State


@runtime_checkable
class Reporter(Protocol):
    """Who shows progress."""

    def note(self, message: str) -> None:
        """Say something once."""
        ...

    def round(self, row: dict[str, Any], rounds: int) -> None:
        """A round has finished."""
        ...

    def stage(self, name: str, done: int, total: int) -> None:
        """Part of what follows the rounds has finished."""
        ...


class Pending(NamedTuple):
    """A dispatched round whose numbers have not been fetched."""

    number: int
    lr: float
    metrics: RoundMetrics
    scores: dict[str, evaluate.Score] | None


def make_hyper(job: Job, round_number: int) -> Hyper:
    """The traced inputs of a round."""
    lr = schedule.learning_rate(job.config.local, round_number)
    weights = tuple(local.default_weights(phase) for phase in job.task.method.phases)
    return Hyper(jnp.asarray(lr, jnp.result_type(float)), weights)


def run(job: Job, directory: Path, reporter: Reporter) -> dict[str, Any]:
    """Train to the end, resuming where a stopped run left its last checkpoint."""
    cfg = job.config
    temporary = directory / "partition.tmp"  # a killed run leaves no half of it
    federated.save_split(temporary, cfg.data, job.split)
    os.replace(temporary, directory / "partition.npz")
    with checkpoint.open_manager(directory / "ckpt") as manager:
        state, rows = _train(job, directory / "metrics.jsonl", manager, reporter)
    summary = summarise(job, state, rows) | _personal(job, state, reporter)
    title = f"{cfg.method} on {cfg.dataset} ({cfg.model}, seed {cfg.seed})"
    plots.curves(directory / "curves.png", rows, title)
    rundir.write_atomically(directory / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _train(job: Job, log: Path, manager, reporter: Reporter) -> tuple[State, list[dict[str, Any]]]:
    """All rounds that are left; returns the final state and the record of every round."""
    state, on_host = first_state(job)
    restored, warnings = checkpoint.restore(manager, state)
    for message in (*job.warnings, *warnings):
        reporter.note(f"warning: {message}")
    state = state if restored is None else place(job, restored, on_host)
    rows = records.cut(log, int(state.round))
    if restored is not None:
        reporter.note(f"resuming after round {int(state.round)}")
    cfg = job.config
    round_fn = make_round(job.task, job.executor, clients_on_host=on_host)
    evaluate_fn = evaluate.make_evaluate(job.task, job.executor, cfg.evaluation.batch_size)
    averaged = cfg.rounds - cfg.evaluation.last
    clock, first = time.perf_counter(), int(state.round)
    waiting: list[Pending] = []

    def finish(done: list[Pending]) -> None:
        nonlocal clock
        new = [_row(job, pending, int(manager.latest_step() or 0)) for pending in done]
        now = time.perf_counter()
        for row in new:
            row["seconds"] = (now - clock) / len(new)
            row["compiled"] = row["round"] == first + 1
            records.append(log, row)
            rows.append(row)
            reporter.round(row, cfg.rounds)
        clock = now

    for number in range(first, cfg.rounds):
        lr = schedule.learning_rate(cfg.local, number)
        state, metrics = round_fn(state, make_hyper(job, number), job.data)
        tested = (number + 1) % cfg.evaluation.every == 0 or number >= averaged
        scores = evaluate_fn(state.weights, job.data) if tested else None
        compiled = number == first  # this round is waited for, so its time is compile time
        save = (number + 1) % cfg.execution.checkpoint_every == 0 or number + 1 == cfg.rounds
        waiting.append(Pending(number, lr, metrics, scores))
        ready = waiting if save or compiled else waiting[:-1]
        finish(ready)
        waiting = waiting[len(ready) :]
        if save:  # only now have this round's numbers been seen to be finite
            checkpoint.save(manager, state)
    return state, rows


def _row(job: Job, done: Pending, last_good: int) -> dict[str, Any]:
    """A finished round as a record; refuses one in which a client's update is not finite."""
    finite = np.asarray(done.metrics.finite)
    if not finite.all():
        clients = ", ".join(str(i) for i in np.asarray(done.metrics.ids)[~finite][:5])
        raise UserError(
            f"round {done.number + 1}, client {clients}: the update is NaN or infinite; lower "
            f"--local.lr (now {done.lr:g}) or set --local.clip. Last good checkpoint: round "
            f"{last_good}"
        )
    sums = {k: float(v) for k, v in done.metrics.sums.items()}
    examples = max(sums.pop("examples"), 1.0)
    row = {"round": done.number + 1, "lr": done.lr} | {k: v / examples for k, v in sums.items()}
    if done.scores is not None:
        accuracy, loss = evaluate.overall(done.scores["global"])
        clients = evaluate.summarise(done.scores["clients"])
        row |= {"global_accuracy": accuracy, "global_loss": loss} | _spread("client", clients)
    return row


def summarise(job: Job, state: State, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run comes to: accuracies as the protocol reports them, time and traffic."""
    cfg = job.config
    tested = [row for row in rows if "global_accuracy" in row]
    reported = tested[-cfg.evaluation.last :]
    cold = [row["seconds"] for row in rows if row["compiled"]]  # one more after every resume
    steady = statistics.fmean([row["seconds"] for row in rows if not row["compiled"]] or cold)
    up, down = traffic(job.task, state)
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
        "final_accuracy": tested[-1]["global_accuracy"],
        "best_accuracy": max(row["global_accuracy"] for row in tested),
        "global_loss": tested[-1]["global_loss"],
        **{k: tested[-1][k] for k in tested[-1] if k.startswith("client_")},
        "seconds_per_round": steady,
        "compile_seconds": max(cold[0] - steady, 0.0),
        "clients_per_second": cfg.federation.participants / steady,
        "bytes_up": up * total,
        "bytes_down": down * total,
        "bytes_up_per_client": up,
    }


def _personal(job: Job, state: State, reporter: Reporter) -> dict[str, float | None]:
    """Accuracy of every client's own model: after one more local training, and fine-tuned."""
    cfg, method = job.config, job.task.method
    result: dict[str, float | None] = {"personal_accuracy": None, "finetuned_accuracy": None}
    hyper = make_hyper(job, cfg.rounds - 1)
    wanted = [("personal", cfg.evaluation.personal, method.phases, hyper.term_weights),
              ("finetuned", cfg.evaluation.finetune, method.finetune, ())]  # fmt: skip
    for name, on, phases, term_weights in wanted:
        if not on or not phases:
            continue
        summary = evaluate.personalise(
            job.task, job.executor, cfg.evaluation.batch_size, phases, state,
            Hyper(hyper.lr, term_weights), job.data, partial(reporter.stage, f"{name} models"),
        )  # fmt: skip
        result |= _spread(name, summary)
    return result


def _spread(name: str, summary: evaluate.Summary) -> dict[str, float]:
    return {
        f"{name}_accuracy": summary.mean,
        f"{name}_accuracy_std": summary.std,
        f"{name}_accuracy_worst": summary.worst,
    }
