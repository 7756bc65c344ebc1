import gzip
import io
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from official_files import write_cinic10, write_emnist, write_imdb, write_svhn
from PIL import Image

from fedjax_nc.data import datasets, prepare, sources
from fedjax_nc.data.catalogue import DATASETS, release_of
from fedjax_nc.errors import UserError

REPO = Path(__file__).resolve().parents[1]
RNG = np.random.RandomState(0)
NAMES = [spec.name for spec in DATASETS.values() if spec.release]


def write_mnist(folder):
    for prefix, count in (("train", 12), ("t10k", 5)):
        images = RNG.randint(0, 256, (count, 28, 28), np.uint8).tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(bytes(16) + images)
        labels = bytes(8) + bytes(i % 10 for i in range(count))
        # One of the two in the compressed form it is published in.
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def write_cifar(name, folder, kind):
    wide = name == "cifar100"
    parts = ["train", "test"] if wide else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    rng = np.random.RandomState(1)  # the same pictures whatever the kind
    for part in parts:
        pixels = rng.randint(0, 256, (4, 3072), np.uint8)
        fine = rng.randint(0, 10, 4).astype(np.uint8)
        coarse = fine // 5  # every class has one
        if kind == "binary":
            columns = [coarse, fine] if wide else [fine]
            rows = np.concatenate([np.stack(columns, 1), pixels], 1)
            (folder / f"{part}.bin").write_bytes(rows.tobytes())
        else:
            labels = {"coarse_labels": coarse.tolist(), "fine_labels": fine.tolist()}
            batch = {"data": pixels, **(labels if wide else {"labels": fine.tolist()})}
            (folder / part).write_bytes(pickle.dumps(batch))
    if wide:
        meta = {
            "fine_label_names": [f"f{i}" for i in range(100)],
            "coarse_label_names": [f"c{i}" for i in range(20)],
        }
        if kind == "python":
            (folder / "meta").write_bytes(pickle.dumps(meta))
        else:
            for key, names in meta.items():
                (folder / f"{key}.txt").write_text("\n".join(names) + "\n")


def jpeg(mode="RGB"):
    shape = (64, 64, 3) if mode == "RGB" else (64, 64)
    stream = io.BytesIO()
    Image.fromarray(RNG.randint(0, 256, shape, np.uint8)).save(stream, "jpeg")
    return stream.getvalue()


def write_tiny_imagenet(folder):
    wnids = [f"n{i:08d}" for i in range(200)]
    (folder / "wnids.txt").write_text("\n".join(wnids))
    for k in (3, 77):
        images = folder / "train" / wnids[k] / "images"
        images.mkdir(parents=True)
        for i in range(3):
            (images / f"{wnids[k]}_{i}.JPEG").write_bytes(jpeg("L" if i == 0 else "RGB"))
    (folder / "val" / "images").mkdir(parents=True)
    notes = [(f"val_{i}.JPEG", wnids[77 if i else 3]) for i in range(4)]
    for file, _ in notes:
        (folder / "val" / "images" / file).write_bytes(jpeg())
    lines = "".join(f"{file}\t{wnid}\t0\t0\t9\t9\n" for file, wnid in notes)
    (folder / "val" / "val_annotations.txt").write_text(lines)


