"""Facts about the models, readable without importing flax."""

from typing import NamedTuple

from fedjax_nc.errors import UserError, unknown


class ModelSpec(NamedTuple):
    """What a model is, how large, and the smallest image it takes.

    Sizes are for 32x32 colour images and ten classes, or for reviews as FedDW has them; tests count
    them again. MFLOPs are millions of multiply-adds of a forward pass, each counted once as in the
    papers' tables.
    """

    name: str
    summary: str
    norm: str  # the normalisation it has unless told otherwise
    parameters: int
    mflops: float
    counted: str  # who publishes the number of parameters, for these or other classes
    min_size: int = 8
    blocks: int = 0  # residual ones, which training can leave out
    text: bool = False  # takes rows of word ids, not images

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether inputs of this shape fit."""
        return len(shape) == 1 if self.text else len(shape) == 3 and min(shape[:2]) >= self.min_size


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "mlp",
            "two hidden layers, 200 and 128 units",
            norm="none",
            parameters=641_618,
            mflops=0.64,
            counted="by hand",
            min_size=1,
        ),
        ModelSpec(
            "cnn",
            "FedDW's two 5x5 convolutions",
            norm="none",
            parameters=139_714,
            mflops=0.73,
            counted="by hand",
            min_size=16,
        ),
        ModelSpec(
            "fedavg_cnn",
            "FedAvg's two 5x5 convolutions",
            norm="none",
            parameters=878_538,
            mflops=7.83,
            counted="PFLlib",
            min_size=16,
        ),
        ModelSpec(
            "vgg11",
            "VGG-11 of FedDr+, 512-512 dense layers",
            norm="none",
            parameters=9_750_922,
            mflops=153.29,
            counted="by hand",
        ),
        ModelSpec(
            "resnet8",
            "ResNet, one basic block a stage",
            norm="running",
            parameters=75_290,
            mflops=12.24,
            counted="by hand",
            min_size=8,
            blocks=3,
        ),
        ModelSpec(
            "resnet20",
            "ResNet-20",
            norm="running",
            parameters=269_722,
            mflops=40.55,
            counted="He et al., table 6",
            min_size=8,
            blocks=9,
        ),
        ModelSpec(
            "resnet20_b",
            "ResNet-20, projections",
            norm="running",
            parameters=272_474,
            mflops=40.81,
            counted="by hand",
            min_size=8,
            blocks=9,
        ),
        ModelSpec(
            "resnet32",
            "ResNet-32",
            norm="running",
            parameters=464_154,
            mflops=68.86,
            counted="He et al., table 6",
            min_size=8,
            blocks=15,
        ),
        ModelSpec(
            "resnet56",
            "ResNet-56",
            norm="running",
            parameters=853_018,
            mflops=125.49,
            counted="He et al., table 6",
            min_size=8,
            blocks=27,
        ),
        ModelSpec(
            "resnet56_bottleneck",
            "ResNet-56 of FedAlign",
            norm="running",
            parameters=591_322,
            mflops=87.21,
            counted="FedAlign, table 5",
            min_size=8,
            blocks=18,
        ),
        ModelSpec(
            "wrn56_4",
            "ResNet-56 of FedETF, 4 times as wide",
            norm="running",
            parameters=13_628_234,
            mflops=2006.65,
            counted="by hand",
            min_size=8,
            blocks=27,
        ),
        ModelSpec(
            "resnet18",
            "ResNet-18, above 64 pixels ImageNet's stem",
            norm="running",
            parameters=11_173_962,
            mflops=555.42,
            counted="torchvision",
            min_size=8,
            blocks=8,
        ),
        ModelSpec(
            "mobilenet",
            "MobileNet, first stride 1",
            norm="running",
            parameters=3_217_226,
            mflops=46.35,
            counted="Howard et al., table 8",
        ),
        ModelSpec(
            "mobilenet_v2",
            "MobileNetV2, first strides 1",
            norm="running",
            parameters=2_236_682,
            mflops=87.98,
            counted="torchvision",
            min_size=8,
            blocks=10,
        ),
        ModelSpec(
            "efficientnet_b0",
            "EfficientNet-B0, first stride 1",
            norm="running",
            parameters=4_020_358,
            mflops=31.98,
            counted="torchvision",
            min_size=8,
            blocks=9,
        ),
        ModelSpec(
            "densenet121",
            "DenseNet-121, 3x3 stem",
            norm="running",
            parameters=6_956_298,
            mflops=888.35,
            counted="torchvision",
        ),
        ModelSpec(
            "shufflenet",
            "ShuffleNet of FedDW, two groups",
            norm="running",
            parameters=887_582,
            mflops=39.61,
            counted="pytorch-cifar100",
        ),
        ModelSpec(
            "bilstm",
            "FedDW's embedding and bidirectional LSTM",
            norm="none",
            parameters=1_593_090,
            mflops=59.0,
            counted="by hand",
            text=True,
        ),
    )
}


def fitting(shape: tuple[int, ...]) -> list[str]:
    """Models that take inputs of this shape."""
    return [name for name, spec in MODELS.items() if spec.takes(shape)]


def check(name: str, shape: tuple[int, ...]) -> None:
    """Refuse a model that does not exist or does not take such inputs."""
    if name not in MODELS:
        raise unknown("model", name, allowed=MODELS)
    spec = MODELS[name]
    if not spec.takes(shape):
        takes = "text" if spec.text else f"images of at least {spec.min_size}x{spec.min_size}"
        given = "text" if len(shape) == 1 else f"images of {shape[0]}x{shape[1]}"
        others = ", ".join(fitting(shape))
        raise UserError(f"model '{name}' takes {takes}, not {given}: choose {others or 'others'}")
