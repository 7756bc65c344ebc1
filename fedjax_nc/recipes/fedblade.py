"""FedBlade's tables 1-5 and 7-17, and its figures 3 and 6-9."""

from fedjax_nc.recipes.base import Measure, Paper, Table, Value, grid, settings_of

NAME = "fedblade"
_ALL = (
    *("fedavg", "fedprox", "fedlc", "feddecorr", "fedrcl"),
    *("fedproto", "fedfm", "fedetf", "fedblade"),
)
_CURVES = [value for value in settings_of(NAME, "T1") if value.dataset != "cifar10"]
_SWEPT = {  # figures 6-8: appendix D
    "F6": ("beta", ("0.001", "0.005", "0.01", "0.05")),
    "F7": ("gamma", ("0.1", "1.0", "2.0", "5.0")),
    "F8": ("tau", ("0.01", "0.05", "0.1", "0.5")),
}
_SPEEDS = {
    "T12": "CIFAR-100, Dir(0.05)",
    "T13": "CIFAR-100, Dir(0.1)",
    "T14": "CIFAR-100, Dir(0.5)",
    "T15": "Tiny-ImageNet, Dir(0.05)",
    "T16": "Tiny-ImageNet, Dir(0.1)",
    "T17": "Tiny-ImageNet, Dir(0.5)",
}
_PRINTED = {
    "T12": ("FedFM to 40 % is printed as 1.0x, 85/122 is 0.7",),
    "T15": ("FedProto to 30 % is printed as 0.9x, 0.83 is right",),
    "T16": ("FedETF to 30 % is printed as 0.9x, 104/92 is 1.1",),
    "T17": ("FedBlade is slower than four baselines to 20 %",),
}


def regime(value: Value) -> str:
    """Returns the protocol's regime."""
    return "full" if value.num_clients == "20" else "partial"


def measure(value: Value) -> Measure | str:
    """Returns the number of a run that the paper prints."""
    if value.metric == "global_acc":
        return Measure("global_accuracy")
    if value.metric.startswith("rounds_to_"):
        target = int(value.metric.rpartition("_")[2]) / 100
        return Measure("rounds_to", scale=1.0, unit="", high=False, digits=0, target=target)
    if value.metric.startswith("speedup"):
        return "FedAvg's rounds over the method's, which are the column beside it"
    return {
        "ms_per_iter": "time of one term of the loss: `benchmarks/method_cost.py --terms` has it",
        "proto_comm_kb": "counted without training: `run --dry-run` shows a client's bytes",
        "nc1": "an analysis of a finished run: `analyse --only=collapse`; network and rounds are "
        "not stated",
        "nc2": "an analysis of a finished run: `analyse --only=collapse`; network and rounds are "
        "not stated",
    }[value.metric]


def pocket(value: Value) -> dict[str, object]:
    """Returns 50 of 200 rounds, or 10 of 100 where everybody takes part."""
    return {"rounds": 10 if regime(value) == "full" else 50}


PAPER = Paper(
    name=NAME,
    seeds=(1024, 2025, 4096),
    reports="the mean of the last 10 rounds",
    datasets={"cifar10": "cifar10", "cifar100": "cifar100", "tinyimagenet": "tiny_imagenet"},
    models={"mobilenetv2": "mobilenet_v2", "resnet18": "resnet18"},
    specs={
        "fedblade lddecorr_only": "fedblade(feature_alignment=False, projector_alignment=False)",
        "fedblade pba_only": "fedblade(decorr='none')",
        "fedblade w/o fa": "fedblade(feature_alignment=False)",
        "fedblade w/o df": "fedblade(distribution_factor=False)",
        "fedblade w/o pa": "fedblade(projector_alignment=False)",
        "fedblade feddecorr": "fedblade(decorr='feddecorr')",
        **{
            f"fedblade {name}={number}": f"fedblade({name}={number})"
            for name, numbers in _SWEPT.values()
            for number in numbers
        },
    },
    regime=regime,
    measure=measure,
    pocket=pocket,
    quirks=("the rule of the Dirichlet partition is not stated: `lda` here",),
    tables=(
        Table("T1", "Table 1: accuracy, 20 of 100 clients"),
        Table(
            "T2",
            "Table 2: rounds to an accuracy, Dir(0.05)",
            quirks=("FedBlade's speed-up to 50 % is printed as 1.9x, 184/105 is 1.75",),
        ),
        Table(
            "T3",
            "Table 3: FedBlade's two components",
            quirks=("the tick marks of rows 2 and 3 are garbled: LDDecorr only, then PBA only",),
        ),
        Table(
            "T4",
            "Table 4: FedBlade without parts of its alignment",
            quirks=("the dataset is not printed: its FedBlade row is Tiny-ImageNet's of table 1",),
        ),
        Table("T5", "Table 5: neural collapse with and without PBA, CIFAR-100"),
        Table(
            "T7",
            "Table 7: accuracy, all of 20 clients",
            quirks=("FedBlade is third, fourth and second in three of nine settings",),
        ),
        Table("T8", "Table 8: accuracy with ResNet-18, 20 of 100 clients"),
        Table(
            "T9",
            "Table 9: local epochs of FedBlade",
            quirks=("the text says CIFAR-10 only, the table has three datasets",),
        ),
        Table("T10", "Table 10: milliseconds of each term of the loss"),
        Table("T11", "Table 11: kilobytes of prototypes"),
        *(
            Table(
                name,
                f"{name.replace('T', 'Table ')}: rounds to an accuracy, {where}",
                quirks=quirks,
            )
            for name, where in _SPEEDS.items()
            for quirks in [_PRINTED.get(name, ())]
        ),
        Table(
            "F3",
            "Figure 3: accuracy over rounds with either decorrelation",
            values=grid(
                "F3", ("fedavg", "fedetf", ("fedblade", "feddecorr"), "fedblade"), like=_CURVES
            ),
        ),
        *(
            Table(
                figure,
                f"{figure.replace('F', 'Figure ')}: {name} of FedBlade",
                quirks=("on which data is not in the text: table 1's CIFAR-100 here",),
                values=grid(
                    figure,
                    [("fedblade", f"{name}={number}") for number in numbers],
                    like=[value for value in _CURVES if value.dataset == "cifar100"],
                ),
            )
            for figure, (name, numbers) in _SWEPT.items()
        ),
        Table(
            "F9",
            "Figure 9: accuracy over rounds",
            values=grid("F9", _ALL, like=_CURVES),
            quirks=("the legend is not in the text: the methods of table 1",),
        ),
    ),
)