def release(name, folder, kind="binary"):
    """A small release in the genuine format."""
    folder.mkdir(parents=True)
    if name.startswith("cifar"):
        write_cifar(name, folder, kind)
    elif name.startswith("emnist"):
        write_emnist(name.split("_")[1], folder)
    else:
        {
            "mnist": write_mnist,
            "fashion_mnist": write_mnist,
            "svhn_cropped": write_svhn,
            "cinic10": write_cinic10,
            "tiny_imagenet": write_tiny_imagenet,
            "imdb_reviews": write_imdb,
        }[name](folder)
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", NAMES)
def test_prepared_data_is_read_by_tfds_and_by_load(name, tmp_path):
    source, root = release(name, tmp_path / "release"), tmp_path / "data"
    said = prepare.prepare(name, str(source), directory=str(root), official=False)
    assert str(root / release_of(name).layout) in said
    assert not list(root.glob("**/*incomplete*"))
    given = sources.read(name, source, official=False)
    data = datasets.load(name, str(root))
    assert [len(data.train_y), len(data.test_y)] == [len(s.labels) for s in given.splits.values()]
    assert sorted(data.train_y) == sorted(given.splits["train"].labels)
    numbered = datasets.load(name, str(root), order="official")
    for y, split in zip((numbered.train_y, numbered.test_y), given.splits.values(), strict=True):
        np.testing.assert_array_equal(y, split.labels)
    for x, (_, example) in zip(numbered.train_x, given.splits["train"].examples(), strict=True):
        image = example.get("image")
        assert not isinstance(image, np.ndarray) or np.array_equal(x, image)

    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(root / release_of(name).layout)
    assert builder.info.name == release_of(name).tfds_name
    read = builder.as_data_source("train")
    if name == "imdb_reviews":
        texts = {example["text"]: example["label"] for example in read}
        assert texts["neg café film number 0<br />".encode()] == 0
        assert texts["pos café film number 2<br />".encode()] == 1 and len(texts) == 6
        assert tfds.builder(name, data_dir=root, try_gcs=False).info.config_name == "plain_text"
    else:
        for i, example in enumerate(read):
            np.testing.assert_array_equal(example["image"], data.train_x[i])
        assert builder.info.features["label"].names == given.names["label"]
    if name == "mnist":
        raw = (source / "train-images-idx3-ubyte").read_bytes()[16:]
        assert {picture.tobytes() for picture in data.train_x} == {
            raw[i : i + 784] for i in range(0, len(raw), 784)
        }
    if name.startswith("cifar"):
        train = {example["id"].decode(): example for example in read}
        first = (source / ("train.bin" if name == "cifar100" else "data_batch_1.bin")).read_bytes()
        skip = 2 if name == "cifar100" else 1
        picture = np.frombuffer(first[skip : skip + 3072], np.uint8).reshape(3, 32, 32)
        np.testing.assert_array_equal(train["train_00000"]["image"], picture.transpose(1, 2, 0))
        assert train["train_00000"]["label"] == first[skip - 1]
        assert name == "cifar10" or train["train_00000"]["coarse_label"] == first[0]
    assert "already prepared" in prepare.prepare(name, None, directory=str(root))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_cifar_kinds_hold_the_same(name, tmp_path):
    kinds = [
        sources.read(name, release(name, tmp_path / kind, kind), official=False)
        for kind in ("binary", "python")
    ]
    assert kinds[0].names == kinds[1].names
    for split in ("train", "test"):
        for (_, a), (_, b) in zip(*(kind.splits[split].examples() for kind in kinds), strict=True):
            np.testing.assert_array_equal(a.pop("image"), b.pop("image"))
            assert a == b


