"""One run's configuration: frozen dataclasses, standard library only, so flags parse before jax."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from fedjax_nc import typed
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.inputs import check_path

Order = Literal["official", "stored"]
_IN_ONE_PLACE = ("centralised",)  # methods that have everybody's data
PARTITIONS = ("iid", "shards", "dirichlet", "classes", "quantity")


@dataclass(frozen=True)
class Data:
    """Which examples each client holds."""

    dir: str | None = None
    """Where prepared TFDS datasets live. Default: TFDS_DATA_DIR, then ~/tensorflow_datasets."""
    order: Order = "stored"
    """Prepared TFDS datasets: number examples as the `official` files, or as TFDS `stored` them."""
    partition: str = "dirichlet"
    """How the training set is dealt to clients: iid, shards, dirichlet, classes or quantity."""
    alpha: float = 0.1
    """Concentration of `dirichlet` and `quantity`; smaller is more skewed."""
    rule: Literal["lda", "fedetf", "feddw"] = "fedetf"
    """Published Dirichlet rule: `lda` caps sizes and asks for 10 samples, the others do not."""
    per_client: int = 2
    """Shards (`shards`) or classes (`classes`) of each client."""
    client_test: Literal["split", "matched", "dealt"] = "split"
    """Client test sets: `split` holds out local data, the others use the official test set."""
    test_fraction: float = 0.3
    """Held-out share of the local data under `split`."""
    seed: int = 0
    """Seed of the partition, separate from training. `--data.seed=-1` follows the run's seed."""
    partition_file: str | None = None
    """Use this partition instead: npz or json, {client: indices}."""
    partition_order: Order | None = None
    """The order that the indices of a file without fingerprint mean; it must be --data.order."""
    augment: tuple[str, ...] = ()
    """Training augmentation in order, of: crop4 crop4to32 flip rrc cutout8. Tests have none."""
    normalise: Literal["dataset", "half", "cinic10"] = "dataset"
    """Published constants; mean and std 0.5, FedETF's; CINIC-10's, FedBlade's of Tiny-ImageNet."""
    limit: int = 0
    """Keep only this many training examples, class balanced; 0 keeps all."""
    words: int = 10_000
    """Text: the most frequent words of the training split that get an id; others are unknown."""
    length: int = 200
    """Text: words of a review, cut or padded at the end."""
    side: int = 224
    """ImageNet: side of the decoded pictures."""


@dataclass(frozen=True)
class Local:
    """What a client does in a round."""

    epochs: int = 1
    """Passes over the local data."""
    steps: int = 0
    """If positive: exactly this many steps on freshly drawn batches instead of epochs."""
    batch_size: int = 50
    """Examples per step."""
    drop_last: bool = False
    """Leave out an epoch's incomplete last batch (a client's only batch is always kept)."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimiser."""
    lr: float = 0.01
    """Learning rate of the first round."""
    momentum: float = 0.9
    """Momentum of sgd."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = 0.0
    """Added to the gradient before momentum, as PyTorch does."""
    clip: float = 0.0
    """Clip the gradient to this norm; 0 does not."""
    keep_optimizer: bool = False
    """Optimiser state survives between a client's rounds."""
    schedule: Literal["constant", "step", "exponential"] = "constant"
    """Learning rate over rounds."""
    decay: float = 1.0
    """Factor at each milestone (`step`) or each round (`exponential`)."""
    milestones: tuple[int, ...] = ()
    """Rounds at which `step` decays."""


@dataclass(frozen=True)
class Federation:
    """Who takes part, and how updates are averaged."""

    clients: int = 20
    """Number of clients."""
    participants: int = 20
    """Clients drawn in each round."""
    weights: Literal["size", "equal", "batches"] = "size"
    """Weight of a client's update: its training examples, 1, or its full batches."""
    norm: Literal["default", "running", "batch", "group", "none"] = "default"
    """BatchNorm by running or batch statistics, GroupNorm(2), none; default is the model's."""
    mapping: tuple[int, ...] = ()
    """Dense layers between network and class vectors, as FedDW's 256 128; ReLU between them."""
    dropout: float = 0.0
    """Share of participants that never answer, drawn for each of them in each round."""
    straggler: float = 0.0
    """Share of participants that do fewer epochs: uniformly 1 to all of them, as in FedProx."""
    nan: Literal["stop", "skip"] = "stop"
    """A client that diverges ends the run, or is left out of the round and counted."""


@dataclass(frozen=True)
class Evaluation:
    """When and how models are tested."""

    every: int = 1
    """Global evaluation every so many rounds; the last ones that are averaged always."""
    last: int = 1
    """The reported global accuracy is the mean over this many last rounds."""
    batch_size: int = 200
    """Examples per evaluation step."""
    personal: bool = True
    """After the last round: train each client once more and test it on its own test set."""
    personal_global: bool = False
    """Test these personal models on the official test set too, as FedDW's tables I and II."""
    finetune: bool = True
    """After the last round: the method's own fine-tuning, tested likewise."""
    stop_at: float | None = None
    """End at the first tested round of this global accuracy: 0.6 is 60 %. Short: `--stop_at`."""


