"""Methods whose clients mix a model of their own with the one they share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Method, Part, Phase, View, not_negative
from fedjax_nc.methods.registry import base
from fedjax_nc.types import Weights


class Own(NamedTuple):
    """APFL's client state: its own model v, and alpha."""

    model: Weights  # with the statistics of the mixture
    share: jax.Array  # of v in the mixture


class Beside(NamedTuple):
    """The state of APFL's optimiser, in which v rides beside the model that is uploaded."""

    shared: Any  # the run's optimiser of w
    owned: Any  # the run's optimiser of v
    own: Own
    first: jax.Array  # no step of this round yet


@base
def apfl(*, alpha: float = 0.5, adaptive: bool = False) -> Method:
    """APFL: each client mixes a model of its own with its copy of the global one.

    Paper:    Deng et al., Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020.
    Changes:  FedAvg of w; after each of its steps v <- v - lr grad_v CE(alpha v + (1 - alpha) w) on
              the same batch. v stays; the client's model is the mixture, look at personal accuracy.
    Defaults: alpha = 0.5, not adaptive (official code); both models have the run's optimiser.
    Differs:  the models are mixed, as in the paper; the official code mixes their outputs. As
              there, v sees w after its step (the paper: before), and alpha moves once a round, at
              its first step, down <v - w, grad CE> + 0.02 alpha, in which 0.02 is not the paper's.
              PFLlib trains v by itself, moves alpha in each step and mixes at the end of a round.
              Momentum starts anew in each round, also where the run keeps optimisers.
    Uploads:  the model.

    Args:
      alpha: share of the client's own model in the mixture, at the start if it is adaptive.
      adaptive: let each client learn its share.
    """
    not_negative("apfl", alpha=alpha)
    if alpha > 1:
        raise UserError(f"alpha = {alpha} of apfl: give a share from 0 to 1")

    def anywhere(value_and_grad, view: View):
        """Hands the optimiser the gradient, and the means to ask for it at another point."""
        del view

        def found(trainable, stats, batch, key):
            value, grads = value_and_grad(trainable, stats, batch, key)
            return value, (grads, lambda at: value_and_grad(at.params, at.stats, batch, key))

        return found

    def interleaved(view: View) -> optax.GradientTransformation:
        run, lr = view.optimizer, view.info.lr

        def init(params) -> Beside:
            return Beside(
                run.init(params), run.init(params), view.client["own"], first=jnp.ones((), bool)
            )

        def update(found, state: Beside, params=None):
            (grads, gradient), (model, share) = found, state.own
            step, shared = run.update(grads, state.shared, params)
            step = tree.scale(lr, step)
            w, v = tree.sub(params, step), model.params
            there = Weights(mixture(v, w, share=share), model.stats)
            (_, (stats, _)), slope = gradient(there)
            mine, owned = run.update(tree.scale(share, slope), state.owned, v)
            new = Weights(tree.sub(v, tree.scale(lr, mine)), stats)
            if adaptive:
                to = share - lr * (tree.dot(tree.sub(v, w), slope) + 0.02 * share)
                share = jnp.where(state.first, jnp.clip(to, 0.0, 1.0), share)
            return step, Beside(shared, owned, Own(new, share), first=jnp.zeros((), bool))

        return optax.GradientTransformation(init, update)  # type: ignore[arg-type]

    def mixed(weights: Weights, opts: tuple, view: View) -> Weights:
        del view
        model, share = opts[0].own
        return Weights(mixture(model.params, weights.params, share=share), model.stats)

    ce = (terms.cross_entropy(),)
    train = Phase(ce, grad=anywhere, optimizer=interleaved)
    own = Part(
        "own",
        init_client=lambda s: Own(s.weights, jnp.asarray(alpha)),
        keep=lambda f: f.opts[0].own,
    )
    tested = Phase(ce, epochs=0, slot="mixed", start=mixed)
    return fedavg()._replace(phases=(train, tested), parts=(own,))


def mixture(own, shared, share):
    """Computes alpha v + (1 - alpha) w over all parameters."""
    return jax.tree.map(lambda v, w: share * v + (1 - share) * w, own, shared)
