"""Methods whose server takes the mean update for a gradient: FedAvgM and FedOpt's three."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Arrived, Method, Part, Setup, above_zero, not_negative
from fedjax_nc.methods.registry import base
from fedjax_nc.types import Weights


@base
def fedavgm(*, momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """FedAvgM: the server's step has momentum.

    Paper:    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated
              Visual Classification, arXiv 1909.06335, 2019.
    Changes:  v <- momentum v + D with D the mean update; w + server_lr v.
    Defaults: momentum 0.9, server step 1.
    Differs:  BatchNorm statistics are averaged, without momentum.
    Uploads:  the model.

    Args:
      momentum: what remains of the last round's step; 0 is FedAvg with the server's step.
      server_lr: step of the server along v.
    """
    not_negative("fedavgm", server_lr=server_lr)
    _decays(momentum=momentum)

    def reduce(v, uploads, arrived: Arrived):
        del uploads
        return tree.add(tree.scale(momentum, v), arrived.mean.params)

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        step = tree.scale(server_lr, shared["velocity"])
        return tree.add(arrived.sent, Weights(step, arrived.mean.stats))

    def zeros(setup: Setup):
        return tree.zeros_like(setup.weights.params)

    part = Part("velocity", zeros, reduce=reduce, send=lambda v: ())
    return fedavg()._replace(parts=(part,), server=server)


@base
def fedadagrad(*, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 0.001) -> Method:
    """FedAdagrad: the server divides its step by the root of all squared updates so far.

    Paper:    Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2.
    Changes:  m <- beta1 m + (1 - beta1) D, v <- v + D^2 with D the mean update; w + server_lr m /
              (sqrt(v) + tau).
    Defaults: server_lr = 0.1, beta1 = 0, tau = 0.001 (Flower); the paper tunes server_lr and tau
              for every task, to 0.1 and 0.01 on CIFAR.
    Differs:  v starts at tau^2, the least the paper allows. Clients have the run's weights in the
              mean, equal ones in algorithm 2. BatchNorm statistics are averaged. The rule is
              written out, not optax's, which is another: Adagrad has its constant under the root
              there, and Adam and Yogi correct the bias of their means.
    Uploads:  the model.

    Args:
      server_lr: step of the server.
      beta1: decay of the mean update.
      tau: keeps the step finite; the larger, the less adaptive.
    """
    return _adaptive(
        lambda v, square: v + square, "fedadagrad", server_lr=server_lr, beta1=beta1, tau=tau
    )


@base
def fedadam(
    *, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 0.001
) -> Method:
    """FedAdam: the server takes Adam's step, without its bias correction.

    Paper:    Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2.
    Changes:  m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D^2 with D the mean update; w
              + server_lr m / (sqrt(v) + tau).
    Defaults: server_lr = 0.01, beta1 = 0.9, beta2 = 0.99, tau = 0.001 (the paper's CIFAR-10, as
              Flower's replication of it has them; Flower's own server_lr is 0.1, of a step whose
              bias is corrected); the paper tunes server_lr and tau for every task.
    Differs:  as fedadagrad; optax's rule corrects the bias of m and v, the paper's does not.
    Uploads:  the model.

    Args:
      server_lr: step of the server.
      beta1: decay of the mean update.
      beta2: decay of its square.
      tau: keeps the step finite; the larger, the less adaptive.
    """
    _decays(beta2=beta2)

    def moved(v, square):
        return beta2 * v + (1 - beta2) * square

    return _adaptive(moved, "fedadam", server_lr=server_lr, beta1=beta1, tau=tau)


@base
def fedyogi(
    *, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 0.001
) -> Method:
    """FedYogi: FedAdam whose squares move by a fixed share of the newest, up or down.

    Paper:    Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2.
    Changes:  as fedadam with v <- v - (1 - beta2) D^2 sign(v - D^2).
    Defaults: server_lr = 0.01, beta1 = 0.9, beta2 = 0.99, tau = 0.001 (Flower); the paper tunes
              server_lr and tau for every task.
    Differs:  as fedadagrad; optax's rule corrects the bias of m and v, the paper's does not.
    Uploads:  the model.

    Args:
      server_lr: step of the server.
      beta1: decay of the mean update.
      beta2: one minus the share of the newest square.
      tau: keeps the step finite; the larger, the less adaptive.
    """
    _decays(beta2=beta2)

    def moved(v, square):
        return v - (1 - beta2) * square * jnp.sign(v - square)

    return _adaptive(moved, "fedyogi", server_lr=server_lr, beta1=beta1, tau=tau)


class Moments(NamedTuple):
    """The running mean of the updates and of their squares, which FedOpt's server keeps."""

    mean: Any
    square: Any


def _adaptive(moved: Callable, name: str, *, server_lr: float, beta1: float, tau: float) -> Method:
    """Makes FedOpt's method of the rule by which squares change (Reddi et al., algorithm 2).

    Optax's Adam and Yogi correct the bias, and its Adagrad has tau under the root: here is neither.

    Args:
      moved: (v, D^2) -> new v.
      name: the method's.
      server_lr: step of the server.
      beta1: decay of the mean update.
      tau: added to the root of v.
    """
    not_negative(name, server_lr=server_lr)
    above_zero(tau=tau)
    _decays(beta1=beta1)

    def begin(setup: Setup) -> Moments:
        params = setup.weights.params
        return Moments(
            tree.zeros_like(params), jax.tree.map(lambda p: jnp.full_like(p, tau**2), params)
        )

    def reduce(old: Moments, uploads, arrived: Arrived) -> Moments:
        del uploads
        change = arrived.mean.params
        mean = tree.add(tree.scale(beta1, old.mean), tree.scale(1 - beta1, change))
        return Moments(mean, jax.tree.map(lambda v, d: moved(v, d**2), old.square, change))

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        mean, square = shared["moments"]
        step = jax.tree.map(lambda m, v: server_lr * m / (jnp.sqrt(v) + tau), mean, square)
        return tree.add(arrived.sent, Weights(step, arrived.mean.stats))

    part = Part("moments", begin, reduce=reduce, send=lambda moments: ())
    return fedavg()._replace(parts=(part,), server=server)


def _decays(**hyper: float) -> None:
    """Refuses shares of the past that are below zero, or that nothing new is added to."""
    for name, value in hyper.items():
        if not 0 <= value < 1:
            raise UserError(f"{name} = {value}: give a number from zero to below one")
