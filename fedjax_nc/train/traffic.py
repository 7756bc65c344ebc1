"""How many bytes a round moves, from shapes alone."""

import jax
import jax.numpy as jnp

from fedjax_nc import tree
from fedjax_nc.methods.base import Finished
from fedjax_nc.train import local
from fedjax_nc.train.client import sent
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import build, upload_of
from fedjax_nc.types import ClientInfo, Pool, Table


def traffic(task: Task, pool: Pool) -> tuple[int, int]:
    """Counts the bytes a client sends and receives in a round."""
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
        up = {p.name: p.collect(finished) for p in method.parts if p.collect}
        later = {p.name: over_data(p.exchange) for p in method.parts if p.exchange}
        again = model if later else ()
        return (model, up, later), (model, sent(method, shared), again)

    up, down = jax.eval_shape(messages, jax.random.key(0), pool)
    return tree.num_bytes(up), tree.num_bytes(down)
