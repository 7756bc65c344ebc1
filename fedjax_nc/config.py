"""One run's configuration: frozen dataclasses, standard library only, so flags parse before jax."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Data:
    """Which examples each client holds."""

    dir: str | None = None
    """Where prepared TFDS datasets live. Default: TFDS_DATA_DIR, then ~/tensorflow_datasets."""
    partition: Literal["iid", "shards", "dirichlet", "classes", "quantity"] = "dirichlet"
    """How the training set is dealt to clients."""
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
    augment: tuple[str, ...] = ()
    """Training augmentation in order, of: crop4 flip rrc cutout8."""
    normalise: Literal["dataset", "half"] = "dataset"
    """Published per-channel constants, or mean and std 0.5 as FedETF's code."""
    limit: int = 0
    """Keep only this many training examples, class balanced; 0 keeps all."""


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
    norm: Literal["default", "running", "batch", "none"] = "default"
    """BatchNorm: with running statistics, the batch's own, none; default is the model's."""


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
    finetune: bool = True
    """After the last round: the method's own fine-tuning, tested likewise."""


@dataclass(frozen=True)
class Execution:
    """How the same round is computed; results agree up to rounding."""

    executor: Literal["auto", "vmap", "scan", "chunked", "sharded", "debug"] = "auto"
    """Clients at once, one by one, in chunks, over devices, or unjitted one by one."""
    chunk: int = 4
    """Clients at once under `chunked`."""
    devices: int = 0
    """Devices to use; on a CPU as many are set up. 0: all, or one per core."""
    conv: Literal["auto", "native", "canonical", "im2col"] = "auto"
    """How convolutions are computed."""
    client_state_mb: int = 2000
    """Client state above this size stays in host memory; only participants move."""


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
    """How a paper runs its experiments; sets the defaults of everything below."""
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
    def partition_seed(self) -> int:
        """Seed of the partition."""
        return self.seed if self.data.seed < 0 else self.data.seed


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dict with lists, as written to config.yaml."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_hash(config: RunConfig) -> str:
    """Eight characters that name the configuration; seed and data location do not count."""
    content = to_dict(config)
    del content["seed"], content["data"]["dir"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def partition_name(data: Data) -> str:
    """Short name of the partition for the run directory."""
    if data.partition_file:
        return "file"
    detail = {"iid": "", "shards": data.per_client, "classes": data.per_client}
    return f"{data.partition}{detail.get(data.partition, data.alpha)}"
