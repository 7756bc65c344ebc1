"""From a paper's setting to flags of `run`: as published, on a small dataset, or in seconds."""

from fedjax_nc import protocols
from fedjax_nc.config import RunConfig
from fedjax_nc.methods import catalogue
from fedjax_nc.recipes.base import Cell, Measure, Paper, Table, Value

POCKET = "mnist5k"
# one setting for all papers, so that a method is trained once whoever asks for it
_SMOKE = (
    *("--dataset=digits", "--data.limit=300", "--rounds=2", "--local.epochs=1"),
    *("--federation.clients=5", "--federation.participants=2"),
)
_SEEDS = {"smoke": (0, 1), "pocket": (0, 1, 2)}
# whose fine-tuned models, or personal models on the official test set, some table reports
_FINETUNED = ("dot_regression", "fedbabu", "feddr_plus", "fedetf", "fedgela", "spherefed")
_OFFICIAL = ("fedala", "fedper", "fedproto", "fedrep", "local")
_STOPS = ("mflops_to_target", "bytes_up_to_target")  # in summaries of runs with a target
_FIELDS = {  # how a configuration names what a flag sets
    "rounds": lambda c: c.rounds,
    "data.partition": lambda c: c.data.partition,
    "data.alpha": lambda c: c.data.alpha,
    "data.per_client": lambda c: c.data.per_client,
    "local.epochs": lambda c: c.local.epochs,
    "federation.clients": lambda c: c.federation.clients,
    "federation.participants": lambda c: c.federation.participants,
}


def cell_of(paper: Paper, value: Value, *, table: Table, column: str, scale: str) -> Cell:
    """Returns the run of a number at a scale, or why there is none."""
    spec = spec_of(paper, value, scale=scale)
    measure = paper.measure(value)
    reason = measure if isinstance(measure, str) else ""
    measure = Measure("") if isinstance(measure, str) else measure
    if measure.name in _STOPS and scale != "full":
        reason = "counted by runs that stop at a target, which only the full scale does"
    if not reason and scale == "full":
        reason = paper.unfit(value)
    argv: tuple[str, ...] = ()
    if not reason:
        makers = {"smoke": _smoke, "pocket": _pocket, "full": _full}
        seeds = _SEEDS.get(scale) or table.seeds or paper.seeds
        argv = (f"--method={spec}", *makers[scale](paper, value, spec=spec), *_seeds(seeds, scale))
    return Cell(
        recipe=f"{paper.name}/{table.name}",
        scale=scale,
        row=value.row,
        column=column,
        spec=spec,
        argv=argv,
        measure=measure,
        reported=value.number,
        spread=float(value.std) if value.std else None,
        note=value.note,
        reason=reason,
        printed=value.printed,
    )


def spec_of(paper: Paper, value: Value, *, scale: str) -> str:
    """Returns the method of a number; the shortest scale has no tuned weights, but a usual one."""
    found = paper.specs.get(value.row, value.method)
    if "{beta}" in found:
        tuned = paper.specs.get(_key(value), "0.9")
        found = found.replace("{beta}", "0.9" if scale == "smoke" else tuned)
    return catalogue.completed(found, {}) if scale == "smoke" else found


def _key(value: Value) -> str:
    """Returns the name under which a paper keeps the tuned weight of a cell."""
    return f"{value.table} {value.row} {value.partition}"


def _seeds(seeds: tuple[int, ...], scale: str) -> tuple[str, ...]:
    together = ("--seeds_parallel",) if scale == "smoke" and len(seeds) > 1 else ()
    return ("--seeds", *map(str, seeds), *together)


def _smoke(paper: Paper, value: Value, *, spec: str) -> tuple[str, ...]:
    """Returns the flags of the shortest run; models that no table asks for are not made."""
    del value
    flags = [*_SMOKE, f"--model={paper.small_model or 'mlp'}"]
    whole = spec.removesuffix(" | ft").removesuffix(" | ccvr")
    base, _, own = whole.partition("(")
    varied = "|" in whole or (own and not own.startswith(("finetune=", "loss=")))
    if varied or paper.small_model:
        return (*flags, "--evaluation.no-personal")
    if base in _FINETUNED or spec.endswith(" | ft"):
        flags.append("--evaluation.finetune")
    if base in _OFFICIAL:
        flags.append("--evaluation.personal_global")
    return tuple(flags)


def _pocket(paper: Paper, value: Value, *, spec: str) -> tuple[str, ...]:
    wanted = _wanted(value) | paper.pocket(value)
    return _flags(paper, value, spec=spec, dataset=POCKET, model=paper.small_model, wanted=wanted)


def _full(paper: Paper, value: Value, *, spec: str) -> tuple[str, ...]:
    dataset, model = paper.datasets[value.dataset], paper.models.get(value.model, "")
    wanted = _wanted(value) | paper.extra(value)
    return _flags(paper, value, spec=spec, dataset=dataset, model=model, wanted=wanted)


def _wanted(value: Value) -> dict[str, object]:
    """Returns the settings that a paper states beside a number, by flag."""
    wanted: dict[str, object] = {}
    if value.partition == "dirichlet":
        wanted["data.alpha"] = float(value.partition_param)
    elif value.partition == "shard":
        wanted["data.per_client"] = int(value.partition_param)
    elif value.partition:
        wanted["data.partition"] = value.partition
    numbers = {
        "federation.clients": value.num_clients if value.clients_per_round else "",
        "federation.participants": value.clients_per_round,
        "rounds": value.rounds,
        "local.epochs": value.local_epochs,
    }
    return wanted | {name: int(number) for name, number in numbers.items() if number}


def _flags(
    paper: Paper, value: Value, *, spec: str, dataset: str, model: str, wanted: dict[str, object]
) -> tuple[str, ...]:
    """Returns the flags of a run: protocol, dataset, and what its protocol does not set so."""
    regime = paper.regime(value)
    protocol = f"{paper.name}/{regime}" if regime else paper.name
    plain = protocols.resolve(protocol, dataset, spec=spec)
    flags = [f"--protocol={plain.protocol}", f"--dataset={dataset}"]
    if model and model != plain.model:
        flags.append(f"--model={model}")
    made = protocols.resolve(protocol, dataset, spec=spec, model=model or None)
    for name, setting in wanted.items():
        if _present(made, name) != setting:
            words = setting if isinstance(setting, tuple) else (setting,)
            flags += [f"--{name}={words[0]}"] if len(words) == 1 else [f"--{name}", *words]
    return tuple(map(str, flags))


def _present(config: RunConfig, name: str) -> object:
    return _FIELDS[name](config) if name in _FIELDS else None
