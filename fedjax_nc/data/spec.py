"""The record of a dataset, with standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedjax_nc.errors import command

# What the examples look like, by which protocols choose a network and an augmentation: small grey
# pictures, pictures of some ten pixels, large ones, or rows of word ids.
Kind = Literal["digits", "images", "photographs", "text"]
LARGE = 128  # pixels from which a picture of unknown origin counts as a photograph


@dataclass(frozen=True, kw_only=True)
class Release:
    """An official release: what is downloaded, how it is checked, and how it is read."""

    layout: str  # its place in the TFDS catalogue, where other TFDS programs find it too
    reader: str  # the function in `sources.py` that reads it
    urls: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]  # a form it is published in -> the paths that show it
    archives: Mapping[str, str] = field(default_factory=dict)  # file name -> md5
    md5: Mapping[str, str] = field(default_factory=dict)  # path inside the release -> md5
    splits: tuple[str, str] = ("train", "test")  # what TFDS calls them
    names: tuple[str, ...] = ()  # of the classes, where the files do not tell
    even: bool = True  # every class has equally many examples

    @property
    def tfds_name(self) -> str:
        """The name in the TFDS catalogue."""
        return self.layout.split("/")[0]

    @property
    def tfds_config(self) -> str | None:
        """The configuration in the TFDS catalogue, where the dataset has several."""
        parts = self.layout.split("/")
        return parts[1] if len(parts) == 3 else None


@dataclass(frozen=True, kw_only=True)
class Subset:
    """Some classes of ImageNet, which a person brings along and which is decoded to any size."""

    per_class: int | None = None  # training pictures of each class, the first by name; None: all


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What a dataset is, and where its examples come from: `load`, `release` or `subset`."""

    name: str
    classes: int
    shape: tuple[int, ...]  # of an image [h, w, c], or [length] of a row of word ids
    train: int  # examples of the official training split
    test: int
    mean: tuple[float, ...] = ()  # of each channel, as published code has it; images 0 to 1
    std: tuple[float, ...] = ()
    kind: Kind = "images"
    words: int = 0  # of text: how many have an id of their own
    source: str = ""  # in words, for `--list`
    load: Callable[[], Any] | str | None = None  # () -> four arrays, or its "module:function"
    release: Release | None = None
    subset: Subset | None = None

    @property
    def is_text(self) -> bool:
        """Whether examples are rows of word ids instead of images."""
        return self.kind == "text"

    @property
    def origin(self) -> str:
        """Where the examples come from: the command that prepares them, or the source."""
        if self.subset:
            return f"{command('prepare')} {self.name} --from PATH"
        return f"{command('prepare')} {self.name}" if self.release else self.source


def kind_of(shape: tuple[int, ...]) -> Kind:
    """Returns the kind of examples of which only the shape is known."""
    if len(shape) == 1:
        return "text"
    if shape[-1] == 1 and min(shape[:2]) < LARGE:
        return "digits"
    return "images" if min(shape[:2]) < LARGE else "photographs"
