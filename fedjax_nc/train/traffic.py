"""How many bytes a round moves, from shapes alone."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_nc import tree
from fedjax_nc.methods.base import Finished
from fedjax_nc.train import local
from fedjax_nc.train.client import sent
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import build, upload_of
from fedjax_nc.types import ClientInfo, Pool, Table

MODEL, AGAIN = "model", "model, second time"  # among the names of parts


def traffic(task: Task, pool: Pool) -> tuple[int, int]:
    """Counts the bytes a client sends and receives in a round."""
    up, down = zip(*by_part(task, pool).values(), strict=True)
    return sum(up), sum(down)


def by_part(task: Task, pool: Pool) -> dict[str, tuple[int, int]]:
    """Counts the bytes a client sends and receives in a round, of the model and of each part."""
    method, trainer, _ = task

    def messages(key: jax.Array, pool: Pool):
        weights, shared, client_state = build(task, key)
        one = Table(jnp.zeros(trainer.local.batch_size, jnp.int32), jnp.ones((), jnp.int32))

        def over_data(fn, augment=False):
            return local.sum_over(
                trainer,
                trainer.local.batch_size,
                weights=weights,
                pool=pool,
                row=one,
                fn=fn,
                key=key if augment else None,
            )

        classes = weights.params["head"]["kernel"].shape[1]
        info = ClientInfo(
            one.size, jnp.ones(classes), num_steps=one.size, lr=jnp.ones(()), momentum=0.0
        )
        finished = Finished(
            weights,
            weights,
            shared=shared,
            client=client_state,
            info=info,
            weight=jnp.ones(()),
            slots={},
            opts=(),
            over_data=over_data,
        )
        model = upload_of(method, weights)
        up: dict[str, Any] = {p.name: p.collect(finished) for p in method.parts if p.collect}
        for p in method.parts:
            if p.exchange:
                up[p.name] = (up.get(p.name), over_data(p.exchange))
        again = {AGAIN: model} if any(p.exchange for p in method.parts) else {}
        return {MODEL: model} | up, {MODEL: model} | sent(method, shared) | again

    up, down = jax.eval_shape(messages, jax.random.key(0), pool)
    names = dict.fromkeys([MODEL, *(p.name for p in method.parts), AGAIN])
    found = {k: (tree.num_bytes(up.get(k, ())), tree.num_bytes(down.get(k, ()))) for k in names}
    return {k: moved for k, moved in found.items() if k == MODEL or any(moved)}
