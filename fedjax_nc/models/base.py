"""From a flax module to the `Model` tuple: pure functions over parameter groups."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_nc.models.heads import apply_head, init_head
from fedjax_nc.types import HeadSpec, Model, Outputs, Weights


def from_body(body: nn.Module, shape: tuple[int, ...], classes: int, spec: HeadSpec) -> Model:
    """Wrap a flax body, (x, train, mask) -> (blocks, features), and put a head on it."""

    def init(key):
        key_body, key_head = jax.random.split(key)
        x = jnp.zeros((2, *shape))
        variables = body.init({"params": key_body, "dropout": key_body}, x, train=False, mask=None)
        _, features = jax.eval_shape(lambda v: body.apply(v, x, train=False, mask=None), variables)
        head = init_head(key_head, spec, features.shape[-1], classes)
        return Weights({"body": variables["params"], **head}, variables.get("batch_stats", {}))

    def apply(weights, x, *, train, mask=None, key=None):
        variables = {"params": weights.params["body"]}
        if weights.stats:
            variables["batch_stats"] = weights.stats
        rngs = {"dropout": key} if key is not None else {}
        (blocks, features), new = body.apply(
            variables, x, train=train, mask=mask, rngs=rngs, mutable=["batch_stats"]
        )
        projected, logits = head(weights.params, features)
        stats = new.get("batch_stats", weights.stats)
        return Outputs(blocks, features, projected, logits), stats

    def head(params, features):
        return apply_head(params, features, spec)

    return Model(init, apply, head)
