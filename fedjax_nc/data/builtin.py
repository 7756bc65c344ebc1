"""The datasets that the package knows, one record each.

To add one that people download, write its record here; if its format is new, also the function that
reads it in `sources.py`, which the record names.
"""

from string import ascii_lowercase, ascii_uppercase, digits
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
_EMNIST = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_TEN = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SVHN = ("train_32x32.mat", "test_32x32.mat")
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def _emnist(config: str, names: str, sizes: tuple[int, int], even: bool) -> DatasetSpec:
    """Returns the record of one of EMNIST's datasets, which share an archive.

    Pictures are transposed, as in the official files, TFDS and torchvision. No checksums of the
    single files are published: extracted ones are checked by their sizes and counts.
    """
    return DatasetSpec(
        name=f"emnist_{config}",
        classes=len(names),
        shape=(28, 28, 1),
        train=sizes[0],
        test=sizes[1],
        mean=(0.1751,),  # what public code has for both, by whom computed is not said
        std=(0.3332,),
        kind="digits",
        release=Release(
            layout=f"emnist/{config}/3.1.0",
            reader="idx",
            urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            archives={"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},  # torchvision's
            kinds={"idx": tuple(f"emnist-{config}-{part}-ubyte" for part in _EMNIST)},
            names=tuple(names),
            even=even,
        ),
    )


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
        name="fashion_mnist",
        classes=10,
        shape=(28, 28, 1),
        train=60000,
        test=10000,
        mean=(0.2860,),  # of the training split, as public code computes and has it
        std=(0.3530,),
        kind="digits",
        release=Release(
            layout="fashion_mnist/3.0.1",
            reader="idx",
            urls=tuple(f"{_FASHION}/{f}.gz" for f in _IDX),
            kinds={"idx": _IDX},
            # The authors', of the compressed files only: extracted ones are checked by counts.
            md5={
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
            names=(
                *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
                *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
            ),
        ),
    ),
    _emnist("balanced", f"{digits}{ascii_uppercase}abdefghnqrt", sizes=(112800, 18800), even=True),
    _emnist(
        "byclass", digits + ascii_uppercase + ascii_lowercase, sizes=(697932, 116323), even=False
    ),
    DatasetSpec(
        name="svhn_cropped",
        classes=10,
        shape=(32, 32, 3),
        train=73257,
        test=26032,
        mean=(0.4377, 0.4438, 0.4728),  # as public code has it, such as DeepCore's
        std=(0.1980, 0.2010, 0.1970),
        release=Release(
            layout="svhn_cropped/3.1.0",
            reader="svhn",
            urls=tuple(f"http://ufldl.stanford.edu/housenumbers/{f}" for f in _SVHN),
            kinds={"mat": _SVHN},
            md5={  # torchvision's
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
            names=tuple(digits),
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
            names=_TEN,
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
        name="cinic10",  # its split `valid` is left out: the authors' suggested use
        classes=10,
        shape=(32, 32, 3),
        train=90000,
        test=90000,
        mean=(0.47889522, 0.47227842, 0.43047404),  # the authors'
        std=(0.24205776, 0.23828046, 0.25874835),
        release=Release(
            layout="cinic10/1.0.0",  # TFDS has none: a place of our own
            reader="cinic10",
            urls=("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",),
            archives={"CINIC-10.tar.gz": "6ee4d0c996905fe93221de577967a372"},
            kinds={"folder": ("train/airplane", "test/airplane")},
            names=_TEN,
        ),
    ),
    DatasetSpec(
        name="tiny_imagenet",
        classes=200,
        shape=(64, 64, 3),
        train=100000,
        test=10000,
        # of the training split, as public code has it; 20 pictures of each class have the same to
        # within 0.002
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
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
