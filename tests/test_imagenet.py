"""Subsets of ImageNet from generated pictures in its layout."""

import numpy as np
import pytest
from PIL import Image
from runs import PLAIN, directory_of, needs_proc, peak_of, rows_of

from fedjax_nc.cli import main
from fedjax_nc.config import Data
from fedjax_nc.data import datasets, imagenet, prepare
from fedjax_nc.data.catalogue import DATASETS, sized
from fedjax_nc.errors import UserError

SIDE = 8
SPEC = sized("imagenet100", Data(side=SIDE))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two training pictures and one to validate of every class, as grey as its label."""
    root = tmp_path_factory.mktemp("imagenet")
    for label, wnid in enumerate(imagenet.classes("imagenet100")):
        for split, count in (("train", 2), ("val", 1)):
            (root / split / wnid).mkdir(parents=True)
            for i in range(count):
                picture = Image.fromarray(np.full((9 + i, 14, 3), 2 * label, np.uint8))
                picture.save(root / split / wnid / f"{wnid}_{i}.JPEG", quality=95)
    return root


@pytest.mark.parametrize("name", ["imagenet100", "imagenet200"])
def test_class_lists(name):
    ids = imagenet.classes(name)
    assert len(set(ids)) == len(ids) == DATASETS[name].classes and ids == sorted(ids)
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdigit() for wnid in ids)


def test_prepared_direct_and_flat_are_the_same(folder, tmp_path):
    said = prepare.prepare("imagenet100", str(folder), directory=str(tmp_path / "data"), side=SIDE)
    assert "(200 train, 100 test)" in said
    ready = datasets.load("imagenet100", str(tmp_path / "data"), SPEC)
    assert isinstance(ready.train_x, np.memmap) and ready.train_x.shape == (200, SIDE, SIDE, 3)
    assert np.abs(ready.train_x - 2.0 * ready.train_y[:, None, None, None]).max() <= 3
    assert "already prepared" in prepare.prepare(
        "imagenet100", directory=str(tmp_path / "data"), side=SIDE
    )
    flat = tmp_path / "flat"
    (flat / "val").mkdir(parents=True)
    (flat / "train").symlink_to(folder / "train")
    lines = ["n00000000"]  # a class of the other nine hundred
    for number, wnid in enumerate(reversed(imagenet.classes("imagenet100")), 2):
        picture = folder / "val" / wnid / f"{wnid}_0.JPEG"
        (flat / "val" / f"ILSVRC2012_val_{number:08d}.JPEG").symlink_to(picture)
        lines.append(wnid)
    (flat / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(lines))
    for root in (folder, flat):
        direct = datasets.load("imagenet100", str(root), SPEC)
        for a, b in zip(direct, ready, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_missing_is_named(folder, tmp_path):
    def said(call, *args, **options):
        with pytest.raises(UserError) as raised:
            call(*args, **options)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    load, make = datasets.load, prepare.prepare
    assert "--from PATH" in said(make, "imagenet100", directory=str(tmp_path))
    assert "neither imagenet100/8 nor" in said(load, "imagenet100", str(tmp_path), SPEC)
    assert "has no train and val" in said(
        make, "imagenet100", str(tmp_path), directory=str(tmp_path)
    )
    text = said(make, "imagenet200", str(folder), directory=str(tmp_path))
    assert "of the 200 classes of imagenet200" in text
    broken = tmp_path / "broken"
    (broken / "val").mkdir(parents=True)
    (broken / "val").rmdir()
    (broken / "val").symlink_to(folder / "val")
    (broken / "train").mkdir()
    for wnid in imagenet.classes("imagenet100"):
        (broken / "train" / wnid).mkdir()
        (broken / "train" / wnid / "a.JPEG").write_bytes(b"no picture")
    assert "a.JPEG is damaged" in said(
        make, "imagenet100", str(broken), directory=str(tmp_path / "d")
    )
    assert not list((tmp_path / "d").rglob("*")), "a failed run left something"


def test_a_run_from_the_directory(folder, tmp_path):
    argv = [
        "--dataset=imagenet100",
        f"--data.side={SIDE}",
        f"--data.dir={folder}",
        "--rounds=2",
        "--protocol=feddr_plus",
        "--method=fedavg",
        "--model=mlp",
        "--data.partition=iid",
        "--federation.clients=4",
        "--federation.participants=2",
        "--local.epochs=1",
        "--execution.pool_mb=0",
        *PLAIN,
    ]
    assert main.train([*argv, f"--out={tmp_path}"]) == 0
    assert len(rows_of(directory_of(tmp_path, argv))) == 2


@pytest.mark.slow
@needs_proc
def test_memory_does_not_grow_with_the_pictures(tmp_path):
    """Of preparing ImageNet's directory and of training, whose rounds are alike."""
    side, peaks = 96, []
    noise = np.random.RandomState(0).randint(0, 256, (side, 120, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "picture.jpg")
    for times in (1, 10):
        root, data = tmp_path / f"pictures{times}", tmp_path / f"data{times}"
        for wnid in imagenet.classes("imagenet100"):
            for split, count in (("train", 10 * times), ("val", 1)):
                (root / split / wnid).mkdir(parents=True)
                for i in range(count):
                    (root / split / wnid / f"{i}.JPEG").hardlink_to(tmp_path / "picture.jpg")
        made = [f"--data.dir={data}", f"--data.side={side}"]
        preparing = peak_of("prepare_data.py", "imagenet100", f"--from={root}", *made)
        training = peak_of(
            "run.py",
            "--dataset=imagenet100",
            *made,
            "--method=fedavg",
            "--model=mlp",
            *PLAIN,
            "--rounds=2",
            "--data.partition=iid",
            "--execution.pool_mb=0",
            "--local.epochs=1",
            f"--federation.clients={20 * times}",
            "--federation.participants=5",
            "--evaluation.every=2",
            "--evaluation.last=1",
            "--data.client_test=split",
            "--local.batch_size=50",
            f"--out={tmp_path / 'out'}",
        )
        peaks.append((1000 * times * side * side * 3 / 1e6, preparing, training))
        print("{:.0f} MB of pictures: {:.0f} MB to prepare, {:.0f} MB to train".format(*peaks[-1]))
    pictures, *grown = np.diff(np.array(peaks), axis=0)[0]
    # peaks of equal runs differ by some 50 MB (docs/scaling.md); the pictures are five times that
    assert pictures > 240 and max(grown) < pictures / 2, peaks