@dataclass(frozen=True)
class Execution:
    """How the same round is computed; results agree up to rounding."""

    executor: Literal["auto", "vmap", "scan", "chunked", "sharded", "debug"] = "auto"
    """Clients at once, one by one, in chunks, over devices, or unjitted one by one."""
    chunk: int = 4
    """Clients at once under `chunked`."""
    devices: int = 0
    """Devices to use, of each process; on a CPU as many are set up. 0: all, or one per core."""
    shard: bool = False
    """Divide client state over devices, and examples above `pool_mb`: more devices, more room."""
    conv: Literal["auto", "native", "canonical", "im2col", "winograd"] = "auto"
    """How convolutions are computed; a shape that a choice cannot do is left to `auto`."""
    client_state_mb: int = 2000
    """Client state above this size stays in host memory; only participants move."""
    pool_mb: int = 4000
    """Examples above this size stay in host memory or on disk; only participants' move."""
    checkpoint_every: int = 10
    """Rounds between checkpoints; a stopped run resumes from the last one."""
    save_seconds: float = 300.0
    """Seconds after which a checkpoint is saved in any case; 0 leaves it to the rounds."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run's numbers."""

    method: str = "fedetf"
    """Method, or composition: "dot_regression | fd(beta=0.9)"."""
    dataset: str = "mnist5k"
    """Dataset name."""
    model: str = "cnn"
    """Model name."""
    protocol: str = "quick"
    """How a paper runs its experiments, as name or name/regime; sets all defaults below."""
    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Seed of initialisation, sampling and training."""
    data: Data = field(default_factory=Data)
    local: Local = field(default_factory=Local)
    federation: Federation = field(default_factory=Federation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    execution: Execution = field(default_factory=Execution)

    @property
    def is_centralised(self) -> bool:
        """True for a method that trains on all data in one place."""
        first = self.method.partition("|")[0].partition("@")[0].strip()
        return first in _IN_ONE_PLACE

    @property
    def partition_seed(self) -> int:
        """Seed of the partition."""
        return self.seed if self.data.seed < 0 else self.data.seed


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dict with lists, as written to config.yaml."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(content: Any) -> RunConfig:
    """Returns what `to_dict` wrote, every value checked as a flag is."""
    config = typed.filled(RunConfig(), content)
    absent = set(_names(identity(to_dict(RunConfig())))) - set(_names(content))
    if absent:  # settings that came later may be; others are only where a file was cut
        raise UserError(f"settings are missing: {', '.join(sorted(absent))}")
    validate(config)
    return config


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the dotted names of all settings of a configuration's plain form."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


# Settings that change no number: where data lies, what only confirms another setting, when a run
# saves, where examples and client state are kept.
_FREE = {
    "data": ("dir", "partition_order"),
    "execution": ("checkpoint_every", "save_seconds", "pool_mb", "shard"),
}
# Settings that came later, with the value that an older configuration without them means.
_LATER = {
    "data": {"order": "stored"},
    "federation": {"mapping": [], "dropout": 0.0, "straggler": 0.0, "nan": "stop"},
    "evaluation": {"personal_global": False, "stop_at": None},
}


def identity(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration's plain form with all that can change a number.

    Devices only change the rounding, and a run may move to others. They stay in it as 0, which is
    their default: so names that were made of it stay.
    """
    left = dict(content)
    if isinstance(left.get("execution"), dict) and "devices" in left["execution"]:
        left["execution"] = left["execution"] | {"devices": 0}
    for group, names in _FREE.items():
        if isinstance(left.get(group), dict):
            left[group] = {k: v for k, v in left[group].items() if k not in names}
    for group, meant in _LATER.items():
        if isinstance(left.get(group), dict):
            left[group] = {k: v for k, v in left[group].items() if (k, v) not in meant.items()}
    return left


