"""Projector, class vectors and learnable scale on top of the features, as plain functions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedjax_nc import linalg
from fedjax_nc.errors import UserError
from fedjax_nc.models.conv import torch_bias, torch_default
from fedjax_nc.types import CLASSES, FEATURES, HeadSpec, Params

KINDS = ("linear", "cosine", "etf", "orthonormal")


def init_head(key: Key[Array, ""], spec: HeadSpec, features: int, classes: int) -> Params:
    """Draws the group `head`, and `projector`, `own_head` and `scale` if the spec asks for them."""
    key_projector, key_head = jax.random.split(key)
    groups: Params = {}
    width = features
    if spec.projector:
        layers = []
        for i, units in enumerate(spec.projector):
            units = {CLASSES: classes, FEATURES: features}.get(units, units)
            layer = _linear(jax.random.fold_in(key_projector, i), width, fan_out=units)
            layers.append(layer if spec.projector_bias else {"kernel": layer["kernel"]})
            width = units
        groups["projector"] = {str(i): layer for i, layer in enumerate(layers)}
    least = {"etf": classes - 1, "orthonormal": classes}.get(spec.kind, 0)
    if width < least:
        raise UserError(
            f"{classes} classes do not fit an {spec.kind} head on {width} features: use a model or "
            f"a projector with at least {least}"
        )
    if spec.kind == "etf":
        # FedETF draws from U[0,1) before the QR; any full-rank start gives the same Gram matrix
        seed = jax.random.uniform(key_head, (width, classes))
        groups["head"] = {"kernel": linalg.simplex_etf(seed)}
    elif spec.kind == "orthonormal":
        seed = jax.random.normal(key_head, (width, classes))
        groups["head"] = {"kernel": linalg.orthonormal(seed)}
    else:
        head = _linear(key_head, width, fan_out=classes)
        groups["head"] = head if spec.bias else {"kernel": head["kernel"]}
    if spec.own:
        groups["own_head"] = groups["head"]
    if spec.learn_scale:
        groups["scale"] = jnp.full((), spec.scale, float)
    return groups


def apply_head(
    params: Params, features: Float[Array, "b d"], spec: HeadSpec
) -> tuple[Float[Array, "b p"], Float[Array, "b c"]]:
    """Computes the projected features and the logits."""
    projected = features
    layers = params.get("projector", {})
    for i in range(len(layers)):
        layer = layers[str(i)]
        # a narrow network has the first features only
        projected = projected @ layer["kernel"][: projected.shape[-1]]
        if "bias" in layer:
            projected = projected + layer["bias"]
        if i < len(layers) - 1:
            projected = jax.nn.relu(projected)
    kernel = params["head"]["kernel"][: projected.shape[-1]]
    if spec.kind == "cosine":
        kernel = linalg.normalise(kernel.T).T
    if spec.normalise or spec.kind == "cosine":
        projected = linalg.normalise(projected)
    logits = projected @ kernel
    if "bias" in params["head"]:
        logits = logits + params["head"]["bias"]
    return projected, logits * params.get("scale", spec.scale)


def _linear(key, fan_in, fan_out):
    key_kernel, key_bias = jax.random.split(key)
    return {
        "kernel": torch_default(key_kernel, (fan_in, fan_out)),
        "bias": torch_bias(fan_in)(key_bias, (fan_out,)),
    }
