"""One order of examples: an index means the same picture here as in the official files."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import yaml

from fedjax_nc import config, protocols
from fedjax_nc.cli import flags
from fedjax_nc.config import Data
from fedjax_nc.data import datasets, federated, official, partition, partition_file, prepare
from fedjax_nc.data.catalogue import DATASETS, release_of
from fedjax_nc.errors import UserError
from fedjax_nc.host import session
from fedjax_nc.host.assemble import assemble
from fedjax_nc.io import rundir

CLIENTS = 10


def raw(folder, parts):
    """The pictures and labels of CIFAR-10's binary files, read by nothing of ours."""
    rows = [np.fromfile(folder / f"{part}.bin", np.uint8).reshape(-1, 3073) for part in parts]
    table = np.concatenate(rows)
    return table[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), table[:, 0].astype(int)


BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A made-up CIFAR-10: official binary files in `raw`, prepared here in `ours`.

    In `theirs` it is as TFDS leaves it, without the file that our preparer adds.
    """
    root, random = tmp_path_factory.mktemp("cifar"), np.random.RandomState(0)
    (root / "raw").mkdir()
    for part in (*BATCHES, "test_batch"):
        rows = random.randint(0, 256, (40, 3073))
        rows[:, 0] = random.permutation(40) % 10
        (root / "raw" / f"{part}.bin").write_bytes(rows.astype(np.uint8).tobytes())
    prepare.prepare("cifar10", str(root / "raw"), directory=str(root / "ours"), official=False)
    shutil.copytree(root / "ours", root / "theirs")
    (root / "theirs" / release_of("cifar10").layout / official.FILE).unlink()
    return root


def by_class(labels):
    return [np.flatnonzero(labels == k) for k in range(CLIENTS)]


def by_dirichlet(labels):
    return partition.dirichlet(labels, CLIENTS, alpha=0.1, rule="fedetf", seed=0)


def write_json(folder, parts):
    path = folder / "parts.json"
    path.write_text(json.dumps({str(k): part.tolist() for k, part in enumerate(parts)}))
    return str(path)


def class_counts(labels, parts):
    return [np.bincount(labels[part], minlength=10).tolist() for part in parts]


@pytest.mark.parametrize("where", ["ours", "theirs"])
@pytest.mark.parametrize("deal", [by_class, by_dirichlet])
def test_partition_of_the_raw_files_keeps_its_classes(cifar, tmp_path, where, deal):
    images, labels = raw(cifar / "raw", BATCHES)
    parts = deal(labels)
    found = {}
    for order in ("official", "stored"):
        data = Data(
            dir=str(cifar / where),
            order=order,
            partition_file=write_json(tmp_path, parts),
            partition_order=order,
        )
        _, arrays = datasets.read("cifar10", data)
        split = federated.split_clients(
            data, CLIENTS, seed=0, train_y=arrays.train_y, test_y=arrays.test_y
        )
        whole = [np.append(*both) for both in zip(split.train, split.test, strict=True)]
        found[order] = class_counts(arrays.train_y, whole)
        assert isinstance(arrays.train_x, np.memmap)  # which rounds may stream
        assert np.array_equal(arrays.train_x, images) == (order == "official")
    assert found["official"] == class_counts(labels, parts)
    assert found["stored"] != class_counts(labels, parts)


def test_test_examples_have_the_official_order_too(cifar):
    images, labels = raw(cifar / "raw", ["test_batch"])
    for where in ("ours", "theirs"):
        arrays = datasets.load("cifar10", str(cifar / where), order="official")
        np.testing.assert_array_equal(arrays.test_x, images)
        np.testing.assert_array_equal(arrays.test_y, labels)


def test_ids_are_sorted_as_the_files_are():
    given = [b"val_10.JPEG", b"val_9.JPEG", b"val_0.JPEG"]
    assert sorted(given, key=official._in_files) == given[::-1]
    given = [b"n02_1.JPEG", b"n01_9.JPEG", b"n01_10.JPEG", b"n01_1.JPEG"]
    assert sorted(given, key=official._in_files) == sorted(given)


# ---- directories without ids and without the preparer's file


@pytest.fixture
def mnist(tmp_path):
    """A made-up MNIST as TFDS leaves it, and the labels of its official files."""
    random, labels = np.random.RandomState(0), {}
    for prefix, count in (("train", 60), ("t10k", 20)):
        labels[prefix] = random.randint(0, 10, count).astype(np.uint8)
        pixels = random.randint(0, 256, (count, 784)).astype(np.uint8).tobytes()
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(bytes(16) + pixels)
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels[prefix].tobytes())
    prepare.prepare("mnist", str(tmp_path), directory=str(tmp_path / "data"), official=False)
    (tmp_path / "data" / release_of("mnist").layout / official.FILE).unlink()
    return tmp_path, labels


def test_official_labels_show_that_the_shuffling_was_undone(mnist, monkeypatch):
    root, labels = mnist
    with pytest.raises(UserError, match=r"does not tell the official order .*data\.order=stored"):
        datasets.load("mnist", str(root / "data"), order="official")
    files = [file for file in release_of("mnist").kinds["idx"] if "labels" in file]
    sums = {file: hashlib.md5((root / file).read_bytes()).hexdigest() for file in files}
    known = dataclasses.replace(release_of("mnist"), md5=sums)
    monkeypatch.setitem(DATASETS, "mnist", dataclasses.replace(DATASETS["mnist"], release=known))
    arrays = datasets.load("mnist", str(root / "data"), order="official")
    np.testing.assert_array_equal(arrays.train_y, labels["train"])
    np.testing.assert_array_equal(arrays.test_y, labels["t10k"])
    pixels = np.fromfile(root / "train-images-idx3-ubyte", np.uint8)[16:]
    np.testing.assert_array_equal(arrays.train_x.ravel(), pixels)


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda path: path.write_bytes(b"PK"), "is damaged"),
        (lambda path: np.savez(path, train=np.arange(60)), "is damaged"),
        (lambda path: np.savez(path, train=np.zeros(60), test=np.arange(20)), "does not number"),
    ],
)
def test_damaged_order_is_refused(mnist, damage, said):
    directory = mnist[0] / "data"
    damage(directory / release_of("mnist").layout / official.FILE)
    with pytest.raises(UserError, match=rf"cannot be decoded \({official.FILE} {said}"):
        datasets.load("mnist", str(directory), order="official")


# ---- partition files


def test_partition_tells_what_it_was_made_for(cifar, tmp_path):
    path, labels = str(tmp_path / "partition.npz"), raw(cifar / "raw", BATCHES)[1]
    made = Data(order="official", client_test="matched")
    split = federated.split_clients(made, 4, seed=0, train_y=labels, test_y=labels)
    federated.save_split(tmp_path / "partition.npz", made, split=split, dataset="cifar10")
    meta = partition_file.load(path, len(labels))[2]
    assert (meta["dataset"], meta["split"], meta["order"]) == ("cifar10", "train", "official")
    assert meta["labels"] == partition_file.fingerprint(labels) == split.labels
    read = dataclasses.replace(made, partition_file=path)
    again = federated.split_clients(read, 4, seed=0, train_y=labels, test_y=labels)
    assert all(map(np.array_equal, split.train, again.train))
    with pytest.raises(UserError) as caught:
        federated.split_clients(read, 4, seed=0, train_y=labels[::-1], test_y=labels)
    line = f"{path} was made for other training labels ('cifar10', 'train', 'official')"
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_foreign_partition_must_say_its_order(refused, cifar, tmp_path):
    path = write_json(tmp_path, by_class(raw(cifar / "raw", BATCHES)[1]))
    argv = ["--dataset=cifar10", f"--data.dir={cifar / 'ours'}", "--model=mlp"]
    argv += ["--federation.clients=10", f"--data.partition_file={path}"]
    datasets.load("cifar10", str(cifar / "ours"), order="official")  # decoding tells how far it is
    said = refused(*argv)
    assert said.startswith(f"{path} does not say which order its indices mean: pass --data.parti")
    said = refused(*argv, "--data.partition_order=stored")
    assert said.startswith("--data.partition_order=stored: the run numbers its examples in offic")
    assert "pass --data.order=stored too" in said
    stored = flags.parse([*argv, "--data.order=stored"]).configs[0]
    with pytest.raises(UserError, match="does not say which order its indices mean"):
        assemble(stored)  # a list of torchvision's would become IID
    assemble(
        dataclasses.replace(stored, data=dataclasses.replace(stored.data, partition_order="stored"))
    )


def test_data_with_one_order_need_not_say_it():
    labels = np.arange(20) % 4
    partition_file.check("x.json", {}, labels=partition_file.fingerprint(labels), order="stored")


# ---- runs from before


def test_older_runs_keep_their_order_and_their_place(tmp_path):
    bundled = protocols.resolve("quick", "mnist5k", spec="fedetf")
    assert config.config_hash(bundled) == "b1136b30"  # as README shows it
    new = protocols.resolve("quick", "cifar10", spec="fedetf")
    old = dataclasses.replace(new, data=dataclasses.replace(new.data, order="stored"))
    assert new.data.order == "official" and config.config_hash(new) != config.config_hash(old)
    assert config.config_hash(old) == "8f6b103a"  # as version 0.2.0 named it
    content = config.to_dict(old)
    del content["data"]["order"], content["data"]["partition_order"]
    begun = rundir.path_of(str(tmp_path), old)
    begun.mkdir(parents=True)
    (begun / "config.yaml").write_text(yaml.safe_dump(content))
    assert rundir.read(begun) == old
    rundir.check(begun, old, overwrite=False)
    request = session.Request((new,), out=str(tmp_path))
    place = rundir.path_of(str(tmp_path), new)
    assert session._older(request, new, directory=place) == begun
    place.mkdir(parents=True)
    assert session._older(request, new, directory=place) is None


@pytest.mark.slow
def test_real_cifar10_has_the_order_of_its_files():
    """The sums are of the official binary files, read by numpy alone."""
    try:
        arrays = datasets.load("cifar10", None, order="official")
    except UserError as error:
        pytest.skip(str(error))
    sums = [partition_file.fingerprint(y) for y in (arrays.train_y, arrays.test_y)]
    assert sums == ["1431253c7e60f5a2", "46759f9470c7bc48"]
    sums = [hashlib.sha256(x).hexdigest()[:16] for x in (arrays.train_x, arrays.test_x)]
    assert sums == ["47af8b02cfcfb6cd", "f9b1e2130bab680d"]
    assert arrays.train_y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
