"""The record of a protocol, and the settings that several protocols share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_nc.config import RunConfig
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.methods.catalogue import Piece


class Settings(NamedTuple):
    """The settings that a protocol has for a dataset and a method."""

    config: RunConfig
    hyper: Mapping[str, Mapping[str, Any]]  # of each `method` and `| regulariser`
    # further settings of some networks, by name and group, whoever asks for them
    of_network: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}


class Protocol(NamedTuple):
    """How one paper runs its experiments."""

    make: Callable[[DatasetSpec, Piece, str], Settings]  # of dataset, method and regime
    datasets: tuple[str, ...]  # those of the paper
    regimes: Mapping[str, str] = {}  # what each is; the first is the default
    mapping: tuple[int, ...] = ()  # dense layers behind networks that do not end with such
    varied: Mapping[str, str] = {}  # where, and further values -> flags of the paper's other runs
    seeds: tuple[int, ...] = ()  # of the paper, if it names them
    repeats: str = "how often runs were repeated is not stated"

    @property
    def about(self) -> list[str]:
        """The paragraphs of the manual page; the first is one line."""
        text = (self.make.__doc__ or "").strip()
        return [" ".join(part.split()) for part in text.split("\n\n")]


def network(dataset: DatasetSpec, default: str, **others: str) -> str:
    """Returns the paper's network, or the usual one of a kind of data the paper does not use."""
    if dataset.kind == "digits":
        return "cnn" if min(dataset.shape[:2]) >= 16 else "mlp"
    usual = {"text": "bilstm", "photographs": "resnet18"}
    return usual.get(dataset.kind, others.get(dataset.name, default))


def augmentation(dataset: DatasetSpec) -> tuple[str, ...]:
    """Returns a padded crop and a flip of images, the random resized crop of photographs."""
    if dataset.is_text:
        return ()
    return ("rrc" if dataset.kind == "photographs" else "crop4", "flip")
