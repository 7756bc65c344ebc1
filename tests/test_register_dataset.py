"""Datasets that a function brings along, runs on them, and names of the Hub."""

import sys
import time

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from brought import RNG, four, message
from runs import PLAIN, directory_of, rows_of

from fedjax_nc.cli import main
from fedjax_nc.config import Data
from fedjax_nc.data import arrays, bundled, catalogue, datasets, federated, own
from fedjax_nc.data.catalogue import DATASETS, register_dataset
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.types import Pool

# ---- register_dataset


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr(catalogue, "DATASETS", DATASETS)
    before = dict(DATASETS)
    yield register_dataset
    DATASETS.clear()
    DATASETS.update(before)


FACTS = {"classes": 3, "shape": (5, 4, 3), "train": 12, "test": 6}


def test_registered_dataset(register):
    given = four()
    register("mine", **FACTS, load=lambda: given, source="a file of mine")
    spec, made = datasets.read("mine", Data(side=99, length=99))
    assert spec.name == "mine" and spec.origin == "a file of mine" and spec.kind == "images"
    assert made.train_x is given[0]
    assert len(spec.mean) == 3 and DATASETS["mine"].mean == ()
    register("ours", **FACTS, load=lambda: given, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    assert datasets.read("ours", Data())[0].mean == (0.1, 0.2, 0.3)
    words = {"classes": 3, "shape": (7,), "train": 12, "test": 6, "kind": "text"}
    register("words", **words, load=lambda: four(shape=(7,), dtype=np.int32))
    spec, made = datasets.read("words", Data(length=99))
    assert spec.shape == (7,) and spec.words == max(made.train_x.max(), made.test_x.max()) - 1


def test_registered_by_name_of_a_function(register):
    facts = {"classes": 10, "shape": (8, 8, 1), "train": 1437, "test": 360, "kind": "digits"}
    register("again", **facts, load="fedjax_nc.data.bundled:digits")
    a, b = datasets.load("again"), datasets.load("digits")
    assert all(map(np.array_equal, a, b))


def test_names_are_taken_once(register):
    for name in ("cifar10", "mnist5k"):
        said = message(register, name, **FACTS, load=four)
        assert said == f"dataset '{name}' exists already, with other facts: choose another name"
    spec = DATASETS["digits"]
    facts = {k: getattr(spec, k) for k in ("classes", "shape", "train", "test", "mean", "std")}
    message(register, "digits", **facts, kind=spec.kind, source=spec.source, load=spec.load)
    register("mine", **FACTS, load=lambda: 1 / 0)
    register("mine", **FACTS, load=four, source="as a notebook's cell that is run again")
    assert datasets.load("mine").train_x.shape == (12, 5, 4, 3)
    assert "exists already" in message(register, "mine", **FACTS | {"train": 13}, load=four)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"classes": 1}, "dataset 'mine': classes=1: give a larger number"),
        ({"train": 0}, "dataset 'mine': train=0: give a larger number"),
        ({"shape": (5, 4)}, "shape=(5, 4): give (height, width, channels)"),
        ({"shape": (5, 0, 3)}, "shape=(5, 0, 3): give (height, width, channels)"),
        ({"kind": "text"}, "shape=(5, 4, 3): give (length,)"),
        ({"kind": "photos"}, "kind of dataset 'mine' 'photos': did you mean 'photographs'?"),
        ({"mean": (0.5,)}, "mean=(0.5,), std=(): give 3 numbers each, or neither"),
        ({"mean": (0.5,) * 2, "std": (0.5,) * 2}, "give 3 numbers each, or neither"),
        ({"mean": (0.5,) * 3, "std": (0.5, 0.0, 0.5)}, "std=(0.5, 0.0, 0.5): give numbers above"),
        ({"load": "nothing"}, "load='nothing': give a function or \"module:function\""),
    ],
)
def test_facts_that_contradict_each_other(register, changed, line, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for anybody else
    assert line in message(register, "mine", **{**FACTS, "load": four} | changed)
    assert "mine" not in DATASETS


@pytest.mark.parametrize("name", ["", "my data", "a/b", "hf:x", "x.npz", "arrays@1", "a-b"])
def test_names_that_mean_something_else(register, name):
    assert "use letters, digits and underscores" in message(register, name, **FACTS, load=four)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"train": 13}, "has (train, test, shape) (12, 6, (5, 4, 3)), and is registered with (13"),
        (
            {"shape": (4, 5, 3)},
            "has (train, test, shape) (12, 6, (5, 4, 3)), and is registered with",
        ),
        ({"classes": 2}, "has the label 2, and is registered with 2 classes: correct one"),
    ],
)
def test_examples_that_contradict_the_facts(register, facts, line):
    register("mine", **FACTS | facts, load=four)
    assert f"dataset 'mine' {line}" in message(datasets.load, "mine")


