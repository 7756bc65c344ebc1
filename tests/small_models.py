"""The image models with few and narrow layers: every kind of block, quick to compile."""

from functools import partial

import pytest

from fedjax_nc.models import densenet, inverted, mobilenet, resnet, shufflenet, vgg
from fedjax_nc.models.base import from_body
from fedjax_nc.models.inverted import Row
from fedjax_nc.types import HeadSpec

SHAPE, CLASSES = (8, 8, 3), 3
V2 = inverted.MOBILENET_V2._replace(rows=(Row(1, 16, 1, 1), Row(2, 16, 2, 2), Row(2, 24, 2, 1)))
B0 = inverted.EFFICIENTNET_B0._replace(rows=(Row(1, 16, 1, 1), Row(2, 16, 3, 2, 5)))
RESIDUAL = {
    "basic": partial(resnet.ResNet, (1, 2), channels=(16, 32)),
    "looped": partial(resnet.ResNet, (6, 1), channels=(16, 32), projection=True),
    "bottleneck": partial(resnet.ResNet, (1, 6), channels=(16, 32), bottleneck=True),
    "large": partial(resnet.ResNet, (1, 1), channels=(16, 32), projection=True, large_above=4),
    "mobilenet_v2": partial(inverted.InvertedResiduals, V2),
    "efficientnet_b0": partial(inverted.InvertedResiduals, B0),
}
BLOCKS = {
    "basic": 3,
    "looped": 7,
    "bottleneck": 7,
    "large": 2,
    "mobilenet_v2": 2,
    "efficientnet_b0": 2,
}
BODIES = RESIDUAL | {
    "vgg11": vgg.VGG11,
    "mobilenet": mobilenet.MobileNet,
    "densenet121": densenet.DenseNet121,
    "shufflenet": shufflenet.ShuffleNet,
}


@pytest.fixture(autouse=True)
def few_layers(monkeypatch):
    """Networks whose layers are constants of their file get fewer."""
    monkeypatch.setattr(vgg, "STAGES", ((8,), (16, 16)))
    monkeypatch.setattr(mobilenet, "STAGES", ((12,), (16, 16)))
    monkeypatch.setattr(densenet, "LAYERS", (2, 1))
    monkeypatch.setattr(densenet, "GROWTH", 8)
    monkeypatch.setattr(shufflenet, "STAGES", ((40, 2), (80, 1)))


def small(name, *, norm="running", conv="native", **options):
    return from_body(BODIES[name](norm=norm, conv=conv, **options), SHAPE, CLASSES, HeadSpec())
