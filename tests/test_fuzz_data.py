"""Releases and prepared directories, damaged: read, or refused on one line before much is read."""

import gzip
import json
import os
import shutil
import tarfile
import zipfile

import pytest
from fuzzing import answered, damaged, fuzz, replaced
from hypothesis import given
from hypothesis import strategies as st
from test_prepare import release

from fedjax_nc.data import datasets, prepare, sources
from fedjax_nc.errors import UserError

RELEASES = ("mnist", "svhn_cropped", "emnist_balanced", "cifar10", "cifar100")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def releases(folder):
    """Small releases, and the content of every file of them."""
    found = {}
    for name in RELEASES:
        path = folder / name
        release(name, path, "binary")
        found[name] = {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return found


@pytest.fixture(scope="module")
def archives(folder, releases):
    """The same files as a zip, a tar, and a compressed tar."""
    paths = [folder / "all.zip", folder / "all.tar", folder / "all.tar.gz"]
    with zipfile.ZipFile(paths[0], "w", zipfile.ZIP_DEFLATED) as file:
        for path in releases["emnist_balanced"]:
            file.write(path, f"gzip/{path.name}")
    for path, mode in ((paths[1], "w"), (paths[2], "w:gz")):
        with tarfile.open(path, mode) as file:
            file.add(folder / "cifar10", "cifar-10-batches-bin")
    return {path: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def prepared_files(folder, releases):
    """A prepared directory, and the content of every file of it."""
    root = folder / "data"
    prepare.prepare("cifar10", str(folder / "cifar10"), directory=str(root), official=False)
    return root, {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def examples_of(name, path):
    found = sources.read(name, path, official=False)
    return [list(split.examples()) for split in found.splits.values()]


@fuzz(40)
@given(st.data())
def test_a_damaged_file_of_a_release(releases, data):
    name = data.draw(st.sampled_from(RELEASES))
    path = data.draw(st.sampled_from(sorted(releases[name])))
    try:
        path.write_bytes(data.draw(damaged(releases[name][path])))
        answered(examples_of, name, path.parent)
    finally:
        path.write_bytes(releases[name][path])


@fuzz(40)
@given(st.data())
def test_a_damaged_archive(archives, data):
    path = data.draw(st.sampled_from(sorted(archives)))
    path.write_bytes(data.draw(damaged(archives[path])))
    answered(examples_of, "emnist_balanced" if path.suffix == ".zip" else "cifar10", path)


@fuzz(40, share=0.3)
@given(st.data())
def test_a_damaged_prepared_directory(prepared_files, data):
    root, files = prepared_files
    path = data.draw(st.sampled_from(sorted(files)))
    change = damaged(files[path])
    if path.suffix == ".json":
        change |= replaced(json.loads(files[path])).map(lambda c: json.dumps(c).encode())
    try:
        path.write_bytes(data.draw(change))
        order = data.draw(st.sampled_from(("stored", "official")))
        answered(datasets.load, "cifar10", str(root), order=order)
    finally:
        path.write_bytes(files[path])
        shutil.rmtree(root / ".fedjax_nc_cache", ignore_errors=True)


def test_bombs_and_pipes_are_refused_before_they_are_read(folder):
    place = folder / "bomb"
    release("mnist", place)
    with gzip.open(place / "train-labels-idx1-ubyte.gz", "wb", compresslevel=1) as file:
        for _ in range(512):  # MiB
            file.write(bytes(1 << 20))
    with pytest.raises(UserError, match="it unpacks to more than 120 MB"):
        sources.read("mnist", place, official=False)
    os.mkfifo(folder / "pipe.zip")
    with pytest.raises(UserError, match="no regular file"):
        sources.read("emnist_balanced", folder / "pipe.zip")


def test_a_module_that_features_name_is_not_imported(prepared_files):
    """TFDS's own reader imports it."""
    root, files = prepared_files
    path = next(p for p in files if p.name == "features.json")
    text = files[path].decode().replace("tensorflow_datasets.core.features.", "antigravity.")
    assert "antigravity" in text
    try:
        path.write_text(text)
        assert len(datasets.load("cifar10", str(root)).train_y) == 20
    finally:
        path.write_bytes(files[path])
        shutil.rmtree(root / ".fedjax_nc_cache", ignore_errors=True)


def test_files_without_a_checksum_give_way_to_the_archive_beside_them(folder, releases):
    """No checksums of CIFAR-100's binary files are published, only their archive's."""
    place = folder / "both"
    place.mkdir()
    shutil.copytree(folder / "cifar100", place / "cifar-100-binary")
    (place / "cifar-100-binary.tar.gz").write_bytes(b"not it")
    with pytest.raises(UserError, match=r"binary\.tar\.gz has md5"):
        sources.read("cifar100", place)


def test_a_fine_label_has_one_coarse_label(folder, releases):
    path = folder / "cifar100" / "train.bin"
    row = path.read_bytes()[:3074]
    path.write_bytes(row + bytes([(row[0] + 1) % 20]) + row[1:])
    with pytest.raises(UserError, match="a fine label has several coarse ones"):
        sources.read("cifar100", folder / "cifar100", official=False)
