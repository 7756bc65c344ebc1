"""The Python door: `fnc.run` takes the words of the command's flags and gives back a `Result`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_nc import config, devices, effects, plugins, processes, protocols
from fedjax_nc.cli.console import Progressing
from fedjax_nc.data.catalogue import find
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.host import session
from fedjax_nc.host.assemble import Given, Job, assemble
from fedjax_nc.host.records import tested
from fedjax_nc.host.reporting import Quiet
from fedjax_nc.host.states import place, state_of_seed
from fedjax_nc.host.track import Track
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Method
from fedjax_nc.methods.fingerprint import fingerprint, is_named
from fedjax_nc.result import Result
from fedjax_nc.study.options import TRACKED
from fedjax_nc.train.evaluate import make_evaluate
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.seeds import lead, take
from fedjax_nc.types import State

_GROUPS = ("data", "local", "federation", "evaluation", "execution")
_WORDS = ("dataset", "model", "protocol", "rounds", "hp", "plugin", *_GROUPS)


def run(
    method: str | Method = "fedetf",
    *,
    dataset: str | Path | Sequence[Any] = "mnist5k",
    model: Any = None,
    protocol: str = "quick",
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    hp: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    local: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    seeds_parallel: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    track: Sequence[str] = (),
    track_every: int = 10,
    track_clients: int = 5,
    track_examples: int = 1000,
    plugin: str | Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Trains one method and returns its curves, summary, weights and analyses.

    Every word means what it means as a flag: `local={"lr": 0.1}` is `--local.lr=0.1`.

    Args:
      method: a specification such as "fedavg | fd(beta=0.9)", or a `Method`, built by factories
        (`fnc.methods.fd(beta=0.9)(fnc.methods.fedavg())`) or by hand.
      dataset: a name, a path to an .npz file, hf:owner/name, or the arrays (train_x, train_y,
        test_x, test_y).
      model: a name, or a flax.linen module that maps images to features; by default the protocol's.
      protocol: how a paper runs its experiments, as "feddw" or with one of its regimes as
        "feddw/pathological"; sets the defaults of everything below.
      rounds: communication rounds.
      seeds: seeds of initialisation, sampling and training.
      hp: hyperparameters of the method.
      data: which examples each client holds; `partition` may be a function of (labels, clients,
        seed) that returns a list of indices for each client.
      local: what a client does in a round.
      federation: who takes part, and how updates are averaged.
      evaluation: when and how models are tested.
      execution: how the same round is computed.
      out: where the run directory is made, as the command's, which the same call resumes; None
        keeps everything in memory and writes nothing.
      seeds_parallel: run all seeds as one program.
      overwrite: start again, deleting what this configuration left before.
      strict: refuse clients without data, and to resume on other devices or another jax.
      track: analyses to record while training, of collapse, spectrum, alignment and
        consistency.
      track_every: rounds between two of these records.
      track_clients: clients whose local models `alignment` and `consistency` look at.
      track_examples: test examples that are looked at.
      plugin: files or modules that add methods, models or datasets.
      progress: show a progress bar.

    Returns:
      The result of all seeds.
    """
    cfg, given = _resolved(
        method,
        dataset=dataset,
        model=model,
        protocol=protocol,
        rounds=rounds,
        hp=hp,
        plugin=plugin,
        data=data,
        local=local,
        federation=federation,
        evaluation=evaluation,
        execution=execution,
    )
    for name in track:
        if name not in TRACKED:
            raise unknown("name in track", name, allowed=TRACKED)
    looked = {
        "track_every": track_every,
        "track_clients": track_clients,
        "track_examples": track_examples,
    }
    for name, value in looked.items():
        if value < 1:
            raise UserError(f"{name}={value}: give a number above zero")
        if not track and value != getattr(Track(), name.removeprefix("track_")):
            raise UserError(f"{name}={value} has no effect without track: say what to record")
    request = session.Request(
        _per_seed(cfg, seeds, parallel=seeds_parallel),
        given=given,
        out=None if out is None else str(out),
        seeds_parallel=seeds_parallel,
        overwrite=overwrite,
        strict=strict,
        track=Track(tuple(track), track_every, clients=track_clients, examples=track_examples),
        command=("fedjax_nc.run",),
        plugins=tuple(plugins.record()),
    )
    if not (progress and processes.is_first()):
        return Result(tuple(session.run_seeds(request, Quiet())))
    with Progressing(cfg.method, cfg.federation.participants) as reporter:
        return Result(tuple(session.run_seeds(request, reporter)))


def prepare(
    method: str | Method = "fedetf", *, seed: int = 0, strict: bool = False, **words: Any
) -> Job:
    """Assembles a run for a loop of one's own: its task, data and executor are ready.

    Args:
      method: a specification or a `Method`, as of `run`.
      seed: of initialisation, sampling and training.
      strict: refuse clients without data instead of skipping them.
      **words: the other words of `run` that decide what is computed, such as dataset and local.
    """
    cfg, given = _resolved(method, **words)
    return assemble(*_per_seed(cfg, (seed,), parallel=False), given=given, strict=strict)


def first_state(job: Job) -> State:
    """Returns the state of a prepared run before round one, as `make_round`'s function takes it."""
    return place(job, state_of_seed(job))


