"""From a record of the catalogue to the flax module it names."""

import dataclasses
import importlib
from typing import Any

import flax.linen as nn

from fedjax_nc.errors import UserError
from fedjax_nc.models.catalogue import ModelSpec
from fedjax_nc.models.own import Own


def make_body(spec: ModelSpec, **settings: Any) -> nn.Module:
    """Builds a model without its head: (x, *, train, mask) -> (blocks, levels, features).

    Args:
      spec: the model's record.
      **settings: `norm`, `conv`, `survival` and `words`; each is put into the module's field of
        this name, if it has one that holds a value of the same type.
    """
    module = _instance(spec)
    fields: Any = module
    known = {
        field.name: settings[field.name]
        for field in dataclasses.fields(fields)
        if field.name in settings
        and isinstance(getattr(module, field.name), type(settings[field.name]))
    }
    if "survival" in settings and "survival" not in known:
        raise UserError(
            f"model '{spec.name}' cannot leave out blocks: give its module a field "
            "survival: tuple[float, ...] = ()"
        )
    if "norm" in settings and "norm" not in known and settings["norm"] != spec.norm:
        raise UserError(
            f"model '{spec.name}' has a normalisation of its own, so norm={settings['norm']} has "
            "no effect: leave it out, or give its module a field norm: str"
        )
    module = module.clone(**known)
    inside = type(module).__module__.startswith("fedjax_nc.models.")
    return module if inside else Own(module, spec.name)


def _instance(spec: ModelSpec) -> nn.Module:
    found = _imported(spec) if isinstance(spec.module, str) else spec.module
    if isinstance(found, nn.Module):
        return found.clone(**spec.options)
    made = found(**spec.options)
    if not isinstance(made, nn.Module):
        raise UserError(
            f"model '{spec.name}': {spec.module} gives a {type(made).__name__}, wanted a "
            "flax.linen module"
        )
    return made


def _imported(spec: ModelSpec) -> Any:
    where, _, name = spec.module.rpartition(":")
    try:
        return getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model '{spec.name}': cannot import {spec.module} ({error}): write package.module:Name"
        ) from error
