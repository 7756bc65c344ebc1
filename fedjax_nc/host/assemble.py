"""The one assembly: from configurations, and what a caller brings along, to a run ready to start.

The command, `fnc.run`, studies, benchmarks and tests all come through here.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import models, processes, tree
from fedjax_nc.config import RunConfig
from fedjax_nc.data import augment, datasets, federated, partition_file, stream
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.catalogue import sized
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import Method, Phase, as_it_is
from fedjax_nc.train import local
from fedjax_nc.train import seeds as axis
from fedjax_nc.train.executors import Executor, make_executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.seeds import Seeds
from fedjax_nc.types import FederatedData, Model, Pool, Table


class Given(NamedTuple):
    """What a caller brings along; everything else is found by the configuration's names."""

    method: Method | None = None
    model: Any = None  # a flax module that maps inputs to features
    dataset: tuple[DatasetSpec, Arrays] | None = None
    partition: Callable[..., Any] | None = None  # (labels, clients, seed) -> lists of indices
    split: federated.Split | None = None  # the partition itself, the same for every seed


NOTHING = Given()


class Job(NamedTuple):
    """A run of one or several seeds, ready to start; nothing has been written yet."""

    configs: tuple[RunConfig, ...]  # one per seed, alike but for the seed
    task: Task
    executor: Executor
    spec: DatasetSpec
    splits: tuple[federated.Split, ...]  # one per seed
    data: FederatedData
    seeds: Seeds
    warnings: tuple[str, ...] = ()
    examples: str = ""  # a fingerprint of them
    host: stream.Host | None = None  # where the examples are when `data.pool` only has their shape
    given: Given = NOTHING

    @property
    def config(self) -> RunConfig:
        """The settings all seeds share."""
        return self.configs[0]

    @property
    def feed(self) -> stream.Feed:
        """Where rounds and tests get their data."""
        if self.host is None:
            return stream.on_device(self.data)
        return stream.from_host(
            self.host,
            self.data,
            participants=self.config.federation.participants,
            batch_size=self.config.evaluation.batch_size,
            sharding=self.executor.everywhere,
        )


def assemble(*configs: RunConfig, given: Given = NOTHING, strict: bool = False) -> Job:
    """Loads the data, deals it, builds method, model and executor; finds bad input before any file.

    Args:
      *configs: one configuration per seed, alike but for the seed.
      given: objects that take the place of the configuration's names.
      strict: refuse clients without data instead of skipping them.
    """
    cfg = configs[0]
    method = given.method or registry.build(cfg.method)
    known = given.dataset[0] if given.dataset else sized(cfg.dataset, cfg.data)
    task = None
    if known.shape:  # what cannot work is refused before anything is read
        task = make_task(cfg, known, method=method, module=given.model)
    spec, arrays = given.dataset or datasets.read(cfg.dataset, cfg.data)
    if task is None or spec != known:
        task = make_task(cfg, spec, method=method, module=given.model)
    kept = federated.limit_examples(arrays.train_y, cfg.data.limit)
    y = arrays.train_y[kept]
    host = stream.Host(
        arrays.train_x, kept, test_x=arrays.test_x, y=np.concatenate([y, arrays.test_y])
    )
    executor = _executor(cfg)
    streamed = host.num_bytes > cfg.execution.pool_mb * 1e6
    if streamed and len(configs) > 1:
        raise UserError(
            f"--seeds_parallel: the examples, {host.num_bytes / 1e6:.0f} MB, are above "
            f"--execution.pool_mb={cfg.execution.pool_mb}: raise it, or leave out --seeds_parallel"
        )
    whole = streamed or len(kept) == len(arrays.train_y)
    arrays = arrays._replace(train_x=arrays.train_x if whole else arrays.train_x[kept], train_y=y)
    splits = _splits(configs, given, arrays=arrays, shuffled=spec.release is not None)
    distinct = {id(split): split for split in splits}
    warnings = dict.fromkeys(
        warning
        for split in distinct.values()
        for warning in federated.warnings_of(split, y, classes=spec.classes, strict=strict)
    )
    network = cfg.model if given.model is None else given.model
    by_batch = models.norm_of(network, cfg.federation.norm) == "batch"
    data = [
        federated.assemble(
            arrays,
            split,
            classes=spec.classes,
            lanes=executor.lanes,
            # where answers depend on the batch, its examples must not depend on the lanes
            together=cfg.evaluation.batch_size if by_batch else 1,
            pool=_shapes(arrays.test_x, split, participants=cfg.federation.participants)
            if streamed
            else None,
        )
        for split in distinct.values()
    ]
    placed = data[0] if len(data) == 1 else stack_tables(data)
    seeds = Seeds(len(configs))
    return Job(
        configs,
        task,
        executor=executor,
        spec=spec,
        splits=splits,
        data=placed if streamed else executor.place(placed),
        seeds=seeds._replace(data=axis.own_tables()) if len(data) > 1 else seeds,
        warnings=tuple(warnings),
        examples=host.fingerprint,
        host=_spread(host, cfg, executor=executor) if streamed else None,
        given=given,
    )


