"""FedBlade's experiments."""

from fedjax_nc.config import Data, Evaluation, Federation, Local, RunConfig
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.methods.catalogue import Piece
from fedjax_nc.protocols.base import Protocol, Settings, augmentation, network

_HYPER = {
    "fedprox": {"mu": 0.01},
    "fedlc": {"tau": 10.0},
    "fedrcl": {"tau": 0.1, "beta": 0.7},
}


def fedblade(dataset: DatasetSpec, method: Piece, regime: str) -> Settings:
    """FedBlade, section 5.1: rounds of 5 epochs, Dir(0.1), MobileNetV2.

    The Dirichlet rule and whether the optimiser's state survives are not stated: `lda`, and a fresh
    optimiser each round. Of Tiny-ImageNet training sees crops of 32 pixels and tests all 64, and
    its mean and deviation are CINIC-10's, as appendix C writes.

    Rounds to several accuracies (tables 12-17) are columns of `compare`: --targets 0.4 0.5 on
    CIFAR-100, 0.2 0.3 on Tiny-ImageNet.

    Deviations: none is known; there is no public code.
    """
    del method
    full, tiny = regime == "full", dataset.name == "tiny_imagenet"
    config = RunConfig(
        model=network(dataset, "mobilenet_v2"),
        rounds=100 if full else 200,
        data=Data(
            alpha=0.1,
            rule="lda",
            client_test="matched",
            seed=-1,
            augment=("crop4to32", "flip") if tiny else augmentation(dataset),
            normalise="cinic10" if tiny else "dataset",
        ),
        local=Local(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=1e-5),
        federation=Federation(20 if full else 100, 20),
        evaluation=Evaluation(last=10),
    )
    return Settings(config, _HYPER)


PROTOCOL = Protocol(
    fedblade,
    ("cifar10", "cifar100", "tiny_imagenet"),
    regimes={
        "partial": "100 clients, 20 taking part, 200 rounds (tables 1-3, 8, 12-17)",
        "full": "20 clients, all taking part, 100 rounds (table 7)",
    },
    varied={
        "tables 1, 2 and 7; 0.5": "--protocol=fedblade --dataset=cifar100 --data.alpha=0.05",
        "table 8": "--protocol=fedblade --dataset=cifar100 --model=resnet18",
        "table 9; 10": "--protocol=fedblade --dataset=cifar100 --local.epochs=1",
    },
    seeds=(1024, 2025, 4096),
    repeats="three seeds",
)