def test_functions_that_return_no_dataset(register):
    for i, made in enumerate((None, [], four()[:2])):
        register(f"bad{i}", **FACTS, load=lambda made=made: made)
        assert f"dataset 'bad{i}'" in message(datasets.load, f"bad{i}")


def test_mapped_files_stay_on_disk_only_as_a_whole(register, tmp_path):
    """Rows of a mapped file are read by their place in it, which a part of it does not know."""
    given = four()
    np.save(tmp_path / "x.npy", np.concatenate([given[2], given[0]]))
    np.save(tmp_path / "train.npy", given[0])
    whole = np.load(tmp_path / "train.npy", mmap_mode="r")
    part = np.load(tmp_path / "x.npy", mmap_mode="r")[6:]
    for x, kept in ((whole, True), (part, False), (whole[..., :2], False)):
        made = arrays.check([x, given[1], given[2][..., : x.shape[-1]], given[3]], "x")
        assert isinstance(made.train_x, np.memmap) == kept
        np.testing.assert_array_equal(made.train_x, x)


# ---- in rounds


def test_batches_of_floats_are_not_divided_by_255():
    x = RNG.uniform(-3, 5, (6, 4, 4, 2)).astype(np.float32)
    pool, indices = Pool(jnp.asarray(x), jnp.zeros(6, jnp.int32)), jnp.array([4, 1])
    spec = DatasetSpec(
        name="x", classes=2, shape=(4, 4, 2), train=6, test=0, mean=(1.0, 2.0), std=(3.0, 4.0)
    )
    expected = (x[[4, 1]] - [1, 2]) / [3, 4]
    for how in ("dataset", "half"):  # half is of pixels from 0 to 255
        batch = federated.make_batch(spec, normalise=how)(pool, indices, jnp.ones(2, bool), None)
        np.testing.assert_allclose(batch.x, expected, rtol=1e-6)
    pixels = pool._replace(x=jnp.asarray(np.arange(192, dtype=np.uint8).reshape(6, 4, 4, 2)))
    made = federated.make_batch(spec, normalise="half")(pixels, indices, jnp.ones(2, bool), None)
    np.testing.assert_allclose(made.x, pixels.x[indices] / 127.5 - 1, atol=1e-6)


def test_a_run_on_floats_is_the_run_on_their_bytes(register, tmp_path):
    """The same digits, as bytes and as floats a hair away from them: the same curve."""
    x, y, tx, ty = bundled.digits()

    def floats():
        low, high = (np.clip(a / 255 + 1e-5, 0, 1) for a in (x, tx))
        return low, y, high, ty

    spec = DATASETS["digits"]
    facts = {k: getattr(spec, k) for k in ("classes", "shape", "train", "test", "kind")}
    for name, load in (("bytes_", lambda: (x, y, tx, ty)), ("floats_", floats)):
        register(name, **facts, load=load, mean=spec.mean, std=spec.std)
    assert datasets.load("floats_").train_x.dtype == np.float32
    rows = {}
    for name in ("bytes_", "floats_"):
        argv = [f"--dataset={name}", "--method=fedavg", "--rounds=2", "--data.augment", "crop1"]
        argv = [*argv, *PLAIN]
        assert main.train([*argv, f"--out={tmp_path}"]) == 0
        rows[name] = rows_of(directory_of(tmp_path, argv))
    for a, b in zip(rows["bytes_"], rows["floats_"], strict=True):
        assert a["global_loss"] == pytest.approx(b["global_loss"], rel=2e-3)
    losses = [row["global_loss"] for row in rows["bytes_"]]
    assert losses[0] != pytest.approx(losses[1], rel=2e-3)  # which would agree by doing nothing


# ---- the Hub


def test_library_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = message(own.load, "hf:owner/name")
    assert said.startswith("hf:owner/name needs the library `datasets`")
    assert said.endswith("run: pip install 'fedjax_nc[hf]'")
    assert catalogue.find("hf:owner/name:small").name == "hf:owner/name:small"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """The real library with a cache of its own, and a Hub that does not answer."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    return library


def images_of(*shape, count=6):
    return [RNG.randint(0, 256, shape).astype(np.uint8) for _ in range(count)]


def write_parquet(library, folder, labels=("a", "b", "c"), **splits):
    """A repository of parquet files, as the Hub has them: {split: (images, labels)}."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = library.ClassLabel(names=list(labels)) if labels else library.Value("int64")
    features = library.Features({"img": library.Image(), "label": kind})
    for split, (images, y) in splits.items():
        table = library.Dataset.from_dict({"img": images, "label": y}, features=features)
        table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return f"hf:{folder}"


