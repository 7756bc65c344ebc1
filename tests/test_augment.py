"""Augmentation against NumPy with the same random numbers, and inside jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc.data import augment
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError

KEY = jax.random.key(0)
X = np.random.RandomState(0).randint(1, 256, (64, 12, 10, 3)).astype(np.float32)  # no zeros
ALL = ("crop4", "flip", "cutout8", "rrc")


def test_normalise():
    spec = DATASETS["cifar10"]
    x = X[:4].astype(np.uint8)
    expected = (x / 255.0 - np.array(spec.mean)) / np.array(spec.std)
    for given in (jnp.asarray(x), jnp.asarray(x, jnp.float32)):
        out = augment.normalise(given, spec.mean, std=spec.std)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pad", [0, 4])
def test_pad_crop_equals_numpy(pad):
    top, left = np.asarray(jax.random.randint(KEY, (2, 64), -pad, pad + 1)) + pad
    padded = np.pad(X, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = [p[i : i + 12, j : j + 10] for p, i, j in zip(padded, top, left, strict=True)]
    np.testing.assert_array_equal(augment.pad_crop(KEY, jnp.asarray(X), pad), np.stack(expected))


def test_pad_crop_reaches_every_offset_equally():
    x = jnp.asarray(np.tile(np.eye(9, dtype=np.float32)[4].reshape(3, 3, 1), (20000, 1, 1, 1)))
    shifted = np.asarray(augment.pad_crop(KEY, x, 1)).mean(0)[..., 0]
    np.testing.assert_allclose(shifted, 1 / 9, atol=0.01)


def test_padding_is_a_black_pixel():
    """As in torchvision, which pads before it normalises: -mean/std, not 0."""
    x = augment.pad_crop(KEY, jnp.full((*X.shape[:3], 1), 255.0), 4)
    low = float(augment.normalise(x, (0.4,), std=(0.2,)).min())
    assert low == pytest.approx(-2.0)


def test_flip_is_exact():
    swap = np.asarray(jax.random.bernoulli(KEY, 0.5, (64, 1, 1, 1)))
    assert 16 < swap.sum() < 48
    expected = np.where(swap, X[:, :, ::-1], X)
    np.testing.assert_array_equal(augment.flip(KEY, jnp.asarray(X)), expected)


@pytest.mark.parametrize("size", [1, 4, 5, 30])
def test_cutout_blackens_one_square(size):
    out = np.asarray(augment.cutout(KEY, jnp.asarray(X), size))
    key_h, key_w = jax.random.split(KEY)
    tops = np.asarray(jax.random.randint(key_h, (64, 1), 0, 12))[:, 0] - size // 2
    lefts = np.asarray(jax.random.randint(key_w, (64, 1), 0, 10))[:, 0] - size // 2
    for before, after, top, left in zip(X, out, tops, lefts, strict=True):
        rows = min(top + size, 12) - max(top, 0)
        columns = min(left + size, 10) - max(left, 0)
        assert (after == 0).sum() == rows * columns * 3
        hole = after[max(top, 0) : max(top, 0) + rows, max(left, 0) : max(left, 0) + columns]
        assert (hole == 0).all()
        np.testing.assert_array_equal(after[after != 0], before[after != 0])
    if size == 4:  # a square away from the border is whole
        assert (out == 0).sum((1, 2, 3)).max() == 4 * 4 * 3


def reference_resize(crop, h, w):
    """Bilinear with pixel centres at one half and edges repeated, one output pixel at a time."""
    out = np.zeros((h, w, crop.shape[2]))
    for i in range(h):
        for j in range(w):
            y = np.clip((i + 0.5) * crop.shape[0] / h - 0.5, 0, crop.shape[0] - 1)
            x = np.clip((j + 0.5) * crop.shape[1] / w - 0.5, 0, crop.shape[1] - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, crop.shape[0] - 1), min(x0 + 1, crop.shape[1] - 1)
            upper = crop[y0, x0] * (1 - x + x0) + crop[y0, x1] * (x - x0)
            lower = crop[y1, x0] * (1 - x + x0) + crop[y1, x1] * (x - x0)
            out[i, j] = upper * (1 - y + y0) + lower * (y - y0)
    return out


def test_random_resized_crop_equals_numpy():
    x = X[:24]
    out = jax.jit(augment.random_resized_crop)(KEY, jnp.asarray(x))
    keys = jax.random.split(KEY, 4)
    area = jax.random.uniform(keys[0], (24, 1), minval=0.08, maxval=1.0) * 120
    low, high = np.log(3 / 4), np.log(4 / 3)
    aspect = jnp.exp(jax.random.uniform(keys[1], (24, 1), minval=low, maxval=high))
    rows = np.clip(np.rint(np.sqrt(area / aspect)), 1, 12).astype(int)
    columns = np.clip(np.rint(np.sqrt(area * aspect)), 1, 10).astype(int)
    tops = np.asarray(jax.random.randint(keys[2], (24, 1), 0, 12 - rows + 1))
    lefts = np.asarray(jax.random.randint(keys[3], (24, 1), 0, 10 - columns + 1))
    assert len(np.unique(rows)) > 3 and len(np.unique(lefts)) > 3
    expected = [
        reference_resize(image[i : i + r, j : j + c], 12, 10)
        for image, (i,), (r,), (j,), (c,) in zip(x, tops, rows, lefts, columns, strict=True)
    ]
    np.testing.assert_allclose(out, np.stack(expected), rtol=1e-5, atol=1e-3)


def test_random_resized_crop_of_everything_changes_nothing():
    x = jnp.asarray(X[:, :10])
    out = augment.random_resized_crop(KEY, x, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    np.testing.assert_allclose(out, x, rtol=1e-6)


def test_build_under_jit_and_vmap():
    """Clients with the same images and their own keys: as one by one, and each in another way."""
    apply = jax.jit(augment.build(ALL))
    x, keys = jnp.asarray(X[:8]), jax.random.split(KEY, 3)
    alone = np.stack([apply(key, x) for key in keys])
    np.testing.assert_array_equal(alone[0], apply(keys[0], x))
    together = jax.jit(jax.vmap(apply, in_axes=(0, None)))(keys, x)
    assert together.shape == (3, *x.shape) and together.dtype == jnp.float32
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-3)
    assert not np.array_equal(alone[0], alone[1])


def test_build_of_nothing_changes_nothing():
    np.testing.assert_array_equal(augment.build(())(KEY, jnp.asarray(X)), X)


def test_build_composes_in_order_with_a_key_each():
    x = jnp.asarray(X)
    expected = augment.pad_crop(jax.random.fold_in(KEY, 0), x, 2)
    expected = augment.flip(jax.random.fold_in(KEY, 1), expected)
    np.testing.assert_array_equal(augment.build(("crop2", "flip"))(KEY, x), expected)
    twice = augment.build(("flip", "flip"))(KEY, x)
    assert not np.array_equal(twice, x)  # one shared key would undo the first flip


@pytest.mark.parametrize("name", ["crop", "crop0", "crp4", "flip2", "rotate", "cutout-1", ""])
def test_unknown_name(name):
    with pytest.raises(UserError, match=f"unknown augmentation '{name}'.*choose from crop4, cut"):
        augment.build(("flip", name))
