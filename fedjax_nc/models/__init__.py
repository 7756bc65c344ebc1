"""Networks by name; the only folder that imports flax."""

from functools import partial

from fedjax_nc.errors import UserError, unknown
from fedjax_nc.models.base import from_body
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.models.cnn import CNN
from fedjax_nc.models.mlp import MLP
from fedjax_nc.models.resnet_cifar import ResNetCifar
from fedjax_nc.types import HeadSpec, Model

__all__ = ["build"]

_BODIES = {
    "mlp": MLP,
    "cnn": CNN,
    "resnet8": partial(ResNetCifar, 8),
    "resnet20": partial(ResNetCifar, 20),
}


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    head: HeadSpec,
    *,
    norm: str = "default",
    conv: str = "auto",
) -> Model:
    """The model `name` for inputs of this shape.

    Args:
      name: a key of `catalogue.MODELS`.
      shape: one input's shape, without the batch axis.
      classes: number of classes.
      head: what the method wants on top of the features.
      norm: BatchNorm mode, or `default` for the model's own.
      conv: lowering of the convolutions.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    spec = MODELS[name]
    if len(shape) != 3 or min(shape[:2]) < spec.min_size:
        raise UserError(
            f"model '{name}' takes images of at least {spec.min_size}x{spec.min_size}, "
            f"not inputs of shape {shape}: choose another model or dataset"
        )
    norm = spec.norm if norm == "default" else norm
    return from_body(_BODIES[name](norm=norm, conv=conv), shape, classes, head)
