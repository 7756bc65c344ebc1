"""The project's networks in PyTorch: the same layers and parameter counts."""

# pyright: reportMissingImports=false

import torch.nn.functional as F
from torch import nn


def make(name: str, norm: str = "default", pool_first: bool = False) -> nn.Module:
    """The network for 32x32x3 images and 10 classes; `norm` is `group`, or BatchNorm."""
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(3072, 200),
            nn.ReLU(),
            nn.Linear(200, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
    if name == "cnn":  # FedDW's: the feature layer is linear
        return nn.Sequential(
            *_two_convolutions(6, 16, pool_first=pool_first),
            nn.Linear(400, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.Linear(128, 10),
        )
    if name == "fedavg_cnn":
        return nn.Sequential(
            *_two_convolutions(32, 64, pool_first=pool_first),
            nn.Linear(1600, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
    return ResNet20(norm, projection=name == "resnet20_b")


def _two_convolutions(first: int, second: int, pool_first: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, first), (first, second)):
        after: list[nn.Module] = [nn.ReLU(), nn.MaxPool2d(2)]
        # pooling before ReLU gives the same numbers with a quarter of the ReLUs
        layers += [nn.Conv2d(inputs, outputs, 5), *(after[::-1] if pool_first else after)]
    return [*layers, nn.Flatten()]


def _normalise(norm: str, channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels) if norm == "group" else nn.BatchNorm2d(channels)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, option A or B of the ResNet paper."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, projection: bool) -> None:
        """Build the layers."""
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _normalise(norm, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            _normalise(norm, outputs),
        )
        self.shortcut = None
        if projection and inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, _normalise(norm, outputs))

    def forward(self, x):
        """One residual block."""
        y = self.body(x)
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.extra:
            half = self.extra // 2
            x = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.extra - half)
            )
        return F.relu(x + y, inplace=True)


class ResNet20(nn.Module):
    """Three stages of three blocks, 16-32-64 channels."""

    def __init__(self, norm: str, projection: bool) -> None:
        """Build the layers."""
        super().__init__()
        layers = [
            nn.Conv2d(3, 16, 3, 1, 1, bias=False),
            _normalise(norm, 16),
            nn.ReLU(inplace=True),
        ]
        inputs = 16
        for channels in (16, 32, 64):
            for i in range(3):
                stride = 2 if channels > 16 and i == 0 else 1
                layers.append(Block(inputs, channels, stride, norm, projection))
                inputs = channels
        self.body, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, x):
        """Logits of a batch."""
        return self.head(self.body(x).mean((2, 3)))
