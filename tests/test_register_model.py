"""Settings of networks from outside, and networks registered under a name."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from brought import CLASSES, SHAPE, Net, draw
from rich.console import Console

from fedjax_nc import models
from fedjax_nc.cli import listing
from fedjax_nc.errors import UserError
from fedjax_nc.models import bodies, catalogue, own
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.types import HeadSpec


def flat(x):
    return x.reshape(len(x), -1)


def build(module, shape=SHAPE, **options):
    return models.build(module, shape, CLASSES, options.pop("head", HeadSpec()), **options)


KEY = jax.random.key(0)

# ---- settings --------------------------------------------------------------------------------


class Configured(nn.Module):
    """Fields of the configuration's names; the second holds no word, so it is left alone."""

    norm: str = "batch"
    conv: Any = nn.Conv

    @nn.compact
    def __call__(self, x, train):
        return flat(Norm(self.norm)(self.conv(3, (3, 3))(x), train=train))


@pytest.mark.parametrize("norm, kept", [("default", False), ("running", True), ("none", False)])
def test_norm_is_set(norm, kept):
    weights = build(Configured(), norm=norm).init(KEY)
    assert bool(weights.stats) == kept
    assert ("Norm_0" in weights.params["body"]) == (norm != "none")


def test_norm_that_cannot_be_set():
    with pytest.raises(UserError, match="'Net' has a normalisation of its own, so norm=group has"):
        build(Net(), norm="group")


def test_survival_needs_blocks():
    with pytest.raises(UserError, match="'Net' has no residual blocks to leave out: choose resn"):
        build(Net(), (16, 16, 3), survival=lambda n: (0.5,) * n)


def test_the_packages_networks_are_used_as_they_are():
    net = ResNet((1, 1), channels=(8, 16), conv="native")
    spec = own.model(net, name="resnet6")
    assert spec.norm == "running" and bodies.make_body(spec) == net
    assert build(spec, (8, 8, 3)).channels == (8, 16)


def test_words_are_set(monkeypatch):
    class Words(nn.Module):
        words: int = 1

        @nn.compact
        def __call__(self, x):
            return nn.Embed(self.words, 5)(x).mean(1)

    model = build(own.model(Words(), text=True), (7,), words=30)
    assert model.init(KEY).params["body"]["Embed_0"]["embedding"].shape == (30, 5)


# ---- registered under a name -----------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch):
    """Names that are gone after the test."""
    monkeypatch.setattr(catalogue, "MODELS", dict(catalogue.MODELS))
    return catalogue.MODELS


def make_net(width):
    return Net(width=width, rate=0.0)


@pytest.mark.parametrize(
    "module, options, width",
    [
        (Net(width=3), {}, 3),
        (Net(), {"width": 5}, 5),
        (Net, {"width": 5}, 5),
        (make_net, {"width": 6}, 6),
        (lambda: Net(width=2), {}, 2),
        (f"{__name__}:Net", {"width": 5}, 5),
        (f"{__name__}:make_net", {"width": 5}, 5),
        (f"{__name__}:NETS.none", {}, None),
        (f"{__name__}:Nets", {}, None),
        ("no_such_package:Net", {}, None),
        ("Net", {}, None),
    ],
)
def test_registered(registered, module, options, width):
    catalogue.register_model("my-net", module=module, options=options, min_size=4)
    if width is None:
        with pytest.raises(UserError, match=r"model 'my-net': cannot import .*: write package"):
            build("my-net")
        return
    assert build("my-net").init(KEY).params["body"]["Conv_0"]["kernel"].shape[-1] == width
    assert "my-net" in catalogue.fitting((4, 4, 1)) and "my-net" not in catalogue.fitting((3, 3, 1))
    with pytest.raises(UserError, match="did you mean 'my-net'"):
        build("my-nets")


def test_registered_is_no_module(registered):
    catalogue.register_model("mine", module=dict)
    with pytest.raises(UserError, match="model 'mine': <class 'dict'> gives a dict, wanted a flax"):
        build("mine")


def test_names_are_taken_once(registered):
    catalogue.register_model("mine", module=Net(), summary="first")
    catalogue.register_model("mine", module=Net(), summary="again")  # a cell that is run twice
    assert registered["mine"].summary == "again"
    with pytest.raises(
        UserError, match=r"'mine' is already registered by .*test_register_model\.py: ch"
    ):
        catalogue.register_model("mine", module=Net(), source="another.py")
    with pytest.raises(UserError, match="'resnet8' is already registered by the package: choose"):
        catalogue.register_model("resnet8", module=Net())
    with pytest.raises(UserError, match="model name 'a b': use letters, digits"):
        catalogue.register_model("a b", module=Net())


def test_registered_with_norm_and_survival(registered):
    make = partial(ResNet, channels=(8, 16), conv="native")
    catalogue.register_model(
        "short", module=make, options={"blocks": (1, 1)}, norm="group", blocks=2
    )
    model = build("short", (8, 8, 3), survival=lambda n: (0.5,) * n)
    assert not model.init(KEY).stats  # GroupNorm has none
    x = draw(1, 2, 8, 8, 3)
    draws = [
        model.apply(model.init(KEY), x, train=True, key=jax.random.key(k))[0].features
        for k in range(8)
    ]
    assert any(np.any(draws[0] != other) for other in draws[1:])
    catalogue.register_model("stiff", module=Net(), blocks=2)
    with pytest.raises(UserError, match="'stiff' cannot leave out blocks: give its module a field"):
        build("stiff", survival=lambda n: (0.5,) * n)


def test_listed_without_a_size(registered, monkeypatch, capsys):
    catalogue.register_model("mine", module=Net(), summary="a small network")
    monkeypatch.setattr(listing, "MODELS", registered)
    Console(width=120).print(listing._models())
    line = next(x for x in capsys.readouterr().out.splitlines() if "│ mine " in x)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "mine",
        "a small network; norm own; from 1x1 pixels",
        "-",
        "-",
    ]
