"""From a flax module to the `Model` tuple: pure functions over parameter groups."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_nc.models.conv import Dense
from fedjax_nc.models.heads import apply_head, init_head
from fedjax_nc.models.norm import Norm
from fedjax_nc.types import HeadSpec, Model, Outputs, Weights


class Encoded(nn.Module):
    """A body followed by two dense layers and BatchNorm, as FedGELA's networks end."""

    body: nn.Module

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the body's maps and levels, and as many new features as it has."""
        blocks, levels, x = self.body(x, train=train, mask=mask)
        size = x.shape[-1]
        x = Dense(size)(nn.relu(Dense(size)(x)))
        return blocks, levels, Norm("running")(x, train=train, mask=mask)


class Mapped(nn.Module):
    """A body followed by dense layers with ReLU between them, as FedDW's networks end."""

    body: nn.Module
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the body's maps, its levels with those before each new ReLU, and features."""
        blocks, levels, x = self.body(x, train=train, mask=mask)
        for size in self.sizes[:-1]:
            levels = (*levels, Dense(size)(x))
            x = nn.relu(levels[-1])
        return blocks, levels, Dense(self.sizes[-1])(x)


def from_body(
    body: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    spec: HeadSpec,
    *,
    mapping: tuple[int, ...] = (),
) -> Model:
    """Puts a head on a flax module and returns both as pure functions.

    Args:
      body: a module (x, *, train, mask) -> (blocks, levels, features). A network of stages has
        `channels`, `width` and `stage` as well, see `resnet`.
      shape: one input's shape, without the batch axis.
      classes: number of classes.
      spec: what the method wants on top of the features.
      mapping: sizes of dense layers behind the body.
    """
    channels, stages = getattr(body, "channels", ()), body
    body = Mapped(body, mapping) if mapping else body
    body = Encoded(body) if spec.encoder else body

    def init(key):
        key_body, key_head = jax.random.split(key)
        x = jnp.zeros((2, *shape), int if len(shape) == 1 else float)  # words are ids
        rngs = {"params": key_body, "dropout": key_body}
        (*_, features), variables = body.init_with_output(rngs, x, train=False, mask=None)
        variables = jax.tree.map(lambda v: v.astype(float), variables)  # of the working precision
        head = init_head(key_head, spec, features=features.shape[-1], classes=classes)
        return Weights({"body": variables["params"], **head}, variables.get("batch_stats", {}))

    def apply(weights, x, *, train, mask=None, key=None, width=1.0):
        net, params, stats = body, weights.params, weights.stats
        if width != 1.0:
            net = _narrowed(body, width)
            params = {**params, "body": _first_channels(net, params["body"], x=x)}
            stats = {}
        variables = {"params": params["body"]} | ({"batch_stats": stats} if stats else {})
        rngs = {"dropout": key} if key is not None else {}
        (blocks, levels, features), new = net.apply(
            variables, x, train=train, mask=mask, rngs=rngs, mutable=["batch_stats"]
        )
        projected, logits = head(params, features)
        stats = new.get("batch_stats", weights.stats) if width == 1.0 else weights.stats
        return Outputs(blocks, levels, features=features, projected=projected, logits=logits), stats

    def head(params, features):
        return apply_head(params, features, spec=spec)

    def last_stage(weights, x, *, width, mask=None):
        number = len(channels) - 1
        net = stages.clone(width=width).stage(number)
        params = weights.params["body"]
        while "body" in params:
            params = params["body"]
        variables = {"params": _first_channels(net, params[f"stage{number}"], x=x)}
        (out, _), _ = net.apply(variables, x, train=True, mask=mask, mutable=["batch_stats"])
        return out

    return Model(
        init, apply, head=head, last_stage=last_stage if channels else None, channels=channels
    )


def _narrowed(net: Any, width: float) -> nn.Module:
    """Returns a network with narrower stages; dense layers behind them keep their sizes."""
    if isinstance(net, Encoded | Mapped):
        return net.clone(body=_narrowed(net.body, width))
    return net.clone(width=width)


def _first_channels(net: nn.Module, params: Any, x: jax.Array) -> Any:
    """Returns the part of the parameters a narrower network has: the first along every axis."""
    shapes = jax.eval_shape(
        lambda x: net.init(jax.random.key(0), x, train=True, mask=None)["params"], x
    )
    return jax.tree.map(lambda p, s: p[tuple(slice(n) for n in s.shape)], params, shapes)
