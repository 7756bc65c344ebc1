"""Facts about the datasets, readable without importing numpy or jax."""

from typing import NamedTuple

from fedjax_nc.config import Data


class DatasetSpec(NamedTuple):
    """What a dataset is: shape, classes, sizes, and the normalisation published code uses."""

    name: str
    classes: int
    shape: tuple[int, ...]
    train: int  # examples of the official training split
    test: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    source: str = ""
    words: int = 0  # of text: how many have an id of their own

    @property
    def is_text(self) -> bool:
        """Token sequences instead of images."""
        return self.words > 0


_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_TINY = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
_MNIST = ((0.1307,), (0.3081,))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

DATASETS = {
    spec.name: spec
    for spec in (
        DatasetSpec("mnist5k", 10, (28, 28, 1), 4000, 1000, *_MNIST, "in this package"),
        DatasetSpec("digits", 10, (8, 8, 1), 1437, 360, (0.3053,), (0.3763,), "in scikit-learn"),
        DatasetSpec("mnist", 10, (28, 28, 1), 60000, 10000, *_MNIST, "prepare_data.py mnist"),
        DatasetSpec("cifar10", 10, (32, 32, 3), 50000, 10000, *_CIFAR, "prepare_data.py cifar10"),
        DatasetSpec(
            "cifar100", 100, (32, 32, 3), 50000, 10000, *_CIFAR, "prepare_data.py cifar100"
        ),
        DatasetSpec(
            "tiny_imagenet",
            200,
            (64, 64, 3),
            100000,
            10000,
            *_TINY,
            "prepare_data.py tiny_imagenet",
        ),
        DatasetSpec(
            "imagenet100", 100, (224, 224, 3), 126689, 5000, *_IMAGENET,
            "prepare_data.py imagenet100 --from PATH"
        ),
        DatasetSpec(
            "imagenet200", 200, (224, 224, 3), 100000, 10000, *_IMAGENET,
            "prepare_data.py imagenet200 --from PATH"
        ),
        DatasetSpec("imdb_reviews", 2, (200,), 25000, 25000, (), (),
                    "prepare_data.py imdb_reviews", 10_000),
    )
}  # fmt: skip
PICTURES = ("imagenet100", "imagenet200")  # read from a directory of ImageNet, at any size


def sized(name: str, data: Data) -> DatasetSpec:
    """The dataset at the sizes a run asks for."""
    spec = DATASETS[name]
    if spec.is_text:
        return spec._replace(shape=(data.length,), words=data.words)
    return spec._replace(shape=(data.side, data.side, 3)) if name in PICTURES else spec
