"""Fashion-MNIST, EMNIST, SVHN and CINIC-10: what the official files hold, and what is refused."""

import gzip
import hashlib
import io
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
from official_files import CLASSES, png, write_cinic10, write_emnist, write_svhn
from PIL import Image

from fedjax_nc.data import datasets, official, prepare, sources
from fedjax_nc.data.catalogue import DATASETS, release_of
from fedjax_nc.errors import UserError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made(name, folder):
    """Writes a small release and returns the folder of its files."""
    folder.mkdir()
    if name == "svhn_cropped":
        write_svhn(folder)
    elif name == "cinic10":
        write_cinic10(folder)
    else:
        write_emnist(name.removeprefix("emnist_"), folder)
    return folder


def prepared(name, source, root):
    prepare.prepare(name, str(source), directory=str(root), official=False)
    return root / release_of(name).layout


def loaded(name, root):
    return datasets.load(name, str(root), order="official")


def test_emnist_is_as_in_its_files_and_has_two_datasets(tmp_path):
    for name in ("emnist_byclass", "emnist_balanced"):
        source = made(name, tmp_path / name)
        prepared(name, source, root=tmp_path / "data")
        file = f"{name.replace('_', '-')}-train-images-idx3-ubyte.gz"
        pixels = gzip.decompress((source / file).read_bytes())[16:]
        data = loaded(name, tmp_path / "data")
        assert data.train_x.tobytes() == pixels  # neither shuffled nor transposed
        np.testing.assert_array_equal(data.test_y, np.arange(DATASETS[name].classes))
    assert loaded("emnist_byclass", tmp_path / "data").test_y.max() == 61
    names = {config: release_of(f"emnist_{config}").names for config in ("balanced", "byclass")}
    assert names["balanced"][36:] == tuple("abdefghnqrt") and names["byclass"][61] == "z"


@pytest.mark.parametrize("ours", [True, False])
def test_svhn_is_as_in_its_files(ours, tmp_path):
    source = made("svhn_cropped", tmp_path / "release")
    target = prepared("svhn_cropped", source, root=tmp_path / "data")
    if not ours:  # as TFDS leaves it: the order is that of the ids
        (target / official.FILE).unlink()
    data = loaded("svhn_cropped", tmp_path / "data")
    for split, x, y in (("train", *data[:2]), ("test", *data[2:])):
        table = scipy.io.loadmat(source / f"{split}_32x32.mat")
        np.testing.assert_array_equal(x, np.stack([*np.rollaxis(table["X"], 3)]))
        wanted = [0 if label == 10 else label for label in table["y"][:, 0]]
        assert y.tolist() == wanted and set(wanted) == set(range(10))


@pytest.mark.parametrize("ours", [True, False])
def test_cinic10_has_the_order_of_its_paths(ours, tmp_path):
    source = made("cinic10", tmp_path / "release")
    target = prepared("cinic10", source, root=tmp_path / "data")
    if not ours:
        (target / official.FILE).unlink()
    data = loaded("cinic10", tmp_path / "data")
    for split, x, y in (("train", *data[:2]), ("test", *data[2:])):
        paths = [p for name in CLASSES for p in sorted((source / split / name).iterdir())]
        assert [CLASSES[label] for label in y] == [path.parent.name for path in paths]
        for path, image in zip(paths, x, strict=True):
            np.testing.assert_array_equal(image, np.asarray(Image.open(path).convert("RGB")))
    assert len(data.train_y) == 30  # without `valid`


def test_compressed_files_are_compared_and_preferred(tmp_path, monkeypatch):
    """Where only the compressed form has a checksum, it is read even beside an extracted one."""
    source = made("emnist_balanced", tmp_path / "release")
    files = release_of("emnist_balanced").kinds["idx"]
    packed = {f"{f}.gz": (source / f"{f}.gz").read_bytes() for f in files}
    sums = {file: hashlib.md5(data).hexdigest() for file, data in packed.items()}
    fashion = replace(release_of("fashion_mnist"), kinds={"idx": files}, md5=sums)
    sizes = {"classes": 47, "train": 94, "test": 47}
    spec = replace(DATASETS["fashion_mnist"], release=fashion, **sizes)
    monkeypatch.setitem(DATASETS, "fashion_mnist", spec)
    (source / files[1]).write_bytes(b"stale")
    labels = sources.read("fashion_mnist", source).splits["train"].labels
    np.testing.assert_array_equal(labels, np.tile(np.arange(47), 2))
    (source / f"{files[1]}.gz").write_bytes(packed[f"{files[1]}.gz"] + b"x")
    with pytest.raises(
        UserError, match=rf"{files[1]}\.gz has md5 \w+, not {sums[f'{files[1]}.gz']}"
    ):
        sources.read("fashion_mnist", source)


