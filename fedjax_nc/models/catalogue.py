"""One record per model, readable without importing flax."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedjax_nc.errors import UserError, unknown

OWN = "own"  # the normalisation of a network that has no field `norm` to choose one by


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a model is, how it is built, how large it is, and which inputs it takes.

    Sizes are for 32x32 colour images and ten classes, or for reviews as FedDW prepares them; a
    test counts them again. MFLOPs are millions of multiply-adds of a forward pass, each counted
    once as in the papers' tables.

    A field `norm`, `conv`, `survival` or `words` of the module is set from the configuration.
    """

    name: str
    summary: str
    module: Any  # "package.module:Name", a flax module, its class, or a function that makes one
    options: Mapping[str, Any] = field(default_factory=dict)  # what a class or function is given
    norm: str = OWN  # the normalisation it has unless told otherwise
    parameters: int | None = None
    mflops: float | None = None
    counted: str = "-"  # who publishes the number of parameters, for these or other classes
    min_size: int = 1  # the least side of an image
    blocks: int = 0  # residual blocks that training can leave out
    text: bool = False  # takes rows of word ids instead of images
    mapped: bool = False  # ends with FedDW's mapping layers, and takes no others
    source: str = ""  # the file that registers it; empty for the package's own

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the model takes inputs of this shape."""
        return len(shape) == 1 if self.text else len(shape) == 3 and min(shape[:2]) >= self.min_size


_RECORDS = (
    ModelSpec(
        name="mlp",
        summary="two hidden layers, 200 and 128 units",
        module="fedjax_nc.models.mlp:MLP",
        norm="none",
        parameters=641_618,
        mflops=0.64,
        counted="by hand",
        min_size=1,
    ),
    ModelSpec(
        name="cnn",
        summary="FedDW's two 5x5 convolutions",
        module="fedjax_nc.models.cnn:CNN",
        norm="none",
        parameters=139_714,
        mflops=0.73,
        counted="by hand",
        min_size=16,
        mapped=True,
    ),
    ModelSpec(
        name="fedavg_cnn",
        summary="FedAvg's two 5x5 convolutions",
        module="fedjax_nc.models.cnn:FedAvgCNN",
        norm="none",
        parameters=878_538,
        mflops=7.83,
        counted="PFLlib",
        min_size=16,
    ),
    ModelSpec(
        name="vgg11",
        summary="VGG-11 of FedDr+, 512-512 dense layers",
        module="fedjax_nc.models.vgg:VGG11",
        norm="none",
        parameters=9_750_922,
        mflops=153.29,
        counted="by hand",
        min_size=8,
    ),
    ModelSpec(
        name="resnet8",
        summary="ResNet, one basic block a stage",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (1, 1, 1)},
        norm="running",
        parameters=75_290,
        mflops=12.24,
        counted="by hand",
        min_size=8,
        blocks=3,
    ),
    ModelSpec(
        name="resnet20",
        summary="ResNet-20",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (3, 3, 3)},
        norm="running",
        parameters=269_722,
        mflops=40.55,
        counted="He et al., table 6",
        min_size=8,
        blocks=9,
    ),
    ModelSpec(
        name="resnet20_b",
        summary="ResNet-20, projections",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (3, 3, 3), "projection": True},
        norm="running",
        parameters=272_474,
        mflops=40.81,
        counted="by hand",
        min_size=8,
        blocks=9,
    ),
    ModelSpec(
        name="resnet32",
        summary="ResNet-32",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (5, 5, 5)},
        norm="running",
        parameters=464_154,
        mflops=68.86,
        counted="He et al., table 6",
        min_size=8,
        blocks=15,
    ),
    ModelSpec(
        name="resnet32_b",
        summary="ResNet-32, projections",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (5, 5, 5), "projection": True},
        norm="running",
        parameters=466_906,
        mflops=69.12,
        counted="by hand",
        min_size=8,
        blocks=15,
    ),
    ModelSpec(
        name="resnet56",
        summary="ResNet-56",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (9, 9, 9)},
        norm="running",
        parameters=853_018,
        mflops=125.49,
        counted="He et al., table 6",
        min_size=8,
        blocks=27,
    ),
    ModelSpec(
        name="resnet56_b",
        summary="ResNet-56, projections",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (9, 9, 9), "projection": True},
        norm="running",
        parameters=855_770,
        mflops=125.75,
        counted="by hand",
        min_size=8,
        blocks=27,
    ),
    ModelSpec(
        name="resnet56_bottleneck",
        summary="ResNet-56 of FedAlign",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (6, 6, 6), "bottleneck": True},
        norm="running",
        parameters=591_322,
        mflops=87.21,
        counted="FedAlign, table 5",
        min_size=8,
        blocks=18,
    ),
    ModelSpec(
        name="wrn56_4",
        summary="ResNet-56 of FedETF, 4 times as wide",
        module="fedjax_nc.models.resnet:ResNet",
        options={"blocks": (9, 9, 9), "channels": (64, 128, 256), "projection": True},
        norm="running",
        parameters=13_628_234,
        mflops=2006.65,
        counted="by hand",
        min_size=8,
        blocks=27,
    ),
    ModelSpec(
        name="resnet18",
        summary="ResNet-18, above 64 pixels ImageNet's stem",
        module="fedjax_nc.models.resnet:ResNet",
        options={
            "blocks": (2, 2, 2, 2),
            "channels": (64, 128, 256, 512),
            "projection": True,
            "large_above": 64,
        },
        norm="running",
        parameters=11_173_962,
        mflops=555.42,
        counted="torchvision",
        min_size=8,
        blocks=8,
    ),
    ModelSpec(
        name="mobilenet",
        summary="MobileNet, first stride 1",
        module="fedjax_nc.models.mobilenet:MobileNet",
        norm="running",
        parameters=3_217_226,
        mflops=46.35,
        counted="Howard et al., table 8",
        min_size=8,
    ),
    ModelSpec(
        name="mobilenet_v2",
        summary="MobileNetV2, first strides 1",
        module="fedjax_nc.models.inverted:mobilenet_v2",
        norm="running",
        parameters=2_236_682,
        mflops=87.98,
        counted="torchvision",
        min_size=8,
        blocks=10,
    ),
    ModelSpec(
        name="mobilenet_v2_half",
        summary="MobileNetV2 of FedDW, half as wide, projections",
        module="fedjax_nc.models.inverted:mobilenet_v2_half",
        norm="running",
        parameters=604_178,
        mflops=26.12,
        counted="by hand",
        min_size=8,
        blocks=10,
    ),
    ModelSpec(
        name="efficientnet_b0",
        summary="EfficientNet-B0, first stride 1",
        module="fedjax_nc.models.inverted:efficientnet_b0",
        norm="running",
        parameters=4_020_358,
        mflops=31.98,
        counted="torchvision",
        min_size=8,
        blocks=9,
    ),
    ModelSpec(
        name="densenet121",
        summary="DenseNet-121, 3x3 stem",
        module="fedjax_nc.models.densenet:DenseNet121",
        norm="running",
        parameters=6_956_298,
        mflops=888.35,
        counted="torchvision",
        min_size=8,
    ),
    ModelSpec(
        name="shufflenet",
        summary="ShuffleNet of FedDW, two groups",
        module="fedjax_nc.models.shufflenet:ShuffleNet",
        norm="running",
        parameters=887_582,
        mflops=39.61,
        counted="pytorch-cifar100",
        min_size=8,
    ),
    ModelSpec(
        name="bilstm",
        summary="FedDW's embedding and bidirectional LSTM",
        module="fedjax_nc.models.bilstm:BiLSTM",
        norm="none",
        parameters=1_593_090,
        mflops=59.0,
        counted="by hand",
        text=True,
        mapped=True,
    ),
)
MODELS = {spec.name: spec for spec in _RECORDS}


def register_model(
    name: str,
    *,
    module: str | Callable[..., Any],
    summary: str = "",
    norm: str = OWN,
    min_size: int = 1,
    text: bool = False,
    blocks: int = 0,
    options: Mapping[str, Any] | None = None,
    source: str | None = None,
) -> None:
    """Adds a model under a name, which then works wherever a model is named.

    Args:
      name: letters, digits, `_`, `-` and `.`.
      module: a flax module that maps inputs to features (see `own.model`), its class, a function
        that makes one, or `package.module:Name` of any of these, imported when the model is built.
      summary: a few words for `--list`.
      norm: the normalisation it has unless told otherwise, for a module with a field `norm`.
      min_size: the least side of an image it takes.
      text: whether it takes rows of word ids instead of images.
      blocks: how many residual blocks training can leave out, for a module with a field `survival`.
      options: what the class or function is given.
      source: the file that registers it, by default the caller's. A file may register a name again,
        as a notebook's cell does when it is run twice.
    """
    source = source or _caller()
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"model name '{name}': use letters, digits, '_', '-' and '.' only")
    if name in MODELS and MODELS[name].source != source:
        owner = MODELS[name].source or "the package"
        raise UserError(f"model '{name}' is already registered by {owner}: choose another name")
    MODELS[name] = ModelSpec(
        name=name,
        summary=summary,
        module=module,
        options=dict(options or {}),
        norm=norm,
        min_size=min_size,
        text=text,
        blocks=blocks,
        source=source,
    )


def _caller() -> str:
    """Returns the file that calls into this one; a notebook, which is none, is `__main__`."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return os.path.realpath(file) if file else frame.f_globals["__name__"]


def find(name: str) -> ModelSpec:
    """Returns the record of a model, or says which names there are."""
    if name not in MODELS:
        raise unknown("model", name, allowed=MODELS)
    return MODELS[name]


def fitting(shape: tuple[int, ...]) -> list[str]:
    """Lists the models that take inputs of this shape."""
    return [name for name, spec in MODELS.items() if spec.takes(shape)]


def check(model: str | ModelSpec, shape: tuple[int, ...]) -> None:
    """Refuses a model that does not exist or does not take inputs of this shape."""
    spec = find(model) if isinstance(model, str) else model
    if not spec.takes(shape):
        takes = "text" if spec.text else f"images of at least {spec.min_size}x{spec.min_size}"
        given = "text" if len(shape) == 1 else f"images of {shape[0]}x{shape[1]}"
        others = ", ".join(fitting(shape)) or "others"
        raise UserError(f"model '{spec.name}' takes {takes}, not {given}: choose {others}")
