"""Rounds of authors' own code, recorded in tests/trajectories, computed again by the package."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config, tree
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.federated import Split
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.host.assemble import Given, assemble
from fedjax_nc.models import own
from fedjax_nc.models.mlp import MLP
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.train import client as clients
from fedjax_nc.train import local, round, schedule
from fedjax_nc.types import Batch, Hyper, State, Weights

FOLDER = Path(__file__).parent / "trajectories"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))

# Where the code differs from the specification that its file was recorded with: the variant.
VARIANTS = {
    "fedproto_feddw_repo_mini": "fedproto(average=False, weighted=True, history=True)",
    "fedetf_official_finetune_full": "fedetf(finetune='code', resume=True)",
    "fedetf_feddr_repo_nobias_shard_mini": "fedetf(absent='remove', projector_bias=False)",
    # the first round's learning rate is already smaller by 0.998, and so is its eps
    "fedexp_official_full": "fedexp(eps=0.000996004, decay=0.998)",
    "feddyn_fedntd_repo_mini": "feddyn(alpha=0.1, weights='mixed')",
    "feddyn_official_mini": "feddyn(alpha=0.1, relative=True)",
}


class Recorded(NamedTuple):
    """A recorded run."""

    name: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def method(self) -> str:
        """The specification that computes it."""
        return VARIANTS.get(self.name, self.config["method"])

    @property
    def tolerance(self) -> float:
        """The largest difference allowed, relative to a tensor's largest entry."""
        return self.config.get("tolerance", 1e-8)

    def rows(self, round_number: int) -> list[np.ndarray]:
        """Every client's examples in the order of a round."""
        rows = []
        for k in range(self.count):
            order = self.arrays.get(f"order{k}")
            mine = self.arrays[f"client{k}"]
            rows.append(mine if order is None else mine[order[round_number]])
        return rows

    @property
    def count(self) -> int:
        """The number of clients."""
        return sum(f"client{k}" in self.arrays for k in range(100))

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.config["participants"])

    def weights(self, prefix: str, *, like: Weights) -> Weights:
        """The recorded tensors behind a prefix, in the package's layout."""

        def leaf(path, old, part):
            found = self.arrays[prefix + torch_name(path, part)]
            found = from_torch(found)
            assert found.shape == old.shape, (path, found.shape, old.shape)
            return jnp.asarray(found, old.dtype)

        at = jax.tree_util.tree_map_with_path
        params = at(lambda p, x: leaf(p, x, "params"), like.params)
        return Weights(params, at(lambda p, x: leaf(p, x, "stats"), like.stats))


def load(name: str) -> Recorded:
    """Reads a file."""
    with np.load(FOLDER / f"{name}.npz") as z:
        arrays = {k: z[k] for k in z.files}
    return Recorded(name, json.loads(str(arrays.pop("config"))), arrays)


def torch_name(path: Any, part: str) -> str:
    """Returns the recording's name of the tensor at a path of the package's weights."""
    words = [entry.key for entry in path]
    group, rest = (words[0], words[1:]) if part == "params" else ("body", words)
    leaf = {"kernel": "weight", "scale": "weight"}.get(words[-1], words[-1])
    if group == "scale":
        return "scale"
    if group == "projector":
        return f"projector{rest[0]}.{leaf}"
    if group in ("head", "own_head"):
        return f"{group}.{leaf}"
    kind, _, number = rest[-2].rpartition("_")
    if kind == "Dense":
        return f"fc{int(number) + 1}.{leaf}"
    inside = rest[0] + ".block" + rest[1].rpartition("_")[2] if len(rest) > 2 else "stem"
    return f"{inside}.{kind.lower()}{number}.{leaf}"


def from_torch(x: np.ndarray) -> np.ndarray:
    """Turns (out, in) into (in, out), and OIHW into HWIO."""
    return x.T if x.ndim == 2 else x.transpose(2, 3, 1, 0) if x.ndim == 4 else x


def flat(weights: Weights) -> dict[str, np.ndarray]:
    """A model's tensors by the recording's names, in the package's layout."""
    found = {}
    for part in ("params", "stats"):
        for path, x in jax.tree_util.tree_flatten_with_path(getattr(weights, part))[0]:
            found[torch_name(path, part)] = np.array(x)
    return found


def network(cfg: dict[str, Any]) -> Any:
    """The recorded network."""
    if "widths" in cfg:
        return MLP(norm="none", widths=tuple(cfg["widths"]))
    net = cfg["resnet"]
    body = ResNet(
        tuple(net["blocks"]),
        norm="running",
        projection=net["projection"],
        bottleneck=net["bottleneck"],
    )
    return replace(own.model(body), blocks=sum(net["blocks"]))


class Federation(NamedTuple):
    """The recorded problem as the package has it."""

    task: local.Task
    job: Any
    state: State


