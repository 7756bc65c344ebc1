"""Facts about the models, readable without importing flax."""

from typing import NamedTuple


class ModelSpec(NamedTuple):
    """What a model is, and the smallest image it takes."""

    name: str
    summary: str
    norm: str  # the normalisation it has unless told otherwise
    min_size: int = 8
    blocks: int = 0  # that can be left out in training
    counted: str = ""  # where its number of parameters is published, or how it was found

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether inputs of this shape fit."""
        return len(shape) == 3 and min(shape[:2]) >= self.min_size


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec("mlp", "two hidden layers, 200 and 128 units", "none", 1, counted="by hand"),
        ModelSpec("cnn", "FedDW's two 5x5 convolutions", "none", 16, counted="by hand"),
        ModelSpec(
            "fedavg_cnn", "FedAvg's two 5x5 convolutions", "none", 16, counted="PFLlib, FL-bench"
        ),
        ModelSpec("vgg11", "VGG-11 with 512-512 dense layers", "none", counted="by hand"),
        ModelSpec("resnet8", "ResNet-8, 16-32-64 channels", "running", blocks=3, counted="by hand"),
        ModelSpec(
            "resnet20", "ResNet-20", "running", blocks=9, counted="He et al. 2016, table 6"
        ),
        ModelSpec(
            "resnet20_b", "ResNet-20, projection shortcuts", "running", blocks=9, counted="by hand"
        ),
        ModelSpec(
            "resnet32", "ResNet-32", "running", blocks=15, counted="He et al. 2016, table 6"
        ),
        ModelSpec(
            "resnet56", "ResNet-56", "running", blocks=27, counted="He et al. 2016, table 6"
        ),
        ModelSpec(
            "resnet56_bottleneck",
            "FedAlign's ResNet-56, bottleneck blocks",
            "running",
            blocks=18,
            counted="FedAlign, table 5",
        ),
        ModelSpec(
            "wrn56_4", "FedETF's ResNet-56, four times as wide", "running", blocks=27,
            counted="by hand"),
        ModelSpec("resnet18", "ResNet-18; above 64 pixels with ImageNet's stem", "running", blocks=8, counted="torchvision"),
        ModelSpec("mobilenet", "MobileNet, first stride 1", "running", counted="Howard et al."),
        ModelSpec("mobilenet_v2", "MobileNetV2, first strides 1", "running", blocks=10, counted="torchvision"),
        ModelSpec("efficientnet_b0", "EfficientNet-B0, first stride 1", "running", blocks=9, counted="torchvision"),
        ModelSpec("densenet121", "DenseNet-121, 3x3 stem", "running", counted="torchvision"),
        ModelSpec("shufflenet", "FedDW's ShuffleNet, two groups", "running", counted="by hand"),
    )
}


def fitting(shape: tuple[int, ...]) -> list[str]:
    """Models that take inputs of this shape."""
    return [name for name, spec in MODELS.items() if spec.takes(shape)]