@pytest.mark.parametrize("name", [name for name in NAMES if release_of(name).archives])
def test_an_archive_equals_its_folder(name, tmp_path):
    folder = release(name, tmp_path / "made" / "release")
    archive = tmp_path / "kept" / next(iter(release_of(name).archives))
    archive.parent.mkdir()
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as out:
            for file in folder.rglob("*"):
                out.write(file, Path("release") / file.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz") as out:
            out.add(folder, "release")
    # The archive itself, the directory it lies in, and the directory the folder lies in.
    for path in (archive, archive.parent, folder.parent):
        found = sources.read(name, path, official=False)
        for split, (labels, examples) in sources.read(name, folder, False).splits.items():
            np.testing.assert_array_equal(labels, found.splits[split].labels)
            for (k, a), (q, b) in zip(examples(), found.splits[split].examples(), strict=True):
                assert k == q and a.keys() == b.keys()
                assert all(np.array_equal(a[key], b[key]) for key in a)
    with pytest.raises(UserError, match=r"has md5 \w{32}, not \w{32}"):
        sources.read(name, archive)


@pytest.mark.parametrize(
    "name, kind, message",
    [
        ("mnist", "", "train-images-idx3-ubyte has md5 .*, not 6bbc9ace898e44ae57da46a324031adb"),
        ("fashion_mnist", "", r"train-labels-idx1-ubyte\.gz has md5 .*, not 25c81989df183df01b3e"),
        ("emnist_balanced", "", "train split has 94 examples, 2 to 2 per class, not 112800"),
        ("emnist_byclass", "", "train split has 124 examples"),
        ("svhn_cropped", "", "train_32x32.mat has md5 .*, not e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("cinic10", "", "train split has 30 examples, 3 to 3 per class, not 90000"),
        ("cifar10", "binary", "data_batch_1.bin has md5 .*, not 5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("cifar10", "python", "data_batch_1 has md5 .*, not c99cafc152244af753f735de768cd75f"),
        ("cifar100", "binary", "train split has 4 examples"),
        ("cifar100", "python", "meta has md5 .*, not 7973b15100ade9c7d40fb424638fde48"),
        ("tiny_imagenet", "", "train split has 6 examples"),
        ("imdb_reviews", "", "train split has 6 examples, 3 to 3 per class, not 25000"),
    ],
)
def test_files_that_are_not_the_official_ones(name, kind, message, tmp_path):
    source = release(name, tmp_path / "release", kind or "binary")
    with pytest.raises(UserError, match=message):
        prepare.prepare(name, str(source), directory=str(tmp_path / "data"))
    assert not list((tmp_path / "data").rglob("*")), "a failed run left something"


def test_read_back_notices_a_wrong_label(tmp_path):
    source = sources.read("mnist", release("mnist", tmp_path / "release"), official=False)
    (tmp_path / "out").mkdir()
    prepare.write("mnist", source, folder=tmp_path / "out")
    prepare.read_back("mnist", source, folder=tmp_path / "out")
    labels, examples = source.splits["test"]

    def altered():
        for key, example in examples():
            yield key, example | {"label": 9 if key == 2 else example["label"]}

    source.splits["test"] = sources.Split(labels, altered)
    with pytest.raises(UserError, match="1 examples of mnist test came back different"):
        prepare.read_back("mnist", source, folder=tmp_path / "out")


def test_a_picture_that_cannot_be_decoded(tmp_path):
    source = release("tiny_imagenet", tmp_path / "release")
    next(source.glob("train/*/images/*_1.JPEG")).write_bytes(b"not a jpeg")
    with pytest.raises(UserError, match="an image is damaged"):
        prepare.prepare(
            "tiny_imagenet", str(source), directory=str(tmp_path / "data"), official=False
        )
    assert not list((tmp_path / "data").rglob("*"))


KILLED = """
import sys, time
from fedjax_nc.data import prepare
real = prepare.encode_png
def slow(pixels):
    print("encoding", flush=True)
    time.sleep(0.5)
    return real(pixels)
prepare.encode_png = slow
prepare.prepare("mnist", sys.argv[1], directory=sys.argv[2], official=False)
"""


def test_killed_preparation_leaves_nothing_prepared(tmp_path):
    source, root = release("mnist", tmp_path / "release"), tmp_path / "data"
    command = [sys.executable, "-c", KILLED, str(source), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "encoding\n"
        with pytest.raises(UserError, match="another process is preparing mnist"):
            prepare.prepare("mnist", str(source), directory=str(root), official=False)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    assert not (root / "mnist/3.0.1").exists()
    assert len(list((root / "mnist").glob("incomplete.*"))) == 1
    with pytest.raises(UserError, match="half-prepared"):
        datasets.load("mnist", str(root))
    prepare.prepare("mnist", str(source), directory=str(root), official=False)
    assert not list((root / "mnist").glob("incomplete.*"))
    assert len(datasets.load("mnist", str(root)).train_y) == 12


def test_a_damaged_target_is_not_called_prepared(tmp_path):
    source, root = release("mnist", tmp_path / "release"), tmp_path / "data"
    prepare.prepare("mnist", str(source), directory=str(root), official=False)
    shard = next((root / "mnist/3.0.1").glob("*train.array_record*"))
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(UserError, match=f"half-prepared.*delete {root / 'mnist/3.0.1'}"):
        prepare.prepare("mnist", str(source), directory=str(root), official=False)


FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@pytest.mark.parametrize("layout", ["fashion_mnist/3.0.1", "other_name/balanced/3.1.0"])
def test_one_record_adds_a_dataset(layout, tmp_path, monkeypatch):
    """Another dataset in MNIST's format, also under a configuration of another TFDS name."""
    record = replace(release_of("mnist"), layout=layout, names=FASHION, md5={}, even=True)
    spec = replace(DATASETS["mnist"], name="fashion_mnist", release=record, train=12, test=5)
    monkeypatch.setitem(DATASETS, "fashion_mnist", spec)
    source, root = release("mnist", tmp_path / "release"), tmp_path / "data"
    with pytest.raises(UserError, match="train split has 12 examples, 1 to 2 per class"):
        prepare.prepare("fashion_mnist", str(source), directory=str(root))
    said = prepare.prepare("fashion_mnist", str(source), directory=str(root), official=False)
    assert said == f"fashion_mnist is prepared in {root / layout} (12 train, 5 test)"
    data = datasets.load("fashion_mnist", str(root))
    assert data.train_x.shape == (12, 28, 28, 1)
    assert sorted(data.test_y) == [0, 1, 2, 3, 4]
    assert "already prepared" in prepare.prepare("fashion_mnist", None, directory=str(root))
    with pytest.raises(UserError, match=f"no mnist in .*it holds {layout.split('/')[0]}"):
        datasets.load("mnist", str(root))

    import tensorflow_datasets as tfds

    info = tfds.builder(layout.split("/")[0], data_dir=root, try_gcs=False).info
    assert info.features["label"].names == list(FASHION)
    assert info.full_name == layout


def test_archive_of_packed_files(tmp_path, monkeypatch):
    """A zip of .gz files in a folder, as EMNIST comes."""
    made = release("mnist", tmp_path / "made")
    paths = tuple(f"gzip/{file}" for file in release_of("mnist").kinds["idx"])
    record = replace(
        release_of("mnist"), kinds={"idx": paths}, archives={"packed.zip": "0" * 32}, md5={}
    )
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], release=record))
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as out:
        for file in made.iterdir():
            data = file.read_bytes()
            packed = data if file.suffix == ".gz" else gzip.compress(data)
            out.writestr(f"gzip/{file.name.removesuffix('.gz')}.gz", packed)
    with zipfile.ZipFile(tmp_path / "packed.zip") as archive:
        archive.extractall(tmp_path / "extracted")
    whole, folder = (
        sources.read("mnist", tmp_path / path, official=False)
        for path in ("packed.zip", "extracted")
    )
    for split in ("train", "test"):
        np.testing.assert_array_equal(whole.splits[split].labels, folder.splits[split].labels)
        for (_, a), (_, b) in zip(
            *(s.splits[split].examples() for s in (whole, folder)), strict=True
        ):
            np.testing.assert_array_equal(a["image"], b["image"])


def use_urls(monkeypatch, name, urls):
    release = replace(release_of(name), urls=tuple(urls))
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], release=release))