def test_hub_directory(library, tmp_path):
    train, test = images_of(7, 5, 3, count=9), images_of(7, 5, 3)
    y = [0, 1, 2] * 3
    name = write_parquet(library, tmp_path / "one", train=(train, y), test=(test, y[:6]))
    spec, made = datasets.read(name, Data())
    np.testing.assert_array_equal(made.train_x, train)
    np.testing.assert_array_equal(made.test_x, test)
    assert list(made.train_y) == y and made.train_y.dtype == np.int32
    assert (spec.name, spec.classes, spec.shape, spec.train) == (name, 3, (7, 5, 3), 9)
    grey = images_of(7, 5, count=9)
    name = write_parquet(library, tmp_path / "grey", (), train=(grey, y), validation=(grey, y))
    spec, made = own.load(name)
    np.testing.assert_array_equal(made.test_x[..., 0], grey)
    assert spec.shape == (7, 5, 1)


def test_hub_cache_without_a_network(library, tmp_path):
    """What the library has cached of owner/name is used, and what it has not is told at once."""
    images, y = images_of(6, 6, 3), [0, 1, 2] * 2
    folder = tmp_path / "name"
    local = own.load(write_parquet(library, folder, train=(images, y), test=(images, y)))[1]
    (tmp_path / "cache" / "name").rename(tmp_path / "cache" / "owner___name")
    start = time.monotonic()
    made = own.load("hf:owner/name")[1]
    assert all(map(np.array_equal, made, local))
    said = message(own.load, "hf:owner/other")
    assert said.startswith("hf:owner/other is not in the cache") and "network" in said
    assert time.monotonic() - start < 10  # the library alone tries for 23 s
    assert not library.config.HF_HUB_OFFLINE


def test_hub_pictures_get_one_size_and_colour(library, tmp_path):
    from PIL import Image

    y = [0, 1, 2] * 2
    wide, flat = images_of(40, 60, 3), np.full((30, 30), 77, np.uint8)
    name = write_parquet(
        library, tmp_path / "mixed", train=([*wide[:5], flat], y), test=([flat] * 6, y)
    )
    spec, made = datasets.read(name, Data(side=21))
    assert spec.shape == (21, 21, 3) and (made.test_x == 77).all()
    small = Image.fromarray(wide[0]).resize((36, 24), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(made.train_x[0], np.asarray(small)[1:22, 7:28])


def test_hub_configurations_and_test_sets_without_labels(library, tmp_path):
    folder, y = tmp_path / "several", [0, 1, 2] * 2
    lines = ["---", "configs:"]
    pictures = {}
    for name in ("first", "second"):
        pictures[name] = images_of(5, 5, 3)
        unknown = (pictures[name], [-1] * 6)
        write_parquet(
            library, folder / name, train=(pictures[name], y), test=unknown, validation=(nines(), y)
        )
        lines += [f"- config_name: {name}", "  data_files:"]
        for split in ("train", "test", "validation"):
            lines += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    made = own.load(f"hf:{folder}:second")[1]
    np.testing.assert_array_equal(made.train_x, pictures["second"])
    assert (made.test_x == 9).all()  # the validation split
    said = message(own.load, f"hf:{folder}:third")
    assert said.startswith(f"cannot load hf:{folder}:third (") and "second" in said


def nines():
    return [np.full((5, 5, 3), 9, np.uint8)] * 6


def test_hub_datasets_that_do_not_fit(library, tmp_path):
    y = [0, 1, 2] * 2
    name = write_parquet(library, tmp_path / "a", train=(nines(), y))
    assert "has the splits train: give a dataset with train, and with test" in message(
        own.load, name
    )
    folder = tmp_path / "text"
    folder.mkdir()
    library.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).to_parquet(
        folder / "train.parquet"
    )
    said = message(own.load, f"hf:{folder}")
    assert "has the columns text (Value), label (Value): give a dataset with one column of" in said
    deep = [np.full((5, 5), 40_000, np.uint16)] * 6
    name = write_parquet(library, tmp_path / "deep", train=(deep, y), test=(deep, y))
    assert "give 8 bits per channel" in message(own.load, name)
