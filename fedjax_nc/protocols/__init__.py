"""How each paper runs its experiments: every setting a published number depends on.

A protocol turns a dataset and a method into a full configuration; any flag overrides it. Numbers
come from the papers' text, or from their released code where the text is silent. A setting that a
paper gives to one dataset is asked by that dataset's name, any other by what the dataset is.
"""

from dataclasses import replace

from fedjax_nc.config import RunConfig, changed
from fedjax_nc.data.catalogue import find
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.protocols import fedalign, fedblade, feddr_plus, feddw, fedetf, quick
from fedjax_nc.protocols.base import Protocol

PROTOCOLS: dict[str, Protocol] = {
    "quick": quick.PROTOCOL,
    "fedetf": fedetf.PROTOCOL,
    "feddw": feddw.PROTOCOL,
    "feddr_plus": feddr_plus.PROTOCOL,
    "fedalign": fedalign.PROTOCOL,
    "fedblade": fedblade.PROTOCOL,
}

# methods that leave no model to fine-tune, with the hyperparameters by which they do
_WITHOUT_FINETUNING = {"local": {}, "centralised": {}, "fedproto": {"average": False}}


def resolve(
    protocol: str, dataset: str | DatasetSpec, spec: str, *, model: str | None = None
) -> RunConfig:
    """Returns the configuration a protocol gives to a dataset and a method.

    Examples of an official release are numbered as there, whatever the protocol.

    Args:
      protocol: its name, or name/regime; the name alone is the default regime, and stands for it
        in the configuration.
      dataset: its name, or the record of one that only its owner knows.
      spec: the method's specification.
      model: the network in place of the protocol's.
    """
    name, regime = split(protocol)
    first = catalogue.parse(spec)[0]
    record = find(dataset) if isinstance(dataset, str) else dataset
    config, hyper, of_network = PROTOCOLS[name].make(record, first, regime)
    method = catalogue.completed(spec, hyper)
    finetune = config.evaluation.finetune and _has_finetuning(method)
    network = config.model if model is None else model
    for group, values in of_network.get(network, {}).items():
        config = changed(config, group, values=values)
    ends_with_mapping = network in MODELS and MODELS[network].mapped
    mapping = () if ends_with_mapping else PROTOCOLS[name].mapping
    config = replace(
        config,
        data=replace(config.data, order="official") if record.release else config.data,
        method=method,
        dataset=record.name,
        model=network,
        protocol=full_name(name, regime),
        federation=replace(config.federation, mapping=mapping),
        evaluation=replace(config.evaluation, finetune=finetune),
    )
    if not config.is_centralised:
        return config
    alone = replace(config.evaluation, personal=False)
    return in_one_place(replace(config, evaluation=alone, local=replace(config.local, steps=0)))


def in_one_place(config: RunConfig) -> RunConfig:
    """Returns the configuration; that of centralised training has one client with all the data.

    Whoever lets people change what `resolve` returns calls it again afterwards.
    """
    if not config.is_centralised:
        return config
    return replace(
        config,
        data=replace(config.data, partition="iid"),
        federation=replace(
            config.federation, clients=1, participants=1, dropout=0.0, straggler=0.0, nan="stop"
        ),
    )


def split(protocol: str) -> tuple[str, str]:
    """Returns a protocol's name and regime, both of which must exist; the first one by default."""
    name, slash, regime = protocol.partition("/")
    if name not in PROTOCOLS:
        raise unknown("protocol", name, allowed=PROTOCOLS)
    regimes = PROTOCOLS[name].regimes
    if slash and not regimes:
        raise UserError(f"protocol '{name}' has no regimes, '{regime}' was given: write {name}")
    if slash and regime not in regimes:
        raise unknown(f"regime of {name}", regime, allowed=regimes)
    return name, regime or next(iter(regimes), "")


def full_name(name: str, regime: str) -> str:
    """Returns how a regime is named in a configuration: the default one by the protocol alone."""
    return name if regime == next(iter(PROTOCOLS[name].regimes), "") else f"{name}/{regime}"


def seeds_of(protocol: str) -> tuple[int, ...]:
    """Returns the seeds that a protocol's paper names, or says that it names none."""
    name, _ = split(protocol)
    made = PROTOCOLS[name]
    if not made.seeds:
        raise UserError(
            f"seeds 'paper' with protocol '{name}': {made.repeats}; give numbers, as 0 1 2"
        )
    return made.seeds


def _has_finetuning(spec: str) -> bool:
    """Returns whether a method has fine-tuning of its own, or by `| ft`."""
    first, *others = catalogue.parse(spec)
    without = _WITHOUT_FINETUNING.get(first.entry.name)
    present = first.entry.hyper | first.kwargs
    added = {"ft"} & {piece.entry.name for piece in others}
    return without is None or bool(added) or any(present[k] != v for k, v in without.items())
