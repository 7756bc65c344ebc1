"""What every protocol gives to every dataset, as it was before datasets had records."""

import json
from pathlib import Path

import pytest

from fedjax_nc import config, protocols
from fedjax_nc.data.spec import DatasetSpec

GOLDEN = json.loads((Path(__file__).parent / "golden" / "protocols.json").read_text())


def settings(protocol, dataset, method="fedavg"):
    """The settings that depend on the dataset, flat."""
    made = config.to_dict(protocols.resolve(protocol, dataset, method))
    nested = {f"{k}.{name}": v[name] for k, v in made.items() if isinstance(v, dict) for name in v}
    return {k: v for k, v in (made | nested).items() if not isinstance(v, dict)}


@pytest.mark.parametrize("pair", GOLDEN)
def test_settings_of_a_dataset(pair):
    made = settings(*pair.split())
    assert {name: made[name] for name in GOLDEN[pair]} == GOLDEN[pair]


OWN = {
    "digits": ((28, 28, 1), ("cnn", "cnn", "cnn")),
    "images": ((32, 32, 3), ("cnn", "resnet20", "mobilenet")),
    "photographs": ((224, 224, 3), ("resnet18",) * 3),
    "text": ((50,), ("bilstm",) * 3),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_dataset_of_ones_own(kind):
    """A record that no paper names gets what its kind asks for."""
    shape, networks = OWN[kind]
    spec = DatasetSpec(name="mine", classes=7, shape=shape, train=70, test=7, kind=kind)
    for protocol, network in zip(("quick", "fedetf", "feddr_plus"), networks, strict=True):
        made = protocols.resolve(protocol, spec, "fedavg")
        assert (made.dataset, made.model) == ("mine", network)
    crop = {"photographs": ("rrc", "flip"), "text": ()}.get(kind, ("crop4", "flip"))
    assert protocols.resolve("fedalign", spec, "fedavg").data.augment == crop
    assert made.data.per_client == 2  # FedDr+'s of few classes
