"""The work that is timed, and its data. Standard library and numpy: the peers import it too."""

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SHAPE, CLASSES = (32, 32, 3), 10
WARM_UP = 2  # rounds of everyone that are not counted: compilation, allocation, caches


@dataclass(frozen=True)
class Workload:
    """One configuration; the defaults are the fixed workload all frameworks are compared on."""

    method: str = "fedavg"
    model: str = "fedavg_cnn"
    norm: str = "default"
    clients: int = 100
    participants: int = 10
    images: int = 500
    batch_size: int = 50
    epochs: int = 1
    lr: float = 0.01
    momentum: float = 0.9
    executor: str = "auto"
    conv: str = "auto"
    devices: int = 0
    chunk: int = 4
    steps: tuple[int, ...] = ()  # full batches of each client, instead of `images` for all
    seeds: int = 1  # that run as one program

    @property
    def sizes(self) -> list[int]:
        """Images of every client."""
        return [n * self.batch_size for n in self.steps] or [self.images] * self.clients

    @property
    def images_per_round(self) -> float:
        """Images a round trains on, on average over the clients drawn."""
        return sum(self.sizes) * self.participants * self.epochs / self.clients

    @property
    def title(self) -> str:
        """A line that tells it from others."""
        parts = [self.method, self.model, *(() if self.norm == "default" else (self.norm,))]
        parts.append(f"{self.participants} of {self.clients} clients")
        parts += [
            f"{k}={getattr(self, k)}" for k in ("executor", "conv") if getattr(self, k) != "auto"
        ]
        return ", ".join(parts)


def encode(workload: Workload) -> str:
    """For a child's command line."""
    return json.dumps(dataclasses.asdict(workload))


def decode(text: str) -> Workload:
    """The inverse of `encode`."""
    fields = json.loads(text)
    return Workload(**fields | {"steps": tuple(fields["steps"])})


def arrays(workload: Workload) -> "tuple[np.ndarray, np.ndarray]":
    """Random images, uint8 [n, 32, 32, 3], and labels, int32 [n], client after client."""
    import numpy as np

    rng = np.random.default_rng(0)
    total = sum(workload.sizes)
    x = rng.integers(0, 256, (total, *SHAPE), dtype=np.uint8)
    return x, rng.integers(0, CLASSES, total).astype(np.int32)


def reviews(workload: Workload, length: int, words: int) -> "tuple[np.ndarray, np.ndarray]":
    """Random words, int32 [n, length], and one of two labels, for models that read text."""
    import numpy as np

    rng = np.random.default_rng(0)
    total = sum(workload.sizes)
    x = rng.integers(0, words, (total, length), dtype=np.int32)
    return x, rng.integers(0, 2, total).astype(np.int32)


def float_arrays(workload: Workload, *, channels_first: bool) -> "tuple[np.ndarray, np.ndarray]":
    """The same per client as peers want it: float32 in [-1, 1], [clients, images, ...]."""
    import numpy as np

    x, y = arrays(workload)
    x = x.astype(np.float32) / 127.5 - 1.0
    if channels_first:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    lead = workload.clients, workload.images
    return x.reshape(*lead, *x.shape[1:]), y.reshape(lead)


def cohort(workload: Workload, round_number: int) -> "np.ndarray":
    """The clients of a round, for peers that leave drawing them to us."""
    import numpy as np

    rng = np.random.default_rng((1, round_number))
    return rng.choice(workload.clients, workload.participants, replace=False)