def changed(config: RunConfig, group: str, values: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration with other settings of one group, such as `local`.

    Names and types are checked as the flags `--group.name` are.
    """
    old = getattr(config, group)
    known = {field.name: field for field in dataclasses.fields(old)}
    hints = get_type_hints(type(old))
    made = {}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"setting of {group}", name, allowed=known)
        made[name] = typed.value(f"{group}.{name}", value, kind=hints[name])
    return dataclasses.replace(config, **{group: dataclasses.replace(old, **made)})


def fingerprint(config: RunConfig) -> str:
    """Returns sixteen characters that change with the seed and all else that can change a number.

    Unlike `config_hash` it looks at no file, and tells the same of what config.yaml gives back.
    """
    content = identity(to_dict(from_dict(to_dict(config))))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def config_hash(config: RunConfig, *, devices: int = 0) -> str:
    """Eight characters that name the configuration: all that can change a number, but the seed.

    Args:
      config: the configuration.
      devices: their number where it is to be part of the name, as of earlier versions.
    """
    content = identity(to_dict(config))
    content["execution"]["devices"] = devices
    del content["seed"]
    # another partition or other examples in the same file are another configuration
    for group, file in (("partition", config.data.partition_file), ("dataset", config.dataset)):
        path = Path(file or "").expanduser()
        if file and path.suffix in (".npz", ".json") and path.is_file():
            content["data"][f"{group}_content"] = _checksum(path)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def partition_name(data: Data) -> str:
    """Short name of the partition for the run directory."""
    if data.partition_file:
        return "file"
    if "@" in data.partition:  # a function of the caller's
        return data.partition
    detail = {"iid": "", "shards": data.per_client, "classes": data.per_client}
    return f"{data.partition}{detail.get(data.partition, data.alpha)}"


def check_seed(flag: str, seed: int) -> None:
    """Refuse a seed the generators would cut to 32 bits, and so to another seed's numbers."""
    if not 0 <= seed < 2**32:
        raise UserError(f"{flag}={seed}: give a number from 0 to {2**32 - 1}")


def validate(config: RunConfig) -> None:
    """Refuse values that make no sense, naming the flag."""
    d, lo, f, e, x = (
        config.data,
        config.local,
        config.federation,
        config.evaluation,
        config.execution,
    )
    positive = {
        "--rounds": config.rounds,
        "--data.alpha": d.alpha,
        "--data.per_client": d.per_client,
        "--data.words": d.words,
        "--data.length": d.length,
        "--data.side": d.side,
        "--local.epochs": lo.epochs,
        "--local.batch_size": lo.batch_size,
        "--local.lr": lo.lr,
        "--local.decay": lo.decay,
        "--federation.clients": f.clients,
        "--federation.participants": f.participants,
        "--evaluation.every": e.every,
        "--evaluation.last": e.last,
        "--evaluation.batch_size": e.batch_size,
        "--execution.chunk": x.chunk,
        "--execution.checkpoint_every": x.checkpoint_every,
    }
    typed.check_numbers(config)
    for flag, path in {"data.dir": d.dir, "data.partition_file": d.partition_file}.items():
        check_path(f"--{flag}", path or "")
    check_path("--dataset", config.dataset)
    for flag, value in positive.items():
        if not value > 0 or value == float("inf"):
            raise UserError(f"{flag}={value}: give a number above zero")
    if config.rounds >= 2**31:  # the state counts them in 32 bits
        raise UserError(f"--rounds={config.rounds}: give at most {2**31 - 1}")
    not_negative = {
        "--local.steps": lo.steps,
        "--local.weight_decay": lo.weight_decay,
        "--local.clip": lo.clip,
        "--data.limit": d.limit,
        "--execution.devices": x.devices,
        "--execution.client_state_mb": x.client_state_mb,
        "--execution.pool_mb": x.pool_mb,
        "--execution.save_seconds": x.save_seconds,
    }
    for flag, value in not_negative.items():
        if not value >= 0:
            raise UserError(f"{flag}={value}: give zero or more")
    if d.partition not in PARTITIONS and "@" not in d.partition:  # a caller's function has one
        raise unknown("--data.partition", d.partition, allowed=PARTITIONS)
    check_seed("--seed", config.seed)
    if d.seed != -1:  # which follows the run's
        check_seed("--data.seed", d.seed)
    if min(lo.milestones, default=0) < 0:
        raise UserError(f"--local.milestones {' '.join(map(str, lo.milestones))}: give rounds")
    if min(f.mapping, default=1) < 1:
        raise UserError(f"--federation.mapping {' '.join(map(str, f.mapping))}: give sizes")
    if not 0 <= lo.momentum < 1:
        raise UserError(f"--local.momentum={lo.momentum}: give a number from 0 to below 1")
    if not 0 <= f.dropout < 1:
        raise UserError(f"--federation.dropout={f.dropout}: give a share from 0 to below 1")
    if not 0 <= f.straggler <= 1:
        raise UserError(f"--federation.straggler={f.straggler}: give a share from 0 to 1")
    if not 0 < d.test_fraction < 1:
        raise UserError(f"--data.test_fraction={d.test_fraction}: give a share between 0 and 1")
    if e.stop_at is not None and not 0 < e.stop_at < 1:
        raise UserError(
            f"--evaluation.stop_at={e.stop_at:g}: give a share between 0 and 1, "
            "as 0.6 for 60 per cent"
        )
    if x.chunk > max(f.clients, 64):
        raise UserError(
            f"--execution.chunk={x.chunk} is more than --federation.clients={f.clients}: run at "
            "most all of them at once"
        )
    if f.participants > f.clients:
        raise UserError(
            f"--federation.participants={f.participants} is more than --federation.clients="
            f"{f.clients}: draw at most all of them"
        )
