"""The datasets that the package knows, one record each.

To add one that people download, write its record here; if its format is new, also the function that
reads it in `sources.py`, which the record names.
"""

from typing import Any

from fedjax_nc.data.spec import DatasetSpec, Release, Subset

_CIFAR: Any = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
_MNIST: Any = {"mean": (0.1307,), "std": (0.3081,), "kind": "digits"}
_IMAGENET: Any = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "kind": "photographs",
}
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

RECORDS = (
    DatasetSpec(
        name="mnist5k",
        classes=10,
        shape=(28, 28, 1),
        train=4000,
        test=1000,
        **_MNIST,
        source="in this package",
        load="fedjax_nc.data.bundled:mnist5k",
    ),
    DatasetSpec(
        name="digits",
        classes=10,
        shape=(8, 8, 1),
        train=1437,
        test=360,
        mean=(0.3053,),
        std=(0.3763,),
        kind="digits",
        source="in scikit-learn",
        load="fedjax_nc.data.bundled:digits",
    ),
    DatasetSpec(
        name="mnist",
        classes=10,
        shape=(28, 28, 1),
        train=60000,
        test=10000,
        **_MNIST,
        release=Release(
            layout="mnist/3.0.1",
            reader="idx",
            urls=tuple(f"https://storage.googleapis.com/cvdf-datasets/mnist/{f}.gz" for f in _IDX),
            kinds={"idx": _IDX},
            md5={
                "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
                "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
                "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
                "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
            },
            names=tuple("0123456789"),
            even=False,
        ),
    ),
    DatasetSpec(
        name="cifar10",
        classes=10,
        shape=(32, 32, 3),
        train=50000,
        test=10000,
        **_CIFAR,
        release=Release(
            layout="cifar10/3.0.2",
            reader="cifar10",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            archives={
                "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
                "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
            },
            kinds={"binary": tuple(f"{batch}.bin" for batch in _BATCHES), "python": _BATCHES},
            md5={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            names=(
                *("airplane", "automobile", "bird", "cat", "deer"),
                *("dog", "frog", "horse", "ship", "truck"),
            ),
        ),
    ),
    DatasetSpec(
        name="cifar100",
        classes=100,
        shape=(32, 32, 3),
        train=50000,
        test=10000,
        **_CIFAR,
        release=Release(
            layout="cifar100/3.0.2",
            reader="cifar100",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            archives={
                "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
                "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
            },
            kinds={"binary": ("train.bin", "test.bin"), "python": ("train", "test", "meta")},
            md5={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
        ),
    ),
    DatasetSpec(
        name="tiny_imagenet",
        classes=200,
        shape=(64, 64, 3),
        train=100000,
        test=10000,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        release=Release(
            layout="tiny_imagenet/1.0.0",
            reader="tiny_imagenet",
            urls=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            archives={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
            kinds={"folder": ("wnids.txt", "val/val_annotations.txt", "train")},
            splits=("train", "validation"),
        ),
    ),
    DatasetSpec(
        name="imagenet100",
        classes=100,
        shape=(224, 224, 3),
        train=126689,
        test=5000,
        **_IMAGENET,
        subset=Subset(),
    ),
    DatasetSpec(
        name="imagenet200",
        classes=200,
        shape=(224, 224, 3),
        train=100000,
        test=10000,
        **_IMAGENET,
        subset=Subset(per_class=500),  # FedAlign's number
    ),
    DatasetSpec(
        name="imdb_reviews",
        classes=2,
        shape=(200,),
        train=25000,
        test=25000,
        kind="text",
        words=10_000,
        release=Release(
            layout="imdb_reviews/plain_text/1.0.0",
            reader="imdb_reviews",
            urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
            archives={"aclImdb_v1.tar.gz": "7c2ac02c03563afcf9b574c7e56c153a"},
            kinds={"folder": ("train/neg", "train/pos", "test/neg", "test/pos")},
            names=("neg", "pos"),
        ),
    ),
)
