"""Augmentation against NumPy with the same random numbers, and inside jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc import config
from fedjax_nc.data import augment
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.data.federated import Split
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.host import dry_run
from fedjax_nc.host.assemble import Given, assemble
from fedjax_nc.models.resnet import ResNet

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


@pytest.mark.parametrize("pad, size", [(0, 7), (2, 7), (3, 16)])
def test_crop_to_a_size_equals_numpy(pad, size):
    last = np.array([[12], [10]]) - size + pad
    top, left = np.asarray(jax.random.randint(KEY, (2, 64), -pad, last + 1)) + pad
    assert (top.max(), left.max()) == (12 - size + 2 * pad, 10 - size + 2 * pad)  # up to the edge
    padded = np.pad(X, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = [p[i : i + size, j : j + size] for p, i, j in zip(padded, top, left, strict=True)]
    found = augment.build((f"crop{pad}to{size}",))(KEY, jnp.asarray(X))
    assert found.shape == (64, size, size, 3)
    np.testing.assert_array_equal(
        augment.pad_crop(KEY, jnp.asarray(X), pad, size=size), np.stack(expected)
    )


def test_shape_in_training():
    assert augment.training_shape(("crop4", "flip"), (64, 60, 3)) == (64, 60, 3)
    assert augment.training_shape(("flip", "crop4to32"), (64, 60, 3)) == (32, 32, 3)
    assert augment.training_shape(("crop4to72",), (64, 64, 3)) == (72, 72, 3)
    with pytest.raises(UserError, match="images of 64x60 have no crop of 69x69: give a smaller"):
        augment.training_shape(("crop4to69",), (64, 60, 3))


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


@pytest.mark.parametrize(
    "name", ["crop", "crop0", "crop4to", "crop4to0", "crp4", "flip2", "rotate", "cutout-1", ""]
)
def test_unknown_name(name):
    with pytest.raises(
        UserError, match=f"unknown augmentation '{name}'.*choose from crop4, crop4to"
    ):
        augment.build(("flip", name))


# ---- a run whose training crops -------------------------------------------------------------


def cropping(augmentation, normalise="dataset"):
    """A run on colour images of 12 pixels."""
    rng = np.random.RandomState(0)
    images = {kind: rng.randint(0, 256, (6, 12, 12, 3)).astype(np.uint8) for kind in ("a", "b")}
    labels = np.arange(6, dtype=np.int32) % 2
    arrays = Arrays(images["a"], labels, test_x=images["b"], test_y=labels)
    spec = DatasetSpec(name="x", classes=2, shape=(12, 12, 3), train=6, test=6, **COLOURS)
    cfg = config.RunConfig(
        method="fedavg",
        data=config.Data(augment=augmentation, normalise=normalise),
        federation=config.Federation(1, 1),
        evaluation=config.Evaluation(finetune=False),
    )
    split = Split([np.arange(6)], [np.arange(6)], pool="test")
    body = ResNet((1, 1), "running", conv="native", channels=(4, 8))
    return assemble(cfg, given=Given(model=body, dataset=(spec, arrays), split=split))


COLOURS = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1)}


def test_training_sees_crops_and_tests_whole_images():
    whole, cropped = cropping(("flip",)), cropping(("crop1to6", "flip"))
    make = cropped.task.trainer.make_batch
    index, mask = jnp.arange(4), jnp.ones(4, bool)
    assert make(cropped.data.pool, index, mask, KEY).x.shape == (4, 6, 6, 3)
    assert make(cropped.data.pool, index, mask, None).x.shape == (4, 12, 12, 3)
    weights = jax.eval_shape(cropped.task.trainer.model.init, KEY)
    assert weights == jax.eval_shape(whole.task.trainer.model.init, KEY)
    work = [dry_run.step_flops(job, job.task.method.phases[0]) for job in (whole, cropped)]
    assert 3.5 < work[0] / work[1] < 4.1  # a quarter of the pixels; the head is the same


def test_cinic10s_constants():
    """FedBlade's of Tiny-ImageNet, whose own are others."""
    job, cinic = cropping((), normalise="cinic10"), DATASETS["cinic10"]
    index, mask = jnp.arange(4), jnp.ones(4, bool)
    x = job.task.trainer.make_batch(job.data.pool, index, mask, None).x
    expected = augment.normalise(job.data.pool.x[:4], cinic.mean, std=cinic.std)
    np.testing.assert_array_equal(x, expected)
    assert DATASETS["tiny_imagenet"].std != cinic.std
