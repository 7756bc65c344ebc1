"""FedAlign's experiments."""

from fedjax_nc.config import Data, Federation, Local, RunConfig
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.methods.catalogue import Piece
from fedjax_nc.protocols.base import Protocol, Settings, augmentation, network


def fedalign(dataset: DatasetSpec, method: Piece, regime: str) -> Settings:
    """FedAlign, section 3.2: 16 clients, Dir(0.5), 25 rounds of 20 epochs.

    From the code: batch 64, Nesterov momentum 0.9, weight decay 0.0001, incomplete batches
    dropped, weight = number of full batches.

    Forward work and stored parameters (tables 5, 7, 8) are those of --dry-run and of --stop_at,
    but for these. On ImageNet-200 what table 7 calls GFLOPs are tenths: a ResNet-18 has 1.81 G
    multiply-adds, printed as 18.1. Its 11.22 M parameters are those of 100 classes, 11.167 M of
    convolutions and 0.051 M of the head; 200 classes make 11.27 M. FedProx's 22.42 M is not quite
    twice that, 22.44 M, and MOON's 19.96 M is less than two networks, where its three with their
    projectors have 34.84 M here. FedAlign's 19.3 is 18.14 (1 + 0.25^2), as if the whole network ran
    again at a quarter's width; its last stage alone makes 18.4. StochDepth's 17.3 and 82.4 leave
    out blocks that are computed here. GradAug's 25.3 and 34.4 are 18.14 (1 + 0.64 s) and
    18.14 (1 + 1.45 s), with 0.8^2, 0.8^2 + 0.9^2 and s = (704 / 896)^2 for widths and mean side;
    table 5's are on its page.

    Deviations: every test image is used, the code drops the last incomplete batch; momentum does
    not leak between clients as it does in the code; ImageNet-200 has no colour jitter; MOON's
    global and previous models normalise by their running statistics, in the code by the batch,
    since nobody takes them out of training mode (its projector ends with 256 outputs, as here).
    """
    del method
    rounds, federation = 25, Federation(16, 16, weights="batches")
    if regime == "sampled":
        photographs = dataset.kind == "photographs"
        rounds, clients, drawn = (50, 32, 4) if photographs else (100, 64, 16)
        federation = Federation(clients, drawn, weights="batches")
    config = RunConfig(
        model=network(dataset, "resnet56_bottleneck"),
        rounds=rounds,
        data=Data(
            alpha=0.5, rule="lda", client_test="matched", seed=-1, augment=augmentation(dataset)
        ),
        local=Local(
            epochs=20,
            batch_size=64,
            drop_last=True,
            lr=0.01,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-4,
        ),
        federation=federation,
    )
    return Settings(config, {"fedprox": {"mu": 0.0001}})


PROTOCOL = Protocol(
    fedalign,
    ("cifar10", "cifar100", "imagenet200"),
    regimes={
        "full": "16 clients, all taking part, 25 rounds (tables 1-7)",
        "sampled": "64 clients, 16 taking part, 100 rounds; ImageNet-200: 32, 4, 50 (tables 4, 7)",
    },
    varied={
        "table 2; 2.5": "--protocol=fedalign --dataset=cifar100 --data.alpha=0.1",
        "table 2, homogeneous": "--protocol=fedalign --dataset=cifar100 --data.partition=iid",
        "table 3; 30": "--protocol=fedalign --dataset=cifar100 --local.epochs=10",
        "table 4; 64": (
            "--protocol=fedalign --dataset=cifar100 --federation.clients=32 "
            "--federation.participants=32"
        ),
        "table 4, sampled": "--protocol=fedalign/sampled --dataset=cifar100 --rounds=25",
        "table 8": "--protocol=fedalign --dataset=cifar100 --rounds=100 --stop_at=0.6",
        "table 10; 0.55": ("--protocol=fedalign --dataset=cifar100 --method=fedalign --hp.mu=0.35"),
        "table 10; 0.4": (
            "--protocol=fedalign --dataset=cifar100 --method=fedalign --hp.width=0.1"
        ),
    },
)
