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
            "mlp", "two hidden layers, 200 and 128 units", "none", 641_618, 0.64, "by hand", 1
        ),
        ModelSpec("cnn", "FedDW's two 5x5 convolutions", "none", 139_714, 0.73, "by hand", 16),
        ModelSpec(
            "fedavg_cnn", "FedAvg's two 5x5 convolutions", "none", 878_538, 7.83, "PFLlib", 16
        ),
        ModelSpec(
            "vgg11", "VGG-11 of FedDr+, 512-512 dense layers", "none", 9_750_922, 153.29, "by hand"
        ),
        ModelSpec(
            "resnet8", "ResNet, one basic block a stage", "running", 75_290, 12.24, "by hand", 8, 3
        ),
        ModelSpec("resnet20", "ResNet-20", "running", 269_722, 40.55, "He et al., table 6", 8, 9),
        ModelSpec(
            "resnet20_b", "ResNet-20, projections", "running", 272_474, 40.81, "by hand", 8, 9
        ),
        ModelSpec("resnet32", "ResNet-32", "running", 464_154, 68.86, "He et al., table 6", 8, 15),
        ModelSpec("resnet56", "ResNet-56", "running", 853_018, 125.49, "He et al., table 6", 8, 27),
        ModelSpec(
            "resnet56_bottleneck",
            "ResNet-56 of FedAlign",
            "running",
            591_322,
            87.21,
            "FedAlign, table 5",
            8,
            18,
        ),
        ModelSpec(
            "wrn56_4",
            "ResNet-56 of FedETF, 4 times as wide",
            "running",
            13_628_234,
            2006.65,
            "by hand",
            8,
            27,
        ),
        ModelSpec(
            "resnet18",
            "ResNet-18, above 64 pixels ImageNet's stem",
            "running",
            11_173_962,
            555.42,
            "torchvision",
            8,
            8,
        ),
        ModelSpec(
            "mobilenet",
            "MobileNet, first stride 1",
            "running",
            3_217_226,
            46.35,
            "Howard et al., table 8",
        ),
        ModelSpec(
            "mobilenet_v2",
            "MobileNetV2, first strides 1",
            "running",
            2_236_682,
            87.98,
            "torchvision",
            8,
            10,
        ),
        ModelSpec(
            "efficientnet_b0",
            "EfficientNet-B0, first stride 1",
            "running",
            4_020_358,
            31.98,
            "torchvision",
            8,
            9,
        ),
        ModelSpec(
            "densenet121", "DenseNet-121, 3x3 stem", "running", 6_956_298, 888.35, "torchvision"
        ),
        ModelSpec(
            "shufflenet",
            "ShuffleNet of FedDW, two groups",
            "running",
            887_582,
            39.61,
            "pytorch-cifar100",
        ),
        ModelSpec(
            "bilstm",
            "FedDW's embedding and bidirectional LSTM",
            "none",
            1_593_090,
            59.0,
            "by hand",
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
        raise unknown("model", name, MODELS)
    spec = MODELS[name]
    if not spec.takes(shape):
        takes = "text" if spec.text else f"images of at least {spec.min_size}x{spec.min_size}"
        given = "text" if len(shape) == 1 else f"images of {shape[0]}x{shape[1]}"
        others = ", ".join(fitting(shape))
        raise UserError(f"model '{name}' takes {takes}, not {given}: choose {others or 'others'}")
