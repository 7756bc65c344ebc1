"""From a configuration to everything a run needs: data, model, method, executor."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import models, tree
from fedjax_nc.config import RunConfig
from fedjax_nc.data import datasets, federated, stream
from fedjax_nc.data.catalogue import sized
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import Method, as_it_is
from fedjax_nc.train import local
from fedjax_nc.train.executors import Executor, make_executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import init_state
from fedjax_nc.types import FederatedData, Pool, State, Table


class Seeds(NamedTuple):
    """Several seeds that run as one program."""

    configs: tuple[RunConfig, ...]  # alike but for the seed
    splits: tuple[federated.Split, ...]
    axes: FederatedData  # `jax.vmap`'s axes of the data, stacked where seeds differ


class Job(NamedTuple):
    """A run, ready to start; nothing has been written yet."""

    config: RunConfig  # of several seeds, the first's
    task: Task
    executor: Executor
    split: federated.Split
    data: FederatedData
    warnings: tuple[str, ...]
    seeds: Seeds | None = None
    host: stream.Host | None = None  # where the examples are when `data.pool` only has their shape

    @property
    def feed(self) -> stream.Feed:
        """Where rounds and tests get their data."""
        if self.host is None:
            return stream.on_device(self.data)
        cfg = self.config
        return stream.from_host(
            self.host,
            self.data,
            participants=cfg.federation.participants,
            batch_size=cfg.evaluation.batch_size,
            sharding=self.executor.everywhere,
        )

    @property
    def configs(self) -> tuple[RunConfig, ...]:
        """Of every seed."""
        return (self.config,) if self.seeds is None else self.seeds.configs

    @property
    def splits(self) -> tuple[federated.Split, ...]:
        """Of every seed."""
        return (self.split,) if self.seeds is None else self.seeds.splits

    @property
    def axes(self) -> FederatedData | None:
        """Of several seeds."""
        return None if self.seeds is None else self.seeds.axes


def prepare(*configs: RunConfig, strict: bool = False) -> Job:
    """Load the data, deal it, build the model. Bad input is found here, before any file."""
    cfg = configs[0]
    spec = sized(cfg.dataset, cfg.data)
    method = registry.build(cfg.method)
    norm = cfg.federation.norm
    model = models.build(
        cfg.model,
        spec.shape,
        classes=spec.classes,
        head=method.head,
        norm=norm,
        conv=cfg.execution.conv,
        survival=method.survival,
        words=spec.words,
    )
    if spec.is_text:
        _check_words(cfg, method)
    if cfg.evaluation.finetune and not method.finetune:
        raise UserError(
            f"'{method.name}' defines no fine-tuning: leave it out with --evaluation.no-finetune, "
            "or choose a method that has a global model to start from, such as fedavg or fedetf"
        )
    for check in (t.check for p in method.phases for t in p.terms if t.check):
        check(model, cfg.local.batch_size)
    model = model._replace(init=jax.jit(model.init))  # traced once for this and the first state
    jax.eval_shape(model.init, jax.random.key(0))  # a head that does not fit is told here
    batches = federated.make_batch(spec, cfg.data.augment, normalise=cfg.data.normalise)
    arrays = datasets.load(cfg.dataset, cfg.data.dir, spec=spec)
    kept = federated.limit_examples(arrays.train_y, cfg.data.limit)
    y = arrays.train_y[kept]
    host = stream.Host(
        arrays.train_x, kept, test_x=arrays.test_x, y=np.concatenate([y, arrays.test_y])
    )
    streamed = host.num_bytes > cfg.execution.pool_mb * 1e6
    if streamed and len(configs) > 1:
        raise UserError(
            f"--seeds_parallel: the examples, {host.num_bytes / 1e6:.0f} MB, are above "
            f"--execution.pool_mb={cfg.execution.pool_mb}: raise it, or leave out --seeds_parallel"
        )
    arrays = arrays._replace(
        train_x=arrays.train_x if streamed else arrays.train_x[kept], train_y=y
    )
    numbers = [c.partition_seed for c in configs]
    splits = {
        n: federated.split_clients(
            cfg.data, cfg.federation.clients, seed=n, train_y=y, test_y=arrays.test_y
        )
        for n in dict.fromkeys(numbers)
    }
    warnings = dict.fromkeys(
        w
        for split in splits.values()
        for w in federated.warnings_of(split, y, classes=spec.classes, strict=strict)
    )
    executor = make_executor(
        cfg.execution.executor, devices=cfg.execution.devices, chunk=cfg.execution.chunk
    )
    data = [
        federated.assemble(
            arrays,
            split,
            classes=spec.classes,
            lanes=executor.lanes,
            pool=_shapes(arrays.test_x, split, participants=cfg.federation.participants)
            if streamed
            else None,
        )
        for split in splits.values()
    ]
    placed = data[0] if len(data) == 1 else _stack(data)
    placed = placed if streamed else executor.place(placed)
    task = Task(method, local.Trainer(model, cfg.local, batches=batches), federation=cfg.federation)
    seeds = Seeds(configs, tuple(splits[n] for n in numbers), axes=_axes(own=len(data) > 1))
    return Job(
        cfg,
        task,
        executor=executor,
        split=splits[numbers[0]],
        data=placed,
        warnings=tuple(warnings),
        seeds=seeds if len(configs) > 1 else None,
        host=host if streamed else None,
    )


def only(job: Job, numbers: list[int]) -> Job:
    """The same for these seeds of it."""
    if job.seeds is None or len(numbers) == len(job.configs):
        return job
    configs, splits = [job.configs[i] for i in numbers], [job.splits[i] for i in numbers]
    data, several = job.data, len(numbers) > 1
    if job.seeds.axes.train is not None:
        mine = (data.train, data.client_test, data.class_counts)
        mine = tree.take(mine, np.array(numbers) if several else numbers[0])
        data = data._replace(train=mine[0], client_test=mine[1], class_counts=mine[2])
    seeds = Seeds(tuple(configs), tuple(splits), axes=job.seeds.axes) if several else None
    return job._replace(config=configs[0], split=splits[0], data=data, seeds=seeds)


def first_state(job: Job, number: int = 0) -> tuple[State, bool]:
    """A seed's state before round one, and whether client state stays in host memory."""
    count, megabytes = len(job.configs), job.config.execution.client_state_mb
    limit = megabytes * 1e6 / count if job.executor.jit else float("inf")
    key = jax.random.key(job.configs[number].seed)
    state = init_state(job.task, key, host_above=limit)
    on_host = any(isinstance(x, np.ndarray) for x in jax.tree.leaves(state.clients))
    if on_host and count > 1:
        raise UserError(
            f"--seeds_parallel: the client state of {count} seeds, "
            f"{count * tree.num_bytes(state.clients) / 1e6:.0f} MB, is above "
            f"--execution.client_state_mb={megabytes}: raise it, or leave out --seeds_parallel"
        )
    return place(job, state, on_host=on_host), on_host