def _executor(cfg: RunConfig) -> Executor:
    """Makes the executor; refuses what cannot be divided over its devices."""
    made = make_executor(
        cfg.execution.executor,
        devices=cfg.execution.devices,
        chunk=cfg.execution.chunk,
        spread=cfg.execution.shard,
    )
    if processes.count() > 1 and made.mesh is None:
        raise UserError(
            f"--execution.executor={cfg.execution.executor} computes in one process: leave it out, "
            "or leave out --distributed"
        )
    if cfg.execution.shard and made.mesh is None:
        raise UserError("--execution.shard divides over devices, and there is one: leave it out")
    if cfg.execution.shard and cfg.federation.clients % made.devices:
        raise UserError(
            f"--execution.shard: {cfg.federation.clients} clients (--federation.clients) cannot be "
            f"divided by {made.devices} devices: choose a multiple, or other --execution.devices"
        )
    return made


def _spread(host: stream.Host, cfg: RunConfig, *, executor: Executor) -> stream.Host:
    """Divides examples over the devices where that is asked for and their shares fit."""
    if not executor.spread or host.num_bytes > executor.devices * cfg.execution.pool_mb * 1e6:
        return host
    x = np.concatenate([host.train_x[host.kept], host.test_x])
    y = host.y.astype(np.int32)
    room = -(-len(y) // executor.devices) * executor.devices
    pool = [np.pad(a, [(0, room - len(a)), *[(0, 0)] * (a.ndim - 1)]) for a in (x, y)]
    pool = Pool(*processes.put(pool, executor.shares()))
    rows = executor.compile(executor.rows)
    return host._replace(fetch=lambda indices: rows(pool, executor.place(indices)))


def make_task(cfg: RunConfig, spec: DatasetSpec, *, method: Method, module: Any = None) -> Task:
    """Makes what is trained and how; refuses combinations that cannot work."""
    model = build_model(cfg, spec, method=method, module=module)
    _check(cfg, spec, method=method, model=model)
    _check_crop(cfg, spec, method=method, module=module, model=model)
    model = model._replace(init=jax.jit(model.init))  # traced once for this and the first state
    jax.eval_shape(model.init, jax.random.key(0))  # a head that does not fit is told here
    make_batch = federated.make_batch(spec, cfg.data.augment, normalise=cfg.data.normalise)
    trainer = local.Trainer(model, cfg.local, make_batch=make_batch)
    return Task(method, trainer, federation=cfg.federation)


def build_model(
    cfg: RunConfig, spec: DatasetSpec, *, method: Method, module: Any = None, conv: str = ""
) -> Model:
    """Builds the configuration's network, or one around a brought module, with the method's head.

    Args:
      cfg: the configuration.
      spec: what the network's inputs are.
      method: whose head sits on the features.
      module: a flax module to use in place of the configuration's model.
      conv: how convolutions are computed, in place of the configuration's choice.
    """
    return models.build(
        cfg.model if module is None else module,
        spec.shape,
        classes=spec.classes,
        head=method.head,
        norm=cfg.federation.norm,
        conv=conv or cfg.execution.conv,
        survival=method.survival,
        words=spec.words,
        mapping=cfg.federation.mapping,
    )


def only(job: Job, chosen: Sequence[int]) -> Job:
    """Returns the same job for some of its seeds, given by their positions."""
    if len(chosen) == len(job.configs):
        return job
    data, seeds = job.data, job.seeds._replace(count=len(chosen))
    if job.seeds.data.train is not None:
        alone = len(chosen) == 1
        tables = tree.take(
            (data.train, data.client_test, data.class_counts),
            chosen[0] if alone else np.array(chosen),
        )
        data = data._replace(train=tables[0], client_test=tables[1], class_counts=tables[2])
        seeds = Seeds(1) if alone else seeds
    return job._replace(
        configs=tuple(job.configs[i] for i in chosen),
        splits=tuple(job.splits[i] for i in chosen),
        data=data,
        seeds=seeds,
    )


def _splits(
    configs: Sequence[RunConfig], given: Given, *, arrays: Arrays, shuffled: bool
) -> tuple[federated.Split, ...]:
    """Deals the examples, once for each different seed of the partition."""
    cfg = configs[0]
    if given.split is not None:
        labels = partition_file.fingerprint(arrays.train_y)
        return (given.split._replace(labels=labels),) * len(configs)
    made = {
        seed: federated.split_clients(
            cfg.data,
            cfg.federation.clients,
            seed=seed,
            train_y=arrays.train_y,
            test_y=arrays.test_y,
            partitioner=given.partition,
            shuffled=shuffled,
        )
        for seed in dict.fromkeys(c.partition_seed for c in configs)
    }
    return tuple(made[c.partition_seed] for c in configs)


def _shapes(x: np.ndarray, split: federated.Split, participants: int) -> Any:
    """Returns the shape of the pool of a round whose examples come from the host."""
    rows = stream.room(np.array([len(part) for part in split.train]), participants)
    struct: Any = jax.ShapeDtypeStruct
    return Pool(struct((rows, *x.shape[1:]), x.dtype), struct((rows,), np.int32))


def _check(cfg: RunConfig, spec: DatasetSpec, *, method: Method, model: Model) -> None:
    """Refuses combinations of method, model and data that cannot work."""
    if spec.is_text:
        _check_text(cfg, method)
    if cfg.evaluation.finetune and not method.finetune:
        raise UserError(
            f"'{method.name}' defines no fine-tuning: leave it out with --evaluation.no-finetune, "
            "or choose a method that has a global model to start from, such as fedavg or fedetf"
        )
    resumed = any(isinstance(p, Phase) and p.resume is not None for p in method.finetune)
    if resumed and not cfg.local.keep_optimizer:
        raise UserError(
            f"'{method.name}' fine-tunes with the optimiser that a client keeps, and none is kept: "
            "add --local.keep_optimizer, or leave out resume"
        )
    if cfg.local.steps and any(callable(phase.epochs) for phase in method.phases):
        raise UserError(
            f"'{method.name}' deals a client's epochs, and --local.steps={cfg.local.steps} makes "
            "steps instead: give --local.steps=0, or a variant with as many epochs for every part"
        )
    for flag, size in (("local", cfg.local.batch_size), ("evaluation", cfg.evaluation.batch_size)):
        needed, there = 4 * size * math.prod(spec.shape), _memory()
        if needed > there:  # a batch is as large as it may be, padded where there are fewer
            raise UserError(
                f"--{flag}.batch_size={size}: a batch would take {needed / 1e9:,.0f} GB, and this "
                f"machine has {there / 1e9:,.0f}: no client has as many examples"
            )
    for check in (term.check for phase in method.phases for term in phase.terms if term.check):
        check(model, cfg.local.batch_size)


def _memory() -> float:
    """Returns the bytes of memory that the machine has, infinity if it does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def _check_text(cfg: RunConfig, method: Method) -> None:
    """Refuses what is made for images."""
    if cfg.data.augment:
        raise UserError(
            f"--data.augment {' '.join(cfg.data.augment)} changes images, and {cfg.dataset} is "
            "text: leave it empty, as --data.augment"
        )
    if any(phase.augment is not as_it_is for phase in method.phases):
        raise UserError(
            f"'{method.name}' mixes images, and {cfg.dataset} is text: choose another method"
        )


def _check_crop(
    cfg: RunConfig, spec: DatasetSpec, *, method: Method, module: Any, model: Model
) -> None:
    """Refuses a network whose weights depend on the size of images where training crops them."""
    shape = augment.training_shape(cfg.data.augment, spec.shape)
    if shape == spec.shape:
        return
    cropped = build_model(cfg, dataclasses.replace(spec, shape=shape), method=method, module=module)
    sizes = [
        [x.shape for x in jax.tree.leaves(jax.eval_shape(m.init, jax.random.key(0)))]
        for m in (model, cropped)
    ]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"--data.augment {' '.join(cfg.data.augment)}: training sees images of "
            f"{shape[0]}x{shape[1]}, tests {spec.shape[0]}x{spec.shape[1]}, and the weights of "
            f"model '{cfg.model}' depend on that: choose one that averages over its map, such as "
            "resnet20"
        )


def stack_tables(parts: Sequence[FederatedData]) -> FederatedData:
    """Puts every seed's tables in one array, padded to the longest row."""

    def table(tables: list[Table]) -> Table:
        longest = max(t.index.shape[1] for t in tables)
        index = [np.pad(t.index, ((0, 0), (0, longest - t.index.shape[1]))) for t in tables]
        return Table(jnp.stack(index), jnp.stack([t.size for t in tables]))

    return parts[0]._replace(
        train=table([p.train for p in parts]),
        client_test=table([p.client_test for p in parts]),
        class_counts=jnp.stack([p.class_counts for p in parts]),
    )
