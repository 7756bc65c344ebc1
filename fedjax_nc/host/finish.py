"""What follows the last round: personal models, calibration, the summary and its pictures."""

import dataclasses
import json
from functools import partial
from typing import Any

import numpy as np

from fedjax_nc.figures import bias, curves
from fedjax_nc.host import passes, records
from fedjax_nc.host.assemble import Job
from fedjax_nc.host.loop import Seed, tested_weights
from fedjax_nc.host.reporting import Reporter
from fedjax_nc.io import facts, files
from fedjax_nc.metrics import measure
from fedjax_nc.train import schedule
from fedjax_nc.train import seeds as axis
from fedjax_nc.train.evaluate import make_calibrate, make_evaluate
from fedjax_nc.train.personalise import make_personalise, personalise
from fedjax_nc.train.traffic import by_part
from fedjax_nc.types import Hyper, State, Weights


def finish(
    job: Job, seeds: list[Seed], *, state: State, reporter: Reporter
) -> list[dict[str, Any]]:
    """Returns the summary of each seed and leaves it, with pictures, where it has a directory."""
    weights = _calibrated(job, state)
    personal = _personal(job, state, calibrated=weights, reporter=reporter)
    calibrated = _tested(job, weights)
    moved = by_part(job.task, job.data.pool)
    target = job.config.evaluation.stop_at
    cost = None if target is None else passes.cost_of(job)
    summaries = []
    for i, seed in enumerate(seeds):
        summary = records.summarise(
            seed.config, seed.rows, traffic=moved, seeds=len(seeds), cost=cost
        )
        if target is not None and summary["rounds_to_target"] is None:
            reporter.note(
                f"seed {seed.config.seed}: accuracy {target:g} (--evaluation.stop_at) was not "
                f"reached in {summary['rounds']} rounds, the best was "
                f"{summary['best_accuracy']:.4f}"
            )
        if summary.get("diverged"):
            answers = summary["rounds"] * seed.config.federation.participants
            answers -= summary.get("dropped", 0)
            reporter.note(
                f"warning: seed {seed.config.seed}: {summary['diverged']} of {answers} answers "
                "were left out as not finite (--federation.nan=skip)"
            )
        summaries.append(summary | personal[i] | calibrated[i])
        if seed.directory is not None:
            _leave_files(job, seed, number=i, summary=summaries[-1])
    return summaries


def _leave_files(job: Job, seed: Seed, *, number: int, summary: dict[str, Any]) -> None:
    cfg, directory = seed.config, seed.directory
    assert directory is not None
    if seed.lock is not None:
        seed.lock.look()
    counts = np.asarray(job.data.class_counts)
    counts = counts.reshape(-1, *counts.shape[-2:])  # of each seed, or everybody's
    title = f"{cfg.method} on {cfg.dataset} ({cfg.model}, seed {cfg.seed})"
    with files.replacing(directory / "curves.png") as file:
        curves.one_run(seed.rows, title).savefig(file, format="png", dpi=120)
    if "finetuned_curve" in summary:
        start, steps = summary["client_accuracy"], summary["finetuned_curve"]
        with files.replacing(directory / "finetuned.png") as file:
            curves.finetuning(start, steps, title=title).savefig(file, format="png", dpi=120)
    with files.replacing(directory / "labels.png") as file:
        bias.labels(counts[number % len(counts)], title).savefig(file, format="png")
    text = json.dumps(facts.sealed(summary), indent=2) + "\n"
    files.write_atomically(directory / "summary.json", text)


def _calibrated(job: Job, state: State) -> Weights | None:
    """Returns the global models after the method's step that follows the last round, if any."""
    if job.task.method.posthoc is None:
        return None
    size = job.config.evaluation.batch_size
    calibrate = make_calibrate(job.task, job.executor, batch_size=size, seeds=job.seeds)
    return calibrate(tested_weights(job, state), state.key, job.feed)


def _tested(job: Job, calibrated: Weights | None) -> list[dict[str, Any]]:
    """Tests each seed's calibrated global model."""
    if calibrated is None:
        return [{} for _ in job.configs]
    size = job.config.evaluation.batch_size
    evaluate = make_evaluate(job.task, job.executor, batch_size=size, seeds=job.seeds)
    scores = evaluate(calibrated, job.feed.tests())["global"]
    return [measure("calibrated", axis.take(scores, i)) for i in range(len(job.configs))]


def _personal(
    job: Job, state: State, *, calibrated: Weights | None, reporter: Reporter
) -> list[dict[str, Any]]:
    """Tests every client's own model: after one more local training, and fine-tuned.

    The former is also tested from the calibrated global model, as FedETF's code tests CCVR.
    """
    cfg, method = job.config, job.task.method
    results: list[dict[str, Any]] = [
        {"personal_accuracy": None, "finetuned_accuracy": None} for _ in job.configs
    ]
    hyper = schedule.make_hyper(job.task, int(np.ravel(state.round)[0]) - 1)
    wanted = [
        ("personal", cfg.evaluation.personal, method.phases, hyper.term_weights),
        ("finetuned", cfg.evaluation.finetune, method.finetune, ()),
    ]
    for whose, on, phases, term_weights in wanted:
        if not on or not phases:
            continue
        official = whose == "personal" and cfg.evaluation.personal_global
        train = make_personalise(
            job.task,
            job.executor,
            batch_size=cfg.evaluation.batch_size,
            phases=phases,
            official=official,
            seeds=job.seeds,
        )
        starts = {whose: state}
        if whose == "personal" and calibrated is not None:
            starts["calibrated_personal"] = dataclasses.replace(state, weights=calibrated)
        for name, start in starts.items():
            scores = personalise(
                job.task,
                job.executor,
                train=train,
                state=start,
                hyper=Hyper(hyper.lr, term_weights),
                feed=job.feed,
                progress=partial(reporter.stage, f"{name.replace('_', ' ')} models"),
                official=official,
            )
            for i, result in enumerate(results):
                result |= records.over_time(name, axis.take(scores["own"], i))
                if official and name == "personal":
                    mine = axis.take(scores["official"], i)
                    result |= records.over_time("personal_global", mine)
    return results