def federation(recorded: Recorded) -> Federation:
    """Assembles the recorded problem, with its first weights."""
    x, y = recorded.arrays["x"], recorded.arrays["y"].astype(np.int32)
    settings = dict(recorded.config["local"])
    settings["milestones"] = tuple(settings.get("milestones", ()))
    spec = DatasetSpec(
        name="recorded",
        classes=int(y.max()) + 1,
        shape=x.shape[1:],
        train=len(y),
        test=1,
    )
    cfg = config.RunConfig(
        method=recorded.method,
        dataset=spec.name,
        rounds=recorded.rounds,
        local=config.Local(**{"momentum": 0.0, **settings}),
        federation=config.Federation(
            clients=recorded.count,
            participants=len(recorded.config["participants"][0]),
            weights=recorded.config["weights"],
        ),
        evaluation=config.Evaluation(finetune=False),
        execution=config.Execution(executor="scan"),
    )
    rows = recorded.rows(0)
    given = Given(
        model=network(recorded.config),
        dataset=(spec, Arrays(x, y, test_x=x[:1], test_y=y[:1])),
        split=Split(rows, rows, pool="train"),
    )
    job = assemble(cfg, given=given)
    model = job.task.trainer.model
    first = recorded.weights("init/", like=jax.eval_shape(model.init, jax.random.key(0)))
    trainer = job.task.trainer._replace(
        model=model._replace(init=lambda key: first), make_batch=make_batch
    )
    task = job.task._replace(trainer=trainer)
    state = round.init_state(task, jax.random.key(0))
    slot = recorded.config.get("slot")
    if slot and "init/client0/fc1.weight" in recorded.arrays:
        models = [
            recorded.weights(f"init/client{k}/", like=tree.take(state.clients[slot], k))
            for k in range(recorded.count)
        ]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
        state = replace(state, clients={**state.clients, slot: stacked})
    return Federation(task, job, state=state)


def make_batch(pool: Any, indices: Any, mask: Any, key: Any) -> Batch:
    """Gathers examples as they are."""
    del key
    return Batch(pool.x[indices], pool.y[indices], mask=mask)


def as_recorded(key: Any, index: Any, size: Any, batch_size: int) -> Any:
    """Leaves a client's examples in the order of the table."""
    del key, size
    return jnp.pad(index, (0, -index.shape[0] % batch_size), mode="edge")


def replay(
    recorded: Recorded, watch: Callable[[State], None] = lambda state: None
) -> dict[str, float]:
    """Computes the rounds again; returns how far every recorded tensor is from the package's.

    Differences are relative to the tensor's largest entry. `watch` is shown the state after each
    round, whose arrays the next one takes over.
    """
    task, job, state = federation(recorded)
    present = jnp.asarray(recorded.config["participants"])
    slot = recorded.config.get("slot")
    found: dict[str, np.ndarray] = {}

    def ordered(number: int) -> Any:
        index = np.zeros(job.data.train.index.shape, np.int32)
        for k, row in enumerate(recorded.rows(number)):
            index[k, : len(row)] = row
        return job.data._replace(train=job.data.train._replace(index=jnp.asarray(index)))

    with (
        mock.patch.object(local, "shuffled", as_recorded),
        mock.patch.object(schedule, "participants", lambda key, n, federation: present[n]),
    ):
        step = round.make_round(task, job.executor)
        for number in range(recorded.rounds):
            hyper = schedule.make_hyper(task, number)
            state, _ = step(state, hyper, ordered(number))
            watch(state)
            found |= {f"round{number + 1}/{k}": x for k, x in flat(state.weights).items()}
            for k in range(recorded.count if slot else 0):
                mine = flat(tree.take(state.clients[slot], k))
                found |= {f"round{number + 1}/client{k}/{name}": x for name, x in mine.items()}
            found |= {f"extra/{k}{number + 1}": x for k, x in travelling(state).items()}
        if any(name.startswith("extra/finetuned/") for name in recorded.arrays):
            for k, model in enumerate(finetuned(task, state, data=ordered(-1), rounds=number + 1)):
                found |= {f"extra/finetuned/client{k}/{n}": x for n, x in flat(model).items()}
    return compared(recorded, found)


def travelling(state: State) -> dict[str, np.ndarray]:
    """Returns what travels besides the model and is recorded too, transposed as weights are."""
    fields = {"prototypes": "mean", "soft_labels": "matrix"}
    return {
        name: np.array(getattr(state.shared[name], field)).T
        for name, field in fields.items()
        if name in state.shared
    }


def finetuned(task: local.Task, state: State, *, data: Any, rounds: int) -> list[Weights]:
    """Every client's model after the method's fine-tuning."""
    ids = jnp.arange(task.federation.clients)
    hyper = Hyper(schedule.make_hyper(task, rounds - 1).lr, ())

    @jax.jit
    def all_of(state, data):
        rows = clients.make_rows(
            task, state.key, ids=ids, data=data, client_state=dict(state.clients)
        )
        received = clients.make_broadcast(task, state, hyper=hyper, pool=data.pool)

        def one(row):
            phases = task.method.finetune
            return clients.train_client(task, received, row=row, phases=phases)[1].weights

        return jax.lax.map(one, rows)

    models = all_of(state, data)
    return [tree.take(models, k) for k in range(task.federation.clients)]


def compared(recorded: Recorded, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns every recorded tensor's largest difference, relative to its largest entry."""
    away = {}
    for name, there in recorded.arrays.items():
        if not name.startswith(("round", "extra/")) or name in NOT_KEPT:
            continue
        there, here = from_torch(there), found[name]
        assert there.shape == here.shape, name
        largest = max(np.abs(there).max(), np.finfo(float).tiny)
        away[name] = float(np.abs(there - here).max() / largest)
    return away


NOT_KEPT = ("extra/server_steps",)  # the package has them inside a round only
