"""Networks by name or brought along; the only folder that imports flax."""

from typing import TYPE_CHECKING, Any

from fedjax_nc.errors import UserError
from fedjax_nc.models import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedjax_nc.types import HeadSpec, Model


def build(
    model: Any,
    shape: tuple[int, ...],
    classes: int,
    head: "HeadSpec",
    *,
    norm: str = "default",
    conv: str = "auto",
    survival: "Callable[[int], tuple[float, ...]] | None" = None,
    words: int = 10_000,
    mapping: tuple[int, ...] = (),
) -> "Model":
    """Builds a model for inputs of this shape.

    Args:
      model: a name of `catalogue.MODELS`, a record of `own.model`, or a flax module.
      shape: one input's shape, without the batch axis.
      classes: number of classes.
      head: what the method wants on top of the features.
      norm: normalisation mode, or `default` for the model's own.
      conv: lowering of the convolutions.
      survival: number of residual blocks to the probability that training keeps each.
      words: how many words have an id; two more ids are padding and the unknown word.
      mapping: sizes of dense layers behind the body, unless it ends with such layers.
    """
    from fedjax_nc.models import base, bodies, own  # flax takes a second to import

    spec = _record(model)
    catalogue.check(spec, shape)
    norm = norm_of(spec, norm)
    settings: dict[str, Any] = {"conv": conv} | ({} if norm == catalogue.OWN else {"norm": norm})
    if spec.text:
        settings["words"] = words
    if survival is not None and not getattr(spec.module, "survival", ()):  # or it has its own
        if not spec.blocks:
            fit = catalogue.fitting(shape)
            residual = ", ".join(m for m in fit if catalogue.MODELS[m].blocks)
            raise UserError(
                f"model '{spec.name}' has no residual blocks to leave out: choose {residual}"
            )
        settings["survival"] = survival(spec.blocks)
    body = bodies.make_body(spec, **settings)
    own.check(body, shape)
    mapping = () if spec.mapped else mapping
    return base.from_body(body, shape, classes=classes, spec=head, mapping=mapping)


def norm_of(model: Any, norm: str) -> str:
    """Returns how a model normalises under a setting of which `default` leaves it the choice."""
    return _record(model).norm if norm == "default" else norm


def _record(model: Any) -> catalogue.ModelSpec:
    """Returns the record of a model that is given by name, as a record or as a flax module."""
    if isinstance(model, str):
        return catalogue.find(model)
    from fedjax_nc.models import own  # flax takes a second to import

    return own.model(model)
