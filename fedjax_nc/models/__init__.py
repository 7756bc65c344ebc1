"""Networks by name; the only folder that imports flax, and only when a model is built."""

from typing import TYPE_CHECKING

from fedjax_nc.errors import UserError
from fedjax_nc.models.catalogue import MODELS, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedjax_nc.types import HeadSpec, Model


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    head: "HeadSpec",
    *,
    norm: str = "default",
    conv: str = "auto",
    survival: "Callable[[int], tuple[float, ...]] | None" = None,
    words: int = 10_000,
) -> "Model":
    """The model `name` for inputs of this shape.

    Args:
      name: a key of `catalogue.MODELS`.
      shape: one input's shape, without the batch axis.
      classes: number of classes.
      head: what the method wants on top of the features.
      norm: normalisation mode, or `default` for the model's own.
      conv: lowering of the convolutions.
      survival: number of residual blocks to the probability that training keeps each.
      words: how many words have an id; two more are padding and the unknown word.
    """
    from fedjax_nc.models import base, bilstm, cnn, mlp, resnet_cifar  # flax takes a second

    check(name, shape)
    spec = MODELS[name]
    norm = spec.norm if norm == "default" else norm
    if survival is not None and not spec.blocks:
        residual = ", ".join(m.name for m in MODELS.values() if m.blocks)
        raise UserError(f"model '{name}' has no residual blocks to leave out: choose {residual}")
    keep = survival(spec.blocks) if survival else ()
    bodies = {
        "mlp": lambda: mlp.MLP(norm, conv),
        "cnn": lambda: cnn.CNN(norm, conv),
        "fedavg_cnn": lambda: cnn.FedAvgCNN(norm, conv),
        "resnet8": lambda: resnet_cifar.ResNetCifar(8, norm, conv, False, keep),
        "resnet20": lambda: resnet_cifar.ResNetCifar(20, norm, conv, False, keep),
        "resnet20_b": lambda: resnet_cifar.ResNetCifar(20, norm, conv, True, keep),
        "bilstm": lambda: bilstm.BiLSTM(words + 2, norm),
    }
    return base.from_body(bodies[name](), shape, classes, head)