def place(job: Job, state: State, on_host: bool) -> State:
    """Put a state where rounds expect it: on the devices, large client state in host memory."""
    clients = dict(state.clients)
    light = job.executor.place(
        State(state.round, state.key, weights=state.weights, shared=state.shared, clients={})
    )
    if on_host:
        clients = jax.tree.map(lambda x: np.array(x, copy=True), clients)
    else:
        clients = job.executor.place(clients)
    return State(
        light.round, light.key, weights=light.weights, shared=light.shared, clients=clients
    )


def _shapes(x: np.ndarray, split: federated.Split, participants: int) -> Any:
    """The pool of a round whose examples come from the host."""
    rows = stream.room(np.array([len(part) for part in split.train]), participants)
    struct: Any = jax.ShapeDtypeStruct
    return Pool(struct((rows, *x.shape[1:]), x.dtype), struct((rows,), np.int32))


def _check_words(cfg: RunConfig, method: Method) -> None:
    """Refuse what is made for images."""
    if cfg.data.augment:
        raise UserError(
            f"--data.augment {' '.join(cfg.data.augment)} changes images, and {cfg.dataset} is "
            "text: leave it empty, as --data.augment"
        )
    if any(phase.augment is not as_it_is for phase in method.phases):
        raise UserError(
            f"'{method.name}' mixes images, and {cfg.dataset} is text: choose another method"
        )


def _axes(own: bool) -> FederatedData:
    """What of the data is stacked: never the examples, the tables if seeds have their own."""
    tables: Any = 0 if own else None
    nothing: Any = None
    return FederatedData(nothing, tables, tables, nothing, tables)


def _stack(parts: list[FederatedData]) -> FederatedData:
    """Every seed's tables in one array, padded to the longest."""

    def table(tables: list[Table]) -> Table:
        longest = max(t.index.shape[1] for t in tables)
        index = [np.pad(t.index, ((0, 0), (0, longest - t.index.shape[1]))) for t in tables]
        return Table(jnp.stack(index), jnp.stack([t.size for t in tables]))

    return parts[0]._replace(
        train=table([p.train for p in parts]),
        client_test=table([p.client_test for p in parts]),
        class_counts=jnp.stack([p.class_counts for p in parts]),
    )