def evaluate(job: Job, state: State) -> dict[str, Any]:
    """Tests the global model: metrics on the official test set and over clients' own tests."""
    program = _evaluation(job.task, job.executor, batch_size=job.config.evaluation.batch_size)
    weights = job.task.method.tested(state.weights, state.shared)
    return tested(take(program(lead(weights), job.feed.tests()), 0))


@functools.lru_cache(maxsize=8)  # a loop of one's own tests again and again
def _evaluation(task: Task, executor: Executor, batch_size: int) -> Callable[..., Any]:
    return make_evaluate(task, executor, batch_size=batch_size)


def _resolved(
    method: str | Method,
    *,
    dataset: str | Path | Sequence[Any] = "mnist5k",
    model: Any = None,
    protocol: str = "quick",
    rounds: int | None = None,
    hp: Mapping[str, Any] | None = None,
    plugin: str | Sequence[str] = (),
    **groups: Any,
) -> tuple[config.RunConfig, Given]:
    """Starts jax and returns the configuration, checked, with what was brought along."""
    for name in groups:
        if name not in _GROUPS:
            raise unknown("word", name, allowed=_WORDS)
    settings = {name: dict(groups.get(name) or {}) for name in _GROUPS}
    plugins.read([plugin] if isinstance(plugin, str) else plugin)
    devices.start(settings["execution"].get("devices", 0), tell=True)
    plugins.load()
    given, spec = _given(method, dataset=dataset, model=model, data=settings["data"])
    network = model if model is None or isinstance(model, str) else _label(model)
    made = functools.partial(protocols.resolve, protocol, spec, model=network)
    if isinstance(method, str):
        named = _with_hyper(made(spec=method).method, hp or {})
        cfg = dataclasses.replace(made(spec=named), method=named)
        built = registry.build(cfg.method)
        if not is_named(built):  # a notebook's method may change under its name
            given = given._replace(method=built)
            cfg = dataclasses.replace(cfg, method=f"{cfg.method}@{fingerprint(built)}")
    elif hp:
        raise UserError(f"hp={dict(hp)!r} with a Method: give hyperparameters to its factory")
    else:
        cfg = made(spec=_first(method.name))
        label = method.name if is_named(method) else f"{method.name}@{fingerprint(method)}"
        cfg = dataclasses.replace(cfg, method=label)
    cfg = _configured(cfg, settings, given=given, rounds=rounds)
    words = {f"{group}.{name}" for group, values in settings.items() for name in values}
    effects.check(words, cfg, backend=jax.default_backend())
    return cfg, given


def _given(
    method: str | Method, *, dataset: Any, model: Any, data: dict[str, Any]
) -> tuple[Given, Any]:
    """Returns what was brought along as objects, and the dataset's record or name."""
    partition = data.get("partition")
    given = Given(
        method=None if isinstance(method, str) else method,
        model=None if model is None or isinstance(model, str) else model,
        partition=partition if callable(partition) else None,
    )
    if isinstance(dataset, str | Path):
        return given, find(str(dataset))
    from fedjax_nc.data import own

    brought = own.from_arrays(dataset)
    return given._replace(dataset=brought), brought[0]


def _first(name: str) -> str:
    """Returns the method by which a protocol chooses settings: a named one, else FedAvg's."""
    try:
        catalogue.parse(name)
        return name
    except UserError:
        return "fedavg"


def _with_hyper(spec: str, hp: Mapping[str, Any]) -> str:
    """Returns the specification with these hyperparameters, which must be known."""
    known = catalogue.hyper_of(spec)
    for name in hp:
        if name not in known:
            raise unknown(f"hyperparameter of {spec}", name, allowed=known)
    return catalogue.with_hyper(spec, dict(hp))


def _configured(
    cfg: config.RunConfig,
    groups: Mapping[str, dict[str, Any]],
    *,
    given: Given,
    rounds: int | None,
) -> config.RunConfig:
    """Returns the protocol's configuration with everything that was given, checked."""
    if rounds is not None:
        if type(rounds) is not int:
            raise UserError(f"rounds is int, {rounds!r} was given")
        cfg = dataclasses.replace(cfg, rounds=rounds)
    for group, values in groups.items():
        plain = {k: v for k, v in values.items() if not (k == "partition" and callable(v))}
        cfg = config.changed(cfg, group, values=plain)
    if given.partition is not None:
        own: Any = _label(given.partition)
        cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, partition=own))
    cfg = protocols.in_one_place(cfg)
    config.validate(cfg)
    return cfg


def _label(thing: Callable[..., Any] | Any) -> str:
    """Returns the name of an object with its fingerprint: what it computes is in the name."""
    named = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    return f"{named or type(thing).__name__}@{fingerprint(thing)}".replace("<lambda>", "function")


def _per_seed(
    cfg: config.RunConfig, seeds: Sequence[int], *, parallel: bool
) -> tuple[config.RunConfig, ...]:
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds={tuple(seeds)}: give one or more different numbers")
    for seed in seeds:
        if type(seed) is not int:
            raise UserError(f"seeds are ints, {seed!r} was given")
        config.check_seed("seeds", seed)
    if parallel and len(seeds) < 2:
        raise UserError(f"seeds_parallel with one seed ({seeds[0]}): give several, as (0, 1)")
    return tuple(dataclasses.replace(cfg, seed=seed) for seed in seeds)
