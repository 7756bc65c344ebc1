"""Every model, as large as it is, trains with three kinds of head on genuine data."""

from functools import cache, partial

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from trees import plain

from fedjax_nc.cli import flags
from fedjax_nc.host import assemble, states
from fedjax_nc.models import base
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.train import seeds
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper

METHODS = ("fedavg", "fedetf", "fedblade")
# A head sees features alone, so that a body that FedBlade trains through its three losses is one
# that the others train: they are tried on one network of each kind.
ALL = ("mlp", "cnn", "fedavg_cnn", "resnet8")


def moved(before, after):
    """Of each array, whether it is another."""
    return jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after))


@cache
def as_vectors(body):
    """A body's `init` and `apply` with one vector of each kind of variable, and the vectors' trees.

    In a round's compilation the parameters one by one take longer than the network.
    """
    trees = {}

    @jax.jit
    def init(rngs, x):
        out, found = body.init_with_output(rngs, x, train=False, mask=None)
        found = {kind: ravel_pytree(found.get(kind, {})) for kind in ("params", "batch_stats")}
        trees.update({kind: tree for kind, (_, tree) in found.items()})
        return out, {kind: {"all": vector} for kind, (vector, _) in found.items()}

    @partial(jax.jit, static_argnames=("mutable", "train"))
    def apply(vectors, x, *, train, mask, rngs, mutable):
        variables = {kind: trees[kind](vector["all"]) for kind, vector in vectors.items()}
        kept = list(mutable) or False
        out = body.apply(variables, x, mutable=kept, train=train, mask=mask, rngs=rngs)
        if not mutable:
            return out
        return out[0], {kind: {"all": ravel_pytree(new)[0]} for kind, new in out[1].items()}

    return init, apply, trees


class Vectors(nn.Module):
    """The body that `as_vectors` makes of another."""

    body: nn.Module

    @nn.nowrap
    def init_with_output(self, rngs, x, *, train, mask):
        with jax.disable_jit(False):  # one program for all methods, whatever their heads
            return as_vectors(self.body)[0](rngs, x)

    @nn.nowrap
    def apply(self, vectors, x, *, train, mask, rngs=None, mutable=()):
        rngs, kept = rngs or {}, tuple(mutable)
        with jax.disable_jit(False):  # traced once for all methods
            return as_vectors(self.body)[1](
                vectors, x, train=train, mask=mask, rngs=rngs, mutable=kept
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, spec in MODELS.items() if not spec.text])
def test_trains_two_rounds(name, monkeypatch):
    from_body, bodies = base.from_body, []

    def from_vectors(body, *args, **options):
        bodies.append(body)
        return from_body(Vectors(body), *args, **options)

    monkeypatch.setattr(base, "from_body", from_vectors)
    dataset = "digits" if MODELS[name].takes((8, 8, 1)) else "mnist5k"
    for method in METHODS if name in ALL else METHODS[-1:]:
        made = assemble.assemble(
            flags.parse(
                [
                    f"--method={method}",
                    f"--model={name}",
                    f"--dataset={dataset}",
                    "--data.partition=iid",
                    "--data.limit=16",
                    "--federation.clients=2",
                    "--federation.participants=2",
                    "--local.epochs=1",
                    "--local.batch_size=4",
                    "--execution.executor=scan",
                ]
            ).configs[0]
        )
        with jax.disable_jit():
            state = seeds.take(states.first_state(made), 0)
        start, round_fn = plain(state.weights), make_round(made.task, made.executor)
        for _ in range(2):
            state, metrics = round_fn(state, make_hyper(made.task, 0), made.data)
        assert metrics.finite.all() and np.isfinite(metrics.sums["loss"])
        end, stats = plain(state.weights), as_vectors(bodies[-1])[2]["batch_stats"]
        frozen = [] if method == "fedavg" else ["head"]
        assert [g for g in end.params if not any(moved(start.params[g], end.params[g]))] == frozen
        assert all(moved(*(stats(w.stats["all"]) for w in (start, end))))
