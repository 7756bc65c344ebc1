"""Facts about the models, readable without importing flax."""

from typing import NamedTuple

from fedjax_nc.errors import UserError, unknown


class ModelSpec(NamedTuple):
    """What a model is, and the smallest image it takes."""

    name: str
    summary: str
    norm: str  # the normalisation it has unless told otherwise
    min_size: int = 1
    blocks: int = 0  # residual ones
    text: bool = False  # takes rows of word ids, not images

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether it takes inputs of this shape."""
        return len(shape) == 1 if self.text else len(shape) == 3 and min(shape[:2]) >= self.min_size


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
        ModelSpec("bilstm", "FedDW's embedding and bidirectional LSTM, 128 features", "none",
                  text=True),
    )
}  # fmt: skip


def check(name: str, shape: tuple[int, ...]) -> None:
    """Refuse a model that does not exist or does not take such inputs."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    spec = MODELS[name]
    if not spec.fits(shape):
        takes = "text" if spec.text else f"images of at least {spec.min_size}x{spec.min_size}"
        given = "text" if len(shape) == 1 else f"images of {shape[0]}x{shape[1]}"
        others = ", ".join(m.name for m in MODELS.values() if m.fits(shape))
        raise UserError(f"model '{name}' takes {takes}, not {given}: choose {others or 'others'}")
