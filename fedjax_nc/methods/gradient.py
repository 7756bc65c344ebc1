"""Methods that change the local gradient: SCAFFOLD, FedDyn, FedSOL, Per-FedAvg, pFedMe."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_nc import linalg, losses, tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import effective_steps, fedavg
from fedjax_nc.methods.base import (
    SGD,
    Arrived,
    Context,
    Finished,
    Method,
    Part,
    Phase,
    Setup,
    Term,
    View,
    above_zero,
    add,
    each_phase,
    not_negative,
    per_example,
)
from fedjax_nc.methods.registry import base
from fedjax_nc.types import Batch, ClientInfo, Weights


@base
def scaffold(*, server_lr: float = 1.0, adaptive: bool = True) -> Method:
    """SCAFFOLD: gradients corrected by control variates.

    Paper:    Karimireddy et al., SCAFFOLD, ICML 2020, option II.
    Changes:  each gradient g becomes g - c_k + c; c_k is refreshed from the local update.
    Defaults: server step 1; divisor adapted to momentum, as FedNTD's and FedDr+'s code.
    Differs:  the paper divides by K lr, which holds for plain SGD only: with momentum 0.9 it is
              ten times too small, so the divisor counts momentum's effective steps instead, as if
              it started anew in each round: those of a kept optimiser are not counted.
    Uploads:  the model and a control variate of its size.

    Args:
      server_lr: step of the server along the mean update.
      adaptive: count momentum's effective steps in the control variate's divisor.
    """
    not_negative("scaffold", server_lr=server_lr)

    def correct(value_and_grad, view: View):
        drift = tree.sub(view.shared["control"], view.client["control"])

        def corrected(trainable, *args):
            value, grads = value_and_grad(trainable, *args)
            return value, tree.add(grads, tree.pick(drift, tuple(trainable)))

        return corrected

    def step(arrived: Arrived, shared) -> Weights:
        return tree.add(arrived.sent, tree.scale(server_lr, arrived.mean))

    method = each_phase(fedavg(), grad=correct)
    return method._replace(parts=(control_variates(adaptive),), server=step)


def control_variates(adaptive: bool) -> Part:
    """Returns SCAFFOLD's part: c_k' = c_k - c + (w_g - w_k) / (K lr); c adds the mean change."""

    def zeros(setup: Setup):
        return tree.zeros_like(setup.weights.params)

    def plain(info: ClientInfo) -> ClientInfo:
        return info._replace(momentum=0.0, nesterov=False)

    def new(f: Finished):
        return control_variate(
            f.client["control"],
            f.shared["control"],
            received=f.received.params,
            local=f.weights.params,
            distance=effective_steps(f.info if adaptive else plain(f.info)) * f.info.lr,
        )

    def collect(f: Finished):
        return tree.sub(new(f), f.client["control"])

    def reduce(c, total, arrived: Arrived):
        return tree.add(c, tree.scale(1.0 / arrived.num_clients, total))

    return Part("control", zeros, init_client=zeros, keep=new, collect=collect, reduce=reduce)


def control_variate(ci, c, received, local, distance):
    """Computes a client's new control variate (SCAFFOLD, option II).

    `distance` is how far the round goes along a unit gradient: K lr, with effective steps K.
    """
    scale = 1.0 / distance
    return jax.tree.map(lambda i, g, x, y: i - g + scale * (x - y), ci, c, received, local)


@base
def feddyn(
    *,
    alpha: float = 0.01,
    squared: bool = True,
    weights: Literal["equal", "size", "mixed"] = "equal",
    relative: bool = False,
) -> Method:
    """FedDyn: a linear and a proximal term that move each client's optimum to the global one.

    Paper:    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
    Changes:  CE - <g_k, w> + alpha/2 |w - w_g|^2, g_k <- g_k - alpha (w_k - w_g); the server
              subtracts h / alpha, h <- h - alpha/N sum_k (w_k - w_g).
    Defaults: alpha = 0.01 (FedETF); 0.1 (FedNTD's code).
    Differs:  FedETF's code does not square the norm (squared) and weighs clients by size in both
              sums (weights); FedNTD's has 1/N in h, and sizes in the mean of the models. The
              official code divides a client's alpha by its size beside the mean (relative). Only
              parameters are corrected, statistics are averaged.
    Uploads:  the model; with mixed weights its update twice, since only sums travel here.

    Args:
      alpha: strength of the regularisation.
      squared: square the proximal norm, as the paper.
      weights: mean over clients and 1/N of the paper, sizes in both as FedETF's code, or sizes in
        the mean alone as FedNTD's.
      relative: divide a client's alpha by its size beside the mean over all clients.
    """
    above_zero(alpha=alpha)
    if relative and weights != "equal":
        raise UserError("feddyn: relative=True belongs to weights='equal': give one of them")

    def own_alpha(info: ClientInfo) -> Any:
        return alpha / info.relative_size if relative else alpha

    def linear(c: Context) -> jax.Array:
        mine = tree.pick(c.client["gradient"], tuple(c.weights.params))
        return -tree.dot(mine, c.weights.params)

    def norm(c: Context) -> jax.Array:
        square = tree.sq_distance(c.weights.params, c.received.params)
        return 0.5 * linalg.safe_sqrt(square)

    def keep(f: Finished):
        change = tree.sub(f.weights.params, f.received.params)
        return tree.sub(f.client["gradient"], tree.scale(own_alpha(f.info), change))

    def collect(f: Finished):
        return tree.sub(f.weights.params, f.received.params)

    def reduce(h, uploads, arrived: Arrived):
        if weights == "mixed":
            return tree.sub(h, tree.scale(alpha / arrived.num_clients, uploads))
        share = arrived.clients / arrived.num_clients if weights == "equal" else 1.0
        return tree.sub(h, tree.scale(alpha * share, arrived.mean.params))

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        mean = tree.add(arrived.sent, arrived.mean)
        back = tree.scale(1.0 / alpha, shared["drift"])
        return Weights(tree.sub(mean.params, back), mean.stats)

    def zeros(setup: Setup):
        return tree.zeros_like(setup.weights.params)

    distance = terms.prox(1.0).fn if squared else norm

    def pull(c: Context) -> jax.Array:
        return distance(c) / c.info.relative_size if relative else distance(c)

    return add(
        fedavg()._replace(server=server, weights="equal" if weights == "equal" else None),
        Term("linear", linear),
        Term("pull", pull, weight=alpha),
        parts=(
            Part("gradient", init_client=zeros, keep=keep),
            Part(
                "drift",
                zeros,
                collect=collect if weights == "mixed" else None,
                reduce=reduce,
                send=lambda h: (),
            ),
        ),
    )


@base
def fedsol(*, rho: float = 2.0, tau: float = 3.0) -> Method:
    """FedSOL: cross-entropy's gradient where the model disagrees most with the received one.

    Paper:    Lee et al., FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in
              Federated Learning, CVPR 2024; fixed radius.
    Changes:  each step takes the gradient of CE at w + rho g/|g|, g the gradient of
              KL(softmax(z_g / 3) || softmax(z / 3)) at w.
    Defaults: rho = 2 (FedDr+); 1 in the official configuration.
    Differs:  where g is rounding noise, as in a round's first step of a network without running
              statistics, nothing is perturbed; the official code blows the noise up to the full
              radius. Statistics come from the first pass. The adaptive variant is left out.
    Uploads:  the model.

    Args:
      rho: radius of the perturbation.
      tau: temperature of the divergence.
    """
    not_negative("fedsol", rho=rho)
    above_zero(tau=tau)

    def divergence(c: Context) -> jax.Array:
        return losses.kd(c.out.logits, c.ref().logits, tau=tau) / tau**2

    def elsewhere(value_and_grad, view: View):
        del view

        def perturbed(trainable, stats, batch, key):
            of_kl = lambda name: name == "proximal_kl"  # noqa: E731
            (_, (new_stats, first)), grads = value_and_grad(trainable, stats, batch, key, of_kl)
            there = tree.add(trainable, perturbation(grads, rho))
            (loss, (_, named)), grads = value_and_grad(
                there, stats, batch, key, lambda name: not of_kl(name)
            )
            named = named | {"proximal_kl": first["proximal_kl"]}
            return (loss, (new_stats, named)), grads

        return perturbed

    return each_phase(add(fedavg(), per_example("proximal_kl", divergence)), grad=elsewhere)


def perturbation(grads, rho: float):
    """Computes rho g / (|g| + 1e-12) over all parameters, and zero where g is only rounding."""
    norm = optax.global_norm(grads)
    noise = 16 * jnp.finfo(norm.dtype).eps
    return tree.scale(jnp.where(norm > noise, rho / (norm + 1e-12), 0.0), grads)


@base
def per_fedavg(
    *,
    alpha: float = 0.01,
    beta: float = 0.0,
    batches: Literal["halves", "same", "pairs"] = "halves",
) -> Method:
    """Per-FedAvg: train for what the model becomes after one step, to first order.

    Paper:    Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A
              Model-Agnostic Meta-Learning Approach, NeurIPS 2020.
    Changes:  the gradient at w - alpha grad CE(w; b1) on b2; fine-tuning is one such step.
    Defaults: alpha = 0.01; the run's optimiser takes the outer step.
    Differs:  b1 and b2 are the halves of a step's batch; FedDW's code takes the same batch twice
              (batches) and outer steps of plain SGD at 0.001 (beta = 0.001). FedBABU's takes two
              batches in turn (batches = pairs), alpha = lr and beta = 0.1: one SGD with momentum
              makes both steps, so the inner gradient stays in the buffer of the outer step. Of L
              batches and E epochs it makes floor(L / E) + 1 pairs in each epoch, and begins again
              where batches run out: in the same order here, in another one there. Pairs are SGD
              with the run's momentum, whatever its optimiser, without weight decay or clipping,
              and nothing of it is kept; under --local.steps a last batch without a partner is left
              out. That code tests a model after two steps, of alpha and of beta in one buffer of
              momentum, which everybody makes on test examples of the client drawn last: here
              fine-tuning is one plain step of alpha on a batch of a client's own training examples.
    Uploads:  the model.

    Args:
      alpha: length of the inner step.
      beta: length of the outer step of plain SGD; 0 leaves it to the run's optimiser, with pairs to
        the run's learning rate.
      batches: adapt on one half of the batch and learn from the other, or the same twice, or the
        next batch.
    """
    not_negative("per_fedavg", alpha=alpha, beta=beta)

    def meta(value_and_grad, view: View):
        del view

        def at_adapted(trainable, stats, batch, key):
            first, second = halves(batch) if batches == "halves" else (batch, batch)
            _, grads = value_and_grad(trainable, stats, first, key)
            return value_and_grad(tree.sub(trainable, tree.scale(alpha, grads)), stats, second, key)

        return at_adapted

    ce = (terms.cross_entropy(),)
    phase = Phase(ce, grad=meta, optimizer=SGD(beta) if beta else None)
    if batches == "pairs":
        phase = Phase(
            ce,
            optimizer=lambda view: paired(view, alpha, beta=beta or view.info.lr),
            visits=lambda batches, epochs: 2 * (batches // epochs + 1),
        )
    return fedavg()._replace(phases=(phase,), finetune=(Phase(ce, optimizer=SGD(alpha), steps=1),))


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Splits a batch into two with every other real row each; a lone row is in both."""
    place = jnp.cumsum(batch.mask) - 1
    first = batch.mask & (place % 2 == 0)
    second = jnp.where(jnp.sum(batch.mask) > 1, batch.mask & ~first, batch.mask)
    return batch._replace(mask=first), batch._replace(mask=second)


class Paired(NamedTuple):
    """The state of Per-FedAvg's optimiser in FedBABU's code."""

    buffer: Any  # of momentum, for both kinds of steps
    home: Any  # parameters before the inner step
    count: jax.Array  # steps so far


def paired(view: View, alpha: float, beta) -> optax.GradientTransformation:
    """Makes the SGD that steps by alpha and then, from where it was, by beta, in one buffer."""

    def update(grads, state: Paired, params=None):
        inner = state.count % 2 == 0
        alone = inner & (state.count + 1 == view.info.num_steps)
        buffer = tree.add(tree.scale(view.info.momentum, state.buffer), grads)
        home = tree.select(inner, params, b=state.home)
        to = tree.sub(home, tree.scale(jnp.where(inner, alpha, beta), buffer))
        to = tree.select(alone, home, b=to)
        return tree.sub(params, to), Paired(buffer, home, count=state.count + 1)

    def init(params) -> Paired:
        return Paired(tree.zeros_like(params), params, count=jnp.zeros((), jnp.int32))

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


@base
def pfedme(
    *, lam: float = 15.0, steps: int = 5, alpha: float = 0.09, lr: float = 0.005, beta: float = 1.0
) -> Method:
    """pFedMe: train the point from which each client's own model is a short way.

    Paper:    T Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.
    Changes:  on each batch theta makes steps down CE + lambda/2 |theta - w|^2 from w, and w's
              gradient is lambda (w - theta); the server moves by beta times the mean update.
    Defaults: lambda = 15, 5 steps of 0.09, w's plain steps of 0.005, beta = 1: usual in other
              libraries, not compared with the authors' own.
    Differs:  theta starts at w on each batch, where the official code goes on from the last batch's
              and decays it by 0.001. The personal model is w after its training; theta, which
              the paper tests, is what fine-tuning gives: as many steps of alpha from the global
              model on random batches. BatchNorm statistics are of the last step, and averaged.
    Uploads:  the model.

    Args:
      lam: strength of the pull of theta towards w.
      steps: of theta on each batch.
      alpha: length of these steps.
      lr: length of w's steps of plain SGD; 0 leaves them to the run's optimiser.
      beta: step of the server along the mean update.
    """
    not_negative("pfedme", lam=lam, lr=lr, beta=beta)
    above_zero(steps=steps, alpha=alpha)

    def envelope(value_and_grad, view: View):
        del view

        def of_envelope(trainable, stats, batch, key):
            def step(theta, _):
                value, grads = value_and_grad(theta, stats, batch, key)
                slope = tree.add(grads, tree.scale(lam, tree.sub(theta, trainable)))
                return tree.sub(theta, tree.scale(alpha, slope)), value

            theta, values = lax.scan(step, trainable, length=steps)
            last = jax.tree.map(lambda value: value[-1], values)
            return last, tree.scale(lam, tree.sub(trainable, theta))

        return of_envelope

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        del shared
        step = Weights(tree.scale(beta, arrived.mean.params), arrived.mean.stats)
        return tree.add(arrived.sent, step)

    ce = terms.cross_entropy()
    own = Phase((ce, terms.prox(lam)), optimizer=SGD(alpha), steps=steps)
    phase = Phase((ce,), grad=envelope, optimizer=SGD(lr) if lr else None)
    return fedavg()._replace(phases=(phase,), server=server, finetune=(own,))
