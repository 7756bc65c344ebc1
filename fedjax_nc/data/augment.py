"""Image augmentation and normalisation, on the device and inside jit.

Augmentations take one key per batch and float32 images [b, h, w, c] BEFORE normalisation, as
torchvision does: the zeros of padding and cutout are black pixels, and `normalise` comes last.
Everything is vectorised over the batch with static shapes, so a further vmap over clients works.
"""

import functools
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from fedjax_nc import errors

Pixels = UInt8[Array, "*b h w c"] | Float[Array, "*b h w c"]
Images = Float[Array, "b h w c"]
Range = tuple[float, float]
Augment = Callable[[Key[Array, ""], Images], Images]


def normalise(x: Pixels, mean: Sequence[float], std: Sequence[float]) -> Float[Array, "*b h w c"]:
    """Pixels 0..255 (uint8, or float after augmentation) to (pixel / 255 - mean) / std."""
    mean, std = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
    return (x.astype(jnp.float32) / 255 - mean) / std


def pad_crop(key: Key[Array, ""], x: Images, pad: int) -> Images:
    """Pad by zeros on all sides, then crop to the old size at a random place, one per image."""
    b = x.shape[0]
    offset = jax.random.randint(key, (2, b), -pad, pad + 1)
    x, inside_h = _shift(x, offset[0], axis=1)
    x, inside_w = _shift(x, offset[1], axis=2)
    return jnp.where((inside_h[:, :, None] & inside_w[:, None, :])[..., None], x, 0)


def _shift(x: Images, offset: Int[Array, " b"], axis: int) -> tuple[Images, Bool[Array, "b n"]]:
    """Row i of the result is row i + offset of x; also says which of these rows exist.

    Gathers along one axis at a time from the clipped image: no padded copy is built, and two
    such gathers are several times faster than one over both axes.
    """
    source = jnp.arange(x.shape[axis]) + offset[:, None]
    inside = (source >= 0) & (source < x.shape[axis])
    index = jnp.clip(source, 0, x.shape[axis] - 1)
    index = index[:, :, None, None] if axis == 1 else index[:, None, :, None]
    return jnp.take_along_axis(x, index, axis=axis), inside


def flip(key: Key[Array, ""], x: Images) -> Images:
    """Mirror left and right with probability one half, per image."""
    swap = jax.random.bernoulli(key, 0.5, (x.shape[0], 1, 1, 1))
    return jnp.where(swap, x[:, :, ::-1], x)


def cutout(key: Key[Array, ""], x: Images, size: int) -> Images:
    """Zero a size x size square around a random pixel; at the border part of it falls outside."""
    b, h, w, _ = x.shape
    key_h, key_w = jax.random.split(key)

    def hidden(key, n):
        start = jax.random.randint(key, (b, 1), 0, n) - size // 2
        place = jnp.arange(n)
        return (place >= start) & (place < start + size)

    hole = hidden(key_h, h)[:, :, None] & hidden(key_w, w)[:, None, :]
    return jnp.where(hole[..., None], 0, x)


def random_resized_crop(
    key: Key[Array, ""], x: Images, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)
) -> Images:
    """A crop of random area (a share of the image) and aspect ratio, resized back bilinearly.

    torchvision redraws a crop that does not fit; here its longer side is cut to the image, since
    a loop of unknown length has no place under vmap.
    """
    b, h, w, _ = x.shape
    keys = jax.random.split(key, 4)
    area = jax.random.uniform(keys[0], (b,), minval=scale[0], maxval=scale[1]) * h * w
    low, high = jnp.log(jnp.asarray(ratio, jnp.float32))
    aspect = jnp.exp(jax.random.uniform(keys[1], (b,), minval=low, maxval=high))
    crop_w = jnp.clip(jnp.sqrt(area * aspect), 1, w)
    crop_h = jnp.clip(jnp.sqrt(area / aspect), 1, h)
    top = jax.random.uniform(keys[2], (b,)) * (h - crop_h)
    left = jax.random.uniform(keys[3], (b,)) * (w - crop_w)
    return _resize(_resize(x, top, crop_h, axis=1), left, crop_w, axis=2)


def _resize(x: Images, start: Float[Array, " b"], length: Float[Array, " b"], axis: int) -> Images:
    """Stretch [start, start + length) of one axis over the whole axis, by linear interpolation."""
    n = x.shape[axis]
    centre = start[:, None] + (jnp.arange(n) + 0.5) * (length[:, None] / n) - 0.5
    centre = jnp.clip(centre, 0, n - 1)
    below = jnp.floor(centre)
    shape = (-1, n, 1, 1) if axis == 1 else (-1, 1, n, 1)
    weight, index = (centre - below).reshape(shape), below.astype(jnp.int32).reshape(shape)
    first = jnp.take_along_axis(x, index, axis=axis)
    second = jnp.take_along_axis(x, jnp.minimum(index + 1, n - 1), axis=axis)
    return first + weight * (second - first)


SIZED = {  # crop4, cutout8: the number is a length in pixels
    "crop": lambda n: functools.partial(pad_crop, pad=n),
    "cutout": lambda n: functools.partial(cutout, size=n),
}
PLAIN = {"flip": flip, "rrc": random_resized_crop}


def build(names: tuple[str, ...]) -> Augment:
    """Compose augmentations such as ("crop4", "flip", "cutout8", "rrc") in order, a key for each."""
    steps = []
    for name in names:
        sized = re.fullmatch(r"([a-z]+)([1-9][0-9]*)", name)
        if sized and sized[1] in SIZED:
            steps.append(SIZED[sized[1]](int(sized[2])))
        elif name in PLAIN:
            steps.append(PLAIN[name])
        else:
            raise errors.unknown("augmentation", name, ("crop4", "cutout8", *PLAIN))

    def augment(key: Key[Array, ""], x: Images) -> Images:
        for i, step in enumerate(steps):
            x = step(jax.random.fold_in(key, i), x)
        return x

    return augment