def test_no_network(tmp_path, monkeypatch):
    use_urls(monkeypatch, "cifar10", ["http://127.0.0.1:9/cifar-10-binary.tar.gz"])
    start = time.time()
    with pytest.raises(UserError, match=r"cannot download http://127.0.0.1:9.*--from PATH"):
        prepare.prepare("cifar10", None, directory=str(tmp_path / "data"))
    assert time.time() - start < 10
    assert not list((tmp_path / "data").rglob("*"))


def test_a_download_is_checked_and_prepared(tmp_path, monkeypatch):
    folder = release("mnist", tmp_path / "release")
    urls = []
    for file in folder.iterdir():
        if file.suffix != ".gz":
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    for file in sorted(folder.iterdir()):
        urls.append(file.as_uri())
    use_urls(monkeypatch, "mnist", urls)
    with pytest.raises(UserError, match="train-images-idx3-ubyte has md5"):
        prepare.prepare("mnist", None, directory=str(tmp_path / "data"))
    prepare.prepare("mnist", None, directory=str(tmp_path / "data"), official=False)
    assert len(datasets.load("mnist", str(tmp_path / "data")).train_y) == 12
    assert not list((tmp_path / "data").rglob("download*"))


def command(*arguments):
    script = str(REPO / "experiments" / "prepare_data.py")
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=60
    )


def test_command_line(tmp_path):
    done = command("cifr10")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: unknown dataset 'cifr10': did you mean 'cifar10'?")
    done = command("mnist5k")
    assert done.returncode == 0 and "needs no preparation" in done.stdout
    source = release("mnist", tmp_path / "release")
    for flag in ("--data.dir", "--data-dir"):
        done = command("mnist", "--from", str(source), flag, str(tmp_path / "data"))
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "train-images-idx3-ubyte has md5" in done.stderr
    start = time.time()
    assert "--from PATH" in command("--help").stdout
    assert time.time() - start < 3  # 0.1 s alone; the bound allows for a busy machine
