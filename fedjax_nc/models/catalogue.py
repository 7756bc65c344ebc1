"""Facts about the models, readable without importing flax."""

from typing import NamedTuple


class ModelSpec(NamedTuple):
    """What a model is, and the smallest image it takes."""

    name: str
    summary: str
    norm: str  # the normalisation it has unless told otherwise
    min_size: int = 1
    blocks: int = 0  # residual ones


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec("mlp", "two hidden layers, 200 and 128 units", "none"),
        ModelSpec("cnn", "FedDW's two 5x5 convolutions, 128 features", "none", 16),
        ModelSpec("fedavg_cnn", "FedAvg's two 5x5 convolutions, 512 features", "none", 16),
        ModelSpec(
            "resnet8", "ResNet, basic blocks, 16-32-64 channels, 64 features", "running", 8, 3
        ),
        ModelSpec("resnet20", "ResNet-20 of He et al. 2016, 64 features", "running", 8, 9),
        ModelSpec("resnet20_b", "ResNet-20 with projection shortcuts", "running", 8, 9),
    )
}