def test_extracted_mnist_is_not_fashion_mnist(tmp_path):
    """The files have the same names and sizes: the classes of Fashion-MNIST are even."""
    for prefix, count in (("train", 60000), ("t10k", 10000)):
        labels = np.arange(count, dtype=np.int64) % 10
        labels[0] = 1
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(bytes(16 + 784 * count))
        content = bytes(8) + labels.astype(np.uint8).tobytes()
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(UserError, match="60000 examples, 5999 to 6001 per class, not 60000 evenly"):
        sources.read("fashion_mnist", tmp_path)


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def mat(path, **content):
    scipy.io.savemat(path, content)


SMALL, LABELS = np.zeros((28, 28, 3, 4), np.uint8), np.ones((4, 1), np.uint8)
WHOLE = np.zeros((32, 32, 3, 4), np.uint8)
IMAGES = "emnist-balanced-train-images-idx3-ubyte.gz"


def few_pixels(path):
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))


def small_png(path):
    stream = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(stream, "png")
    path.write_bytes(stream.getvalue())


@pytest.mark.parametrize(
    "name, file, damage, said",
    [
        ("emnist_balanced", IMAGES, cut, "is not the emnist_balanced release"),
        ("emnist_balanced", IMAGES, few_pixels, "cannot reshape array"),
        ("emnist_balanced", IMAGES, lambda p: p.unlink(), "no emnist_balanced release in"),
        ("svhn_cropped", "test_32x32.mat", cut, "is not the svhn_cropped release"),
        ("svhn_cropped", "test_32x32.mat", lambda p: p.write_bytes(b""), "download it again"),
        ("svhn_cropped", "test_32x32.mat", lambda p: p.write_bytes(b"PK" * 99), "download it"),
        ("svhn_cropped", "test_32x32.mat", lambda p: p.unlink(), "give a folder with train_32x32"),
        ("svhn_cropped", "test_32x32.mat", lambda p: mat(p, X=SMALL, y=LABELS), r"28, 28, 3\), 4"),
        ("svhn_cropped", "test_32x32.mat", lambda p: mat(p, X=WHOLE, y=LABELS * 11), "4 labels"),
        ("svhn_cropped", "test_32x32.mat", lambda p: mat(p, X=WHOLE[..., :3], y=LABELS), "4 lab"),
        ("svhn_cropped", "test_32x32.mat", lambda p: mat(p, X=WHOLE), r"release \('y'\)"),
        ("cinic10", "train/cat/n02_9.png", cut, "an image is damaged"),
        ("cinic10", "train/cat/n02_9.png", small_png, "cannot prepare cinic10 .*16x16 pixels"),
        ("cinic10", "train/airplane", lambda p: p.rename(p.with_name("plane")), "no cinic10 rel"),
        ("cinic10", "train/cat", lambda p: p.rename(p.with_name("lion")), "'lion' is not in list"),
    ],
)
def test_refused_files(name, file, damage, said, tmp_path):
    source = made(name, tmp_path / "release")
    damage(source / file)
    with pytest.raises(UserError, match=said) as caught:
        prepared(name, source, root=tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "data").rglob("*")), "a failed run left something"


def test_cinic10_counts_its_pictures(tmp_path):
    source = made("cinic10", tmp_path / "release")
    (source / "train" / "cat" / "extra.png").write_bytes(png(np.random.RandomState(0)))
    with pytest.raises(UserError, match="train split has 31 examples, 3 to 4 per class"):
        sources.read("cinic10", source)
