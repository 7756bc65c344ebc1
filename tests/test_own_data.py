"""Datasets that a person brings along: arrays, files, functions, and names of the Hub."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brought import RNG, four, message

from fedjax_nc.config import Data
from fedjax_nc.data import arrays, catalogue, datasets, own

KEYS = ("train_x", "train_y", "test_x", "test_y")


# ---- what arrays become


def test_bytes_stay_as_they_are():
    given = four()
    made = arrays.check(given, "these")
    assert made.train_x is given[0] and made.test_x is given[2]
    np.testing.assert_array_equal(made.train_y, given[1])
    assert made.train_y.dtype == made.test_y.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.int64])
def test_whole_numbers_become_bytes(dtype):
    given = four()
    made = arrays.check([given[0].astype(dtype), given[1], given[2].astype(dtype), given[3]], "x")
    assert made.train_x.dtype == np.uint8
    np.testing.assert_array_equal(made.train_x, given[0])
    np.testing.assert_array_equal(made.test_x, given[2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bytes_divided_by_255_become_bytes(dtype):
    pixels = np.resize(np.arange(256, dtype=np.uint8), (12, 8, 8, 1))  # every value
    x = pixels.astype(dtype) / dtype(255)
    made = arrays.check([x, np.arange(12) % 3, x[:6], np.arange(6) % 3], "x")
    assert made.train_x.dtype == np.uint8
    np.testing.assert_array_equal(made.train_x, pixels)


@pytest.mark.parametrize("low, high", [(0, 1), (0, 255), (-2, 2), (0, 0.9)])
def test_other_floats_stay_floats(low, high):
    x = RNG.uniform(low, high, (12, 5, 4, 1))
    x[0, 0, 0, 0] = high
    made = arrays.check([x, np.arange(12) % 3, x[:6], np.arange(6) % 3], "x")
    assert made.train_x.dtype == made.test_x.dtype == np.float32
    np.testing.assert_array_equal(made.train_x, x.astype(np.float32))


def test_one_pixel_that_is_not_whole_keeps_both_splits_floats():
    given = four(dtype=np.float32)
    given[2][5, 4, 3, 2] += 0.5
    made = arrays.check(given, "x")
    assert made.train_x.dtype == made.test_x.dtype == np.float32
    np.testing.assert_array_equal(made.test_x, given[2])


def test_grey_images_get_a_channel_and_columns_of_labels_become_rows():
    x, y, *rest = four(shape=(5, 4))
    made = arrays.check([x, y[:, None], *rest], "x")  # as Keras has CIFAR's labels
    assert made.train_x.shape == (12, 5, 4, 1) and made.train_y.shape == (12,)
    np.testing.assert_array_equal(made.train_x[..., 0], x)


def test_word_ids():
    given = four(shape=(7,), dtype=np.int64)
    spec, made = own.from_arrays(given)
    assert made.train_x.dtype == np.int32 and spec.is_text
    assert spec.shape == (7,) and spec.mean == spec.std == ()
    assert spec.words == max(given[0].max(), given[2].max()) - 1  # 0 pads, 1 is unknown


def channels_first(x):
    return x.transpose(0, 3, 1, 2).repeat(2, 3)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda g: g[:3], "3 arrays: give train_x, train_y, test_x and test_y"),
        (lambda g: [g[0], g[1][:-1], *g[2:]], "train_y int64 [11]: give every example one label"),
        (lambda g: [*g[:2], g[2][:-1], g[3]], "test_x is uint8 [5, 5, 4, 3] and test_y int64 [6]"),
        (lambda g: [*g[:2], g[2][:0], g[3][:0]], "test_x is uint8 [0, 5, 4, 3]: give at least one"),
        (lambda g: [*g[:2], g[2][:, 1:], g[3]], "test_x uint8 [6, 4, 4, 3]: give examples of one"),
        (lambda g: [g[0], g[1] * 1.0, *g[2:]], "train_y is float64 [12]: give one integer label"),
        (lambda g: [g[0], np.eye(12, dtype=int), *g[2:]], "train_y is int64 [12, 12]: give one"),
        (lambda g: [*g[:3], g[3] - 1], "test_y has labels from -1 to 1: number the classes from 0"),
        (lambda g: [g[0], g[1] * 0, g[2], g[3] * 0], "largest label is 0 and train_y has 1 diff"),
        (lambda g: [g[0], g[1] * 50, *g[2:]], "largest label is 100 and train_y has 3 different"),
        (lambda g: [g[0].reshape(12, -1), g[1], g[2].reshape(6, -1), g[3]], "uint8 [12, 60]: give"),
        (lambda g: [g[0].reshape(12, -1) / 7, g[1], g[2].reshape(6, -1) / 7, g[3]], "of a table"),
        (lambda g: [g[0][None][:1], g[1][:1], g[2][None][:1], g[3][:1]], "[1, 12, 5, 4, 3]"),
        (lambda g: [g[0] > 9, g[1], g[2] > 9, g[3]], "train_x is bool [12, 5, 4, 3]: give images"),
        (lambda g: [channels_first(g[0]), g[1], channels_first(g[2]), g[3]],
         "channels first: give [n, h, w, c], as train_x.transpose(0, 2, 3, 1)"),
        (lambda g: [g[0], g[1], g[2] / 255, g[3]], "train_x is uint8 and test_x float64: give"),
        (lambda g: [g[0] * np.nan, g[1], g[2] * np.nan, g[3]], "NaN or infinite: mend or drop it"),
        (lambda g: [g[0] / 1.0, g[1], g[2] / np.zeros(3), g[3]], "NaN or infinite"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_arrays_that_are_no_dataset(change, line):
    said = message(own.from_arrays, change(four()))
    assert line in said and said.startswith("the arrays: ")


@pytest.mark.parametrize("factor", [-1, 2])
def test_integers_that_are_no_bytes(factor):
    x, y, tx, ty = four(dtype=np.int32)
    x[0, 0, 0, 0] = 200
    said = message(own.from_arrays, [x * factor, y, tx * factor, ty])
    assert "images are int32 from" in said and "give 0 to 255, or floats" in said


def test_word_ids_below_zero():
    given = four(shape=(7,), dtype=np.int32)
    given[2][0, 0] = -4
    assert "test_x has word ids from -4 to" in message(own.from_arrays, given)


# ---- what arrays tell


@pytest.mark.parametrize("dtype, scale", [(np.uint8, 255), (np.float32, 1)])
def test_statistics_equal_numpy(dtype, scale, monkeypatch):
    monkeypatch.setattr(arrays, "_ROWS", 5)
    x = (RNG.uniform(0, 200, (13, 6, 5, 3)) + np.array([0, 20, 40])).astype(dtype)
    mean, std = arrays.channel_statistics(x)
    np.testing.assert_allclose(mean, (x.astype(float) / scale).mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(std, (x.astype(float) / scale).std((0, 1, 2)), rtol=1e-5)


def test_constant_channels_can_be_divided_by():
    x = np.full((9, 4, 4, 2), 200, np.uint8)
    x[..., 1] = 0
    assert arrays.channel_statistics(x) == ((0.784314, 0.0), (1.0, 1.0))


def test_record_of_arrays():
    given = four(classes=3)
    spec, made = own.from_arrays(given)
    assert re.fullmatch("arrays@[0-9a-f]{8}", spec.name)
    assert (spec.classes, spec.shape, spec.train, spec.test) == (3, (5, 4, 3), 12, 6)
    assert spec.kind == "images" and not spec.is_text
    np.testing.assert_allclose(spec.mean, made.train_x.mean((0, 1, 2)) / 255, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((28, 28, 1), "digits"),
        ((32, 32, 3), "images"),
        ((224, 224, 3), "photographs"),
        ((130, 130, 1), "photographs"),
    ],
)
def test_kind_of_images(shape, kind):
    x = np.zeros((2, *shape), np.uint8)
    assert own.from_arrays([x, [0, 1], x, [0, 1]])[0].kind == kind


def test_fingerprint():
    given = four()
    first = own.fingerprint(given)
    assert first == own.fingerprint([a.copy() for a in given]) and len(first) == 8
    changed = [a.copy() for a in given]
    changed[2][5, 4, 3, 2] ^= 1
    others = [
        changed,
        [given[0].reshape(12, 4, 5, 3), *given[1:]],
        [given[0], given[1].astype(np.int32), *given[2:]],
        [given[0], given[1], given[0][:6], given[3]],
    ]
    assert len({first, *map(own.fingerprint, others)}) == 5


# ---- .npz files


def save(path, given, keys=KEYS, compress=False):
    (np.savez_compressed if compress else np.savez)(path, **dict(zip(keys, given, strict=True)))
    return str(path)


@pytest.mark.parametrize("keys", [KEYS, ("x_train", "y_train", "x_test", "y_test")])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", ["<i8", "<i4", "|u1", ">i4", "|i1", "<u2"])
def test_file(tmp_path, keys, compress, dtype):
    given = four()
    given[1], given[3] = (y.astype(dtype)[:, None] for y in (given[1], given[3]))
    path = save(tmp_path / "mine.npz", given, keys, compress)
    known = catalogue.find(path)
    spec, made = datasets.read(path, Data())
    assert replace(spec, mean=(), std=()) == known
    assert (spec.name, spec.classes, spec.shape, spec.train, spec.test) == (
        path, 3, (5, 4, 3), 12, 6
    )  # fmt: skip
    for name, a, b in zip(KEYS, made, given, strict=True):
        np.testing.assert_array_equal(a, b.ravel() if name.endswith("y") else b)
    assert own.fingerprint(path) == own.fingerprint(given)


def test_file_of_grey_floats_and_of_words(tmp_path):
    x, y, tx, ty = four(shape=(5, 4))
    path = save(tmp_path / "grey.npz", [x / 7, y, tx / 7, ty])
    spec, made = own.load(path)
    assert replace(spec, mean=(), std=()) == catalogue.find(path)
    assert spec.shape == (5, 4, 1) and spec.kind == "digits" and made.train_x.dtype == np.float32
    path = save(tmp_path / "text.npz", four(shape=(9,), dtype=np.int32))
    assert catalogue.find(path).is_text and own.load(path)[0].words > 0
    # its length is the file's, whatever a run asks for reviews
    assert catalogue.sized(path, Data(length=77)).shape == (9,)


def test_file_is_inspected_without_numpy(tmp_path):
    path = save(tmp_path / "mine.npz", four())
    code = "import sys; from fedjax_nc import protocols; from fedjax_nc.data import npz\n"
    code += f"made = protocols.resolve('quick', {path!r}, 'fedavg')\n"
    code += f"assert made.dataset == {path!r}; npz.fingerprint({path!r})\n"
    code += "sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_that_are_no_dataset(tmp_path):
    absent = str(tmp_path / "none.npz")
    assert message(catalogue.find, absent) == f"dataset file '{absent}' does not exist"
    given = four()
    path = save(tmp_path / "a.npz", given, ("a", "b", "c", "d"))
    for call in (catalogue.find, own.load, own.fingerprint):
        said = message(call, path)
        assert said.startswith(f"{path} holds a, b, c, d: give it the arrays train_x, train_y,")
    path = save(tmp_path / "b.npz", [given[0], given[1] / 2, *given[2:]])
    assert "train_y is <f8 [12]: give one integer label" in message(catalogue.find, path)
    path = save(tmp_path / "c.npz", [given[0], given[1][:5], *given[2:]])
    assert "12 and 6 examples, 5 and 6 labels" in message(catalogue.find, path)
    path = save(tmp_path / "d.npz", [given[0], given[1], given[2][:, 1:], given[3]])
    assert "[12, 5, 4, 3] and test_x [6, 4, 4, 3]: give both" in message(catalogue.find, path)
    path = save(tmp_path / "e.npz", [np.array([None] * 12), *given[1:]])
    assert "e.npz" in message(own.load, path)


def test_damaged_files(tmp_path):
    path = Path(save(tmp_path / "good.npz", four(400), compress=True))
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:300] + b"x" * 9 + whole[309:]):
        path.write_bytes(content)
        said = message(own.load, str(path))
        assert said.startswith(f"cannot read '{path}' as an .npz file (")
        message(own.fingerprint, str(path))
    assert message(own.load, str(tmp_path / "good.npz" / "x.npz")).startswith("cannot read")


def test_names_that_stand_for_nothing():
    assert "give them again" in message(catalogue.find, "arrays@1a2b3c4d")
    for name in ("hf:", "hf:a:b:c", "hf:a:"):
        assert "give hf:owner/name or hf:owner/name:config" in message(catalogue.find, name)
    assert "did you mean 'cifar10'" in message(catalogue.find, "cifar")


def test_short_names():
    names = {
        "mnist5k": "mnist5k",
        "arrays@1a2b3c4d": "arrays@1a2b3c4d",
        "some/dir/my.data.npz": "my.data",
        "hf:owner/name": "owner-name",
        "hf:owner/name:small": "owner-name-small",
        "hf:./local/dir": "local-dir",
    }
    assert {name: catalogue.short_name(name) for name in names} == names
