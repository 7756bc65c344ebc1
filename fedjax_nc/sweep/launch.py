"""Where the processes of a sweep run: here, on a Ray cluster, or as Slurm's jobs."""

import contextlib
import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc.errors import UserError, reason, unknown
from fedjax_nc.sweep import work
from fedjax_nc.sweep.work import Order

HERE = "local"
LAUNCHERS = (HERE, "ray", "slurm")
LOST = 1000  # in place of the exit code of a process of which nobody knows how it ended
_EXTRAS = {"ray": "ray", "submitit": "slurm"}
_RETRIES = 100  # times that a job goes on after its time limit


class Where(NamedTuple):
    """What a person says of where processes run."""

    launcher: str = HERE
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None starts one here
    gpus: float = 0.0  # of each process
    cluster: str = "slurm"  # or local: submitit's own stand-in for it
    partition: str | None = None
    minutes: int = 1440
    memory_gb: float | None = None
    cpus: int = 1
    warn_seconds: int = 120


class Job(NamedTuple):
    """A process that was started somewhere."""

    poll: Callable[[], int | None]  # its exit code when it has ended
    stop: Callable[[], object]  # asks it to save and end
    kill: Callable[[], object]  # ends it at once


class Launcher(NamedTuple):
    """Starts processes, so many at once as there is room for."""

    start: Callable[[Sequence[Order]], list[Job]]
    room: int


def check(where: Where) -> None:
    """Refuses a launcher that does not exist or is not installed, and flags of another one."""
    if where.launcher not in LAUNCHERS:
        raise unknown("launcher", where.launcher, allowed=LAUNCHERS)
    if where.workers < 1:
        raise UserError(f"--workers={where.workers}: give a number above zero")
    if where.gpus < 0:
        raise UserError(f"--gpus={where.gpus:g}: give zero or more")
    if where.address is not None and where.launcher != "ray":
        raise UserError("--address is of a Ray cluster: add --launcher=ray")
    if where.gpus and where.launcher == HERE:
        raise UserError("--gpus has no effect with --launcher=local: choose ray or slurm")
    if where.launcher == "slurm" and where.gpus != int(where.gpus):
        raise UserError(f"--gpus={where.gpus:g}: Slurm gives whole ones; fractions need Ray")
    for name in ("minutes", "cpus", "warn_seconds"):
        if getattr(where, name) < 1:
            raise UserError(f"--slurm.{name}={getattr(where, name)}: give a number above zero")
    if where.launcher == "ray":
        installed("ray")
    if where.launcher == "slurm":
        installed("submitit")


def installed(name: str) -> Any:
    """Imports a package that only one launcher needs; says how to get it where it is absent."""
    try:
        return importlib.import_module(name)
    except ImportError:
        extra = _EXTRAS[name]
        raise UserError(
            f"--launcher={extra} needs {name}, which is not installed: pip install "
            f"'fedjax_nc[{extra}]'"
        ) from None


@contextlib.contextmanager
def opened(where: Where, folder: Path) -> Iterator[Launcher]:
    """Opens a launcher; what it needs for itself it keeps in the folder."""
    if where.launcher == "ray":
        with _ray(where) as launcher:
            yield launcher
    elif where.launcher == "slurm":
        yield _slurm(where, folder)
    else:
        yield Launcher(_here, where.workers)


def _here(orders: Sequence[Order]) -> list[Job]:
    """Starts processes of this machine."""
    processes = [work.start(order) for order in orders]
    return [
        Job(
            lambda p=p: work.ended(p),
            stop=lambda p=p: p.send_signal(signal.SIGTERM),
            kill=p.kill,
        )
        for p in processes
    ]


@contextlib.contextmanager
def _ray(where: Where) -> Iterator[Launcher]:
    """Starts processes as tasks of a Ray cluster, by default one of this machine alone."""
    ray = installed("ray")
    own = {} if where.address else {"num_cpus": where.workers, "include_dashboard": False}
    try:
        ray.init(where.address, log_to_driver=False, logging_level="error", **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = f"--address={where.address}" if where.address else "--launcher=ray"
        raise UserError(f"{told}: Ray cannot be reached ({reason(error)})") from error
    train = ray.remote(num_cpus=1, num_gpus=where.gpus, max_retries=0)(work.finish)

    def code_of(task: Any) -> int | None:
        if not ray.wait([task], timeout=0)[0]:
            return None
        try:
            return ray.get(task)
        except ray.exceptions.RayError:  # its node is gone, or it was ended
            return LOST

    def start(orders: Sequence[Order]) -> list[Job]:
        tasks = [train.remote(order) for order in orders]
        return [
            Job(
                lambda t=t: code_of(t),
                stop=_stop_of(order),
                kill=lambda t=t: ray.cancel(t, force=True),
            )
            for t, order in zip(tasks, orders, strict=True)
        ]

    try:
        yield Launcher(start, where.workers)
    finally:
        ray.shutdown()


class Requeued:
    """A cell as a job of Slurm: near its time limit it saves, and goes on as a new job."""

    def __init__(self, order: Order) -> None:
        """Keeps what is to be trained."""
        self.order = order

    def __call__(self) -> int:
        """Trains, and returns the exit code of the process."""
        self.process = work.start(self.order)
        self.process.wait()
        return work.ended(self.process) or 0

    def checkpoint(self) -> Any:
        """Lets the process save and end; returns what is submitted in its place."""
        self.process.terminate()
        self.process.wait()
        return installed("submitit").helpers.DelayedSubmission(Requeued(self.order))


def _slurm(where: Where, folder: Path) -> Launcher:
    """Submits processes as arrays of jobs; all that wait are given to Slurm at once."""
    submitit = installed("submitit")
    own = {"slurm_max_num_timeout": _RETRIES} if where.cluster == "slurm" else {}
    try:
        executor = submitit.AutoExecutor(folder / "jobs", cluster=where.cluster, **own)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--launcher=slurm: {reason(error)}: start it where sbatch is") from error
    wanted = {
        "name": "fedjax-nc",
        "timeout_min": where.minutes,
        "gpus_per_node": int(where.gpus),
        "cpus_per_task": where.cpus,
        "mem_gb": where.memory_gb,
        "slurm_partition": where.partition,
        "slurm_array_parallelism": where.workers,
        "slurm_signal_delay_s": where.warn_seconds,
    }
    executor.update_parameters(**{k: v for k, v in wanted.items() if v is not None})

    def code_of(job: Any) -> int | None:
        if not job.done():
            return None
        try:
            return job.result()
        except Exception:  # it was cancelled, or its node is gone
            return LOST

    def start(orders: Sequence[Order]) -> list[Job]:
        with executor.batch():
            jobs = [executor.submit(Requeued(order)) for order in orders]
        return [
            Job(lambda j=j: code_of(j), stop=_stop_of(order, j), kill=j.cancel)
            for j, order in zip(jobs, orders, strict=True)
        ]

    # Slurm has the queue; its stand-in has none
    return Launcher(start, 10**6 if where.cluster == "slurm" else where.workers)


def _stop_of(order: Order, job: Any = None) -> Callable[[], None]:
    """Returns how a process elsewhere is asked to save and end; one that waits is taken back."""

    def stop() -> None:
        if order.stop is not None:
            order.stop.touch()
        if job is not None and job.state == "PENDING":
            job.cancel()

    return stop
