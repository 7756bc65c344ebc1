"""FedAlign's tables 1-10."""

from fedjax_nc.recipes.base import Measure, Paper, Table, Value

NAME = "fedalign"
_COUNTED = "counted without training: `run --dry-run` and the protocol's page tell it"
_ANALYSED = "an analysis of a finished run and no number of its summary: `analyse --only=hessian`"
_TARGET = 0.6
_EPOCHS = {"10": 1, "20": 2, "30": 3}
_MUS, _WIDTHS = ("0.35", "0.45", "0.55"), ("0.1", "0.25", "0.4")


def regime(value: Value) -> str:
    """Returns the protocol's regime."""
    return "sampled" if value.clients_per_round not in ("", value.num_clients) else "full"


def measure(value: Value) -> Measure | str:
    """Returns the number of a run that the paper prints; megabits are of one direction."""
    found: dict[str, Measure | str] = {
        "global_acc": Measure("global_accuracy"),
        "seconds_per_round": Measure(
            "seconds_per_round", scale=1.0, unit="s", high=False, digits=2
        ),
        "rounds_to_60": Measure(
            "rounds_to", scale=1.0, unit="", high=False, digits=0, target=_TARGET
        ),
        "total_mflops_to_60": Measure("mflops_to_target", scale=1.0, unit="", high=False, digits=0),
        "comm_gb": Measure("bytes_up_to_target", scale=8e-9, unit="Gbit", high=False, digits=2),
        **dict.fromkeys(("mflops", "gflops", "params_m"), _COUNTED),
        **dict.fromkeys(("lambda_max", "hessian_trace", "H_N", "H_D"), _ANALYSED),
    }
    return found[value.metric]


def pocket(value: Value) -> dict[str, object]:
    """Returns a third of the rounds of a tenth of the epochs."""
    rounds = {"25": 8, "50": 16, "100": 32, "": 32}[value.rounds]
    return {"rounds": rounds, "local.epochs": _EPOCHS[value.local_epochs or "20"]}


def extra(value: Value) -> dict[str, object]:
    """Returns what table 8 needs: the paper trains until the target."""
    return {"rounds": 100, "evaluation.stop_at": _TARGET} if value.table == "T8" else {}


PAPER = Paper(
    name=NAME,
    seeds=(0, 1, 2),
    reports="the last round",
    datasets={"cifar10": "cifar10", "cifar100": "cifar100", "imagenet200": "imagenet200"},
    models={},  # the protocol's
    specs={
        "mixup": "fedavg | mixup",
        "stochdepth": "fedavg | stochdepth",
        "gradaug n=1": "gradaug(subnets=1, mu=1.5)",
        "gradaug n=2": "gradaug",
        "gradaug n=3": "gradaug(subnets=3, mu=2.0)",
        "gradaug n=4": "gradaug(subnets=4, mu=2.25)",
        **{f"fedalign mu={mu}": f"fedalign(mu={mu})" for mu in _MUS},
        **{f"fedalign omega_S={width}": f"fedalign(width={width})" for width in _WIDTHS},
    },
    regime=regime,
    measure=measure,
    pocket=pocket,
    extra=extra,
    small_model="resnet8",  # FedAlign, GradAug and StochDepth need a residual network
    quirks=("seeds and their number are not stated: three are run here",),
    tables=(
        Table("T1", "Table 1: accuracy and second-order metrics, CIFAR-100"),
        Table("T2", "Table 2: data heterogeneity, CIFAR-100"),
        Table("T3", "Table 3: local epochs, CIFAR-100"),
        Table("T4", "Table 4: number of clients, CIFAR-100"),
        Table(
            "T5",
            "Table 5: accuracy, work and time, CIFAR-100",
            quirks=("seconds are of four RTX 2080Ti: other machines have others",),
        ),
        Table("T6", "Table 6: FedAlign in the settings of tables 2-4"),
        Table(
            "T7",
            "Table 7: CIFAR-10 and ImageNet-200",
            quirks=("MOON's 19.96 M parameters are below FedProx's 22.42 M",),
        ),
        Table(
            "T8",
            "Table 8: cost to 60 % accuracy, CIFAR-100",
            quirks=(
                "the printed MFLOPs are rounds times those of an example",
                "who does not reach it in 100 rounds has no number",
            ),
        ),
        Table(
            "T9",
            "Table 9: accuracy and second-order metrics with FedAlign, CIFAR-100",
            quirks=("equation 4 divides by squared norms, the numbers fit the plain cosine",),
        ),
        Table("T10", "Table 10: mu and width of FedAlign, CIFAR-100"),
    ),
)
