"""FedDW's tables I-IV, and its figures 6 and 7."""

from fedjax_nc.protocols.feddw import PERSONAL
from fedjax_nc.recipes.base import Measure, Paper, Table, Value, grid, settings_of

NAME = "feddw"
_SHARED = ("fedavg", "moon", "fedbabu", "feduv", "fedprox", "feddistill")
_ALL = (
    *("fedavg", "moon", "fedbabu", "feduv", "fedprox", "fedrep"),
    *("fedproto", "fedala", "per_fedavg", "fedper", "local", "feddw"),
)
_CIFAR = [value for value in settings_of(NAME, "T1") if value.dataset.startswith("cifar")]
_HARD = [v for v in _CIFAR if (v.dataset, v.partition_param) == ("cifar100", "0.1")]
_EASY = [value for value in _CIFAR if value.partition_param == "0.5"]
_FIXED = ("fedbabu +dw",)
_MUS = ("0.01", "0.1", "1", "10", "100")
_ROUNDS = {"50": 10, "10": 10, "25": 5, "125": 25}


def regime(value: Value) -> str:
    """Returns the protocol's regime."""
    return "pathological" if value.partition_param == "0.1" else "practical"


def measure(value: Value) -> Measure | str:
    """Returns the number of a run that the paper prints.

    Of methods without a global model it is the mean over clients' models, on the same test set.
    """
    if value.row in _FIXED:
        return "DW moves the class vectors, which FedBABU keeps fixed"
    if value.metric == "seconds_per_epoch":
        return Measure("seconds_per_round", scale=1.0, unit="s", high=False, digits=2)
    own = value.word in PERSONAL
    return Measure("personal_global_accuracy" if own else "global_accuracy")


def pocket(value: Value) -> dict[str, object]:
    """Returns a fifth of the rounds."""
    wanted: dict[str, object] = {"rounds": _ROUNDS[value.rounds]}
    return wanted | ({} if value.local_epochs else {"local.epochs": 5})


PAPER = Paper(
    name=NAME,
    seeds=(0, 1, 2, 3, 4),
    reports="the last round; the paper does not say which",
    datasets={
        "mnist": "mnist",
        "cifar10": "cifar10",
        "cifar100": "cifar100",
        "imdb": "imdb_reviews",
    },
    models={
        "resnet18": "resnet18",
        "shufflenet": "shufflenet",
        "mobilenet": "mobilenet_v2_half",
    },
    specs={f"{name} +dw": f"{name} | dw" for name in _SHARED}
    | {f"feddw mu={mu}": f"feddw(mu={mu})" for mu in _MUS},
    regime=regime,
    measure=measure,
    pocket=pocket,
    quirks=(
        "five runs, whose seeds are not stated",
        "10 clients are stated for CIFAR-10, practical, only",
        "the rows of FedALA, FedPer, FedProto, FedRep and Local are means over clients' models",
    ),
    tables=(
        Table(
            "T1",
            "Table I: accuracy of twelve methods",
            quirks=(
                "Per-FedAvg, pathological, is blank on CIFAR-10 and CIFAR-100 (crashed)",
                "the smallest decline on CIFAR-100, writes the paper (13.32): FedProto's is 6.67",
            ),
        ),
        Table(
            "T2",
            "Table II: more clients, other rounds, other networks",
            quirks=(
                "FedUV with 100 clients is blank",
                "spreads differ from table I for the same cells of FedProx, FedRep, FedALA, Local",
                "Local with 50 and 100 clients is identical; ShuffleNet's second is FedUV (51.97)",
            ),
        ),
        Table(
            "T3",
            "Table III: time of a local epoch, CIFAR-100, pathological",
            values=grid("T3", (*_SHARED, "feddw"), like=_HARD, metric="seconds_per_epoch"),
            quirks=(
                "the table is a picture: which seven methods is not in the text",
                "seconds here are of a round with its tests, on this machine",
            ),
            seeds=(0,),
        ),
        Table(
            "T4",
            "Table IV: methods with and without DW, CIFAR-100, pathological",
            values=grid(
                "T4",
                [(name, variant) for name in _SHARED for variant in ("", "+dw")],
                like=_HARD,
            ),
            quirks=("the table is a picture: which methods is not in the text",),
        ),
        Table(
            "F6",
            "Figure 6: mu of FedDW",
            values=grid("F6", [("feddw", f"mu={mu}") for mu in _MUS], like=_EASY),
        ),
        Table(
            "F7",
            "Figure 7: accuracy over rounds",
            values=grid("F7", _ALL, like=_CIFAR),
            quirks=("the legend is not in the text: the methods of table I",),
        ),
    ),
)
