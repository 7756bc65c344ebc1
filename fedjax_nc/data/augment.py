"""Image augmentation and normalisation, on the device and inside jit.

Augmentations take one key per batch and float32 images [b, h, w, c] BEFORE normalisation, as
torchvision does: the zeros of padding and cutout are black pixels, and `normalise` comes last.
(DeVries and Taylor's own cutout comes after normalisation, so their square has the mean colour.)
"""

import math
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from fedjax_nc import errors

Pixels = UInt8[Array, "*b h w c"] | Float[Array, "*b h w c"]
Images = Float[Array, "b h w c"]
Crops = Float[Array, "b rows columns c"]
Range = tuple[float, float]
Augment = Callable[[Key[Array, ""], Images], Crops]


def normalise(
    x: Pixels, mean: Sequence[float], *, std: Sequence[float], scale: int = 255
) -> Float[Array, "*b h w c"]:
    """Computes (x / scale - mean) / std of every channel.

    Args:
      x: pixels, uint8 or after augmentation float.
      mean: of each channel.
      std: of each channel.
      scale: what a pixel of full brightness is.
    """
    scaled = x.astype(jnp.float32) / scale if scale != 1 else x.astype(jnp.float32)
    return (scaled - jnp.asarray(mean, jnp.float32)) / jnp.asarray(std, jnp.float32)


def pad_crop(key: Key[Array, ""], x: Images, pad: int, size: int = 0) -> Crops:
    """Pads every image with zeros and crops it at a random place.

    Args:
      key: of the places.
      x: images.
      pad: pixels on each side.
      size: side of the crop; 0 keeps the images' own.
    """
    b, h, w, _ = x.shape
    rows, columns = (size, size) if size else (h, w)
    last = jnp.array([[h - rows], [w - columns]]) + pad
    offset = jax.random.randint(key, (2, b), -pad, last + 1)
    x, inside_h = _shift(x, offset[0], axis=1, length=rows)
    x, inside_w = _shift(x, offset[1], axis=2, length=columns)
    return jnp.where((inside_h[:, :, None] & inside_w[:, None, :])[..., None], x, 0)


def _shift(
    x: Images, offset: Int[Array, " b"], axis: int, length: int
) -> tuple[Crops, Bool[Array, "b n"]]:
    """Cuts every image so that row i is row i + offset of x, and says which of these rows exist.

    Gathers along one axis at a time from the clipped image: no padded copy is built, and two
    such gathers are several times faster than one over both axes.
    """
    source = jnp.arange(length) + offset[:, None]
    inside = (source >= 0) & (source < x.shape[axis])
    index = jnp.clip(source, 0, x.shape[axis] - 1)
    index = index[:, :, None, None] if axis == 1 else index[:, None, :, None]
    return jnp.take_along_axis(x, index, axis=axis), inside


def flip(key: Key[Array, ""], x: Images) -> Images:
    """Mirrors left and right of every image with probability one half."""
    swap = jax.random.bernoulli(key, 0.5, (x.shape[0], 1, 1, 1))
    return jnp.where(swap, x[:, :, ::-1], x)


def cutout(key: Key[Array, ""], x: Images, size: int) -> Images:
    """Blackens a size x size square around a random pixel, as far as it lies in the image."""
    b, h, w, _ = x.shape
    key_h, key_w = jax.random.split(key)
    rows = _window(jax.random.randint(key_h, (b, 1), 0, h) - size // 2, size, length=h)
    columns = _window(jax.random.randint(key_w, (b, 1), 0, w) - size // 2, size, length=w)
    return jnp.where((rows[:, :, None] & columns[:, None, :])[..., None], 0, x)


def _window(start: Int[Array, "b 1"], size: int, length: int) -> Bool[Array, "b {length}"]:
    place = jnp.arange(length)
    return (place >= start) & (place < start + size)


def random_resized_crop(
    key: Key[Array, ""], x: Images, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)
) -> Images:
    """Crops a random share of the area at a random aspect ratio and resizes it bilinearly.

    torchvision redraws a crop that does not fit; here its longer side is cut to the image, since
    a loop of unknown length would make every image of a batch wait for the slowest.
    """
    b, h, w, _ = x.shape
    keys = jax.random.split(key, 4)
    area = jax.random.uniform(keys[0], (b, 1), minval=scale[0], maxval=scale[1]) * (h * w)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = jnp.exp(jax.random.uniform(keys[1], (b, 1), minval=low, maxval=high))
    rows = jnp.clip(jnp.rint(jnp.sqrt(area / aspect)), 1, h).astype(jnp.int32)
    columns = jnp.clip(jnp.rint(jnp.sqrt(area * aspect)), 1, w).astype(jnp.int32)
    top = jax.random.randint(keys[2], (b, 1), 0, h - rows + 1)
    left = jax.random.randint(keys[3], (b, 1), 0, w - columns + 1)
    across, down = _stretch(left, columns, n=w), _stretch(top, rows, n=h)
    x = jnp.einsum("bjk,bikc->bijc", across, x, precision="highest")
    return jnp.einsum("bik,bkjc->bijc", down, x, precision="highest")


def _stretch(start: Int[Array, "b 1"], length: Int[Array, "b 1"], n: int) -> Float[Array, "b n n"]:
    """The matrices that spread pixels start .. start + length - 1 over n, by linear interpolation.

    Matrices, since XLA on the CPU repeats a fused gather for each reader: a flip made it 4x slower.
    """
    centre = jnp.clip((jnp.arange(n) + 0.5) * (length / n) - 0.5, 0, length - 1) + start
    return jnp.maximum(0, 1 - jnp.abs(centre[:, :, None] - jnp.arange(n)))


TABLE = {"crop": pad_crop, "cutout": cutout, "flip": flip, "rrc": random_resized_crop}


_FORM = re.compile(r"(crop)([0-9]+)to([1-9][0-9]*)|(crop|cutout)([1-9][0-9]*)|(flip|rrc)")
_EXAMPLES = ("crop4", "crop4to32", "cutout8", "flip", "rrc")


def _step(name: str) -> tuple[str, tuple[int, ...]]:
    """Returns the name in `TABLE` and the numbers of an augmentation such as crop4to32."""
    match = _FORM.fullmatch(name)
    if not match:
        raise errors.unknown("augmentation", name, allowed=_EXAMPLES)
    kind, *numbers = (part for part in match.groups() if part is not None)
    return kind, tuple(map(int, numbers))


def build(names: tuple[str, ...]) -> Augment:
    """Composes augmentations in order, each with its own key.

    Args:
      names: of flip, rrc, crop and cutout, the latter two with a number of pixels: crop4, cutout8;
        crop4to32 crops to 32 x 32 pixels instead of the old size.

    Returns:
      A function of a key and float images [b, h, w, c] to images.
    """
    steps = [_step(name) for name in names]

    def augment(key: Key[Array, ""], x: Images) -> Crops:
        for i, (kind, numbers) in enumerate(steps):
            x = TABLE[kind](jax.random.fold_in(key, i), x, *numbers)
        return x

    return augment


def training_shape(names: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of an image after its augmentations; refuses a crop that is too large."""
    for name in names:
        kind, numbers = _step(name)
        if kind == "crop" and len(numbers) == 2:
            pad, size = numbers
            if size > min(shape[:2]) + 2 * pad:
                raise errors.UserError(
                    f"--data.augment {name}: images of {shape[0]}x{shape[1]} have no crop of "
                    f"{size}x{size}: give a smaller one"
                )
            shape = (size, size, *shape[2:])
    return shape
