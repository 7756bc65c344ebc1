"""Networks by name; the only folder that imports flax, and only when a model is built."""

from functools import partial
from typing import TYPE_CHECKING, Any

from fedjax_nc.errors import UserError
from fedjax_nc.models.catalogue import MODELS, check, fitting

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedjax_nc.types import HeadSpec, Model


def build(
    name: Any,
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
    from fedjax_nc.models import base  # flax takes a second to import

    if not isinstance(name, str):
        return base.from_body(name, shape, classes=classes, spec=head)
    check(name, shape)
    spec = MODELS[name]
    options: dict[str, Any] = {"norm": spec.norm if norm == "default" else norm, "conv": conv}
    if survival is not None:
        if not spec.blocks:
            residual = ", ".join(m for m in fitting(shape) if MODELS[m].blocks)
            raise UserError(
                f"model '{name}' has no residual blocks to leave out: choose {residual}"
            )
        options["survival"] = survival(spec.blocks)
    return base.from_body(_bodies(shape, words)[name](**options), shape, classes=classes, spec=head)


def _bodies(shape: tuple[int, ...], words: int) -> "dict[str, Callable]":
    from fedjax_nc.models import (
        bilstm,
        cnn,
        densenet,
        inverted,
        mlp,
        mobilenet,
        resnet,
        shufflenet,
        vgg,
    )

    net, large = resnet.ResNet, min(shape[:2]) > 64  # FedETF has the small stem at 64 pixels
    return {
        "mlp": mlp.MLP,
        "cnn": cnn.CNN,
        "fedavg_cnn": cnn.FedAvgCNN,
        "vgg11": vgg.VGG11,
        "resnet8": partial(net, (1,) * 3),
        "resnet20": partial(net, (3,) * 3),
        "resnet20_b": partial(net, (3,) * 3, projection=True),
        "resnet32": partial(net, (5,) * 3),
        "resnet56": partial(net, (9,) * 3),
        "resnet56_bottleneck": partial(net, (6,) * 3, bottleneck=True),
        "wrn56_4": partial(net, (9,) * 3, projection=True, channels=(64, 128, 256)),
        "resnet18": partial(
            net, (2,) * 4, projection=True, channels=(64, 128, 256, 512), large=large
        ),
        "mobilenet": mobilenet.MobileNet,
        "mobilenet_v2": partial(inverted.InvertedResiduals, inverted.MOBILENET_V2),
        "efficientnet_b0": partial(inverted.InvertedResiduals, inverted.EFFICIENTNET_B0),
        "densenet121": densenet.DenseNet121,
        "shufflenet": shufflenet.ShuffleNet,
        "bilstm": partial(bilstm.BiLSTM, words + 2),
    }
