"""The default protocol, which is nobody's: a minute on a laptop."""

from fedjax_nc.config import Data, Evaluation, Federation, Local, RunConfig
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.methods.catalogue import Piece
from fedjax_nc.protocols.base import Protocol, Settings, network


def quick(dataset: DatasetSpec, method: Piece, regime: str) -> Settings:
    """A minute on a laptop: 20 clients with two classes each, 5 taking part, small network.

    Not from a paper, and no evidence about methods: it was chosen, on seed 0, so that FedAvg is
    visibly behind FedETF after 30 rounds (docs/decisions/008-the-quick-protocol.md).
    Learning rates are per loss and not tuned: cosine losses need larger ones, as in FedDr+'s
    tables 8-10.
    Gradients are clipped at norm 10, without which SCAFFOLD diverges on clients of unequal size.
    Fine-tuning is left out for time: --evaluation.finetune adds it.
    """
    del regime
    lr = {
        "fedetf": 0.05,
        "fedblade": 0.05,
        "dot_regression": 0.2,
        "feddr_plus": 0.2,
        "spherefed": 0.5,
        "fednh": 0.05,
    }.get(method.entry.name, 0.02)
    config = RunConfig(
        model=network(dataset, "cnn"),
        rounds=30,
        data=Data(partition="classes", per_client=2, client_test="matched"),
        local=Local(epochs=3, batch_size=50, lr=lr, momentum=0.9, weight_decay=1e-4, clip=10.0),
        federation=Federation(20, 5),
        evaluation=Evaluation(last=3, finetune=False),
    )
    return Settings(config, {})


PROTOCOL = Protocol(quick, ("mnist5k", "digits"), repeats="any number of seeds")
