"""Methods that calibrate logits or heads for clients' class frequencies: FedLC, Fed-RoD, CCVR."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_nc import linalg, losses
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Context,
    Method,
    Phase,
    Posthoc,
    Regulariser,
    View,
    above_zero,
    not_negative,
    per_example,
)
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import Batch, HeadSpec, Model, Outputs, Weights


@base
def fedlc(*, tau: float = 1.0, absent: Literal["one", "remove", "epsilon"] = "remove") -> Method:
    """FedLC: logits calibrated so that rare classes win by a larger margin.

    Paper:    Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration,
              ICML 2022.
    Changes:  CE on z_c - tau n_c^(-1/4).
    Defaults: tau = 1 (FL-bench, PFLlib); 10 (FedBlade), 0.1 (FedDecorr's code).
    Differs:  the paper leaves the true class out of the denominator, which collapses; public code
              keeps it, and so does this. An absent class is removed, as in FedDecorr's code.
    Uploads:  the model.

    Args:
      tau: strength of the margins; 0 is FedAvg.
      absent: how a class the client does not have counts.
    """
    not_negative("fedlc", tau=tau)

    def margin(c: Context) -> jax.Array:
        counts = c.info.class_counts
        return losses.margin_softmax(c.out.logits, c.batch.y, counts=counts, tau=tau, absent=absent)

    return fedavg()._replace(phases=(Phase((per_example("margin", margin),)),))


@base
def fedrod(
    *,
    gamma: float = 1.0,
    absent: Literal["one", "remove", "epsilon"] = "one",
    form: Literal["paper", "joint"] = "paper",
) -> Method:
    """Fed-RoD: a balanced generic head for everybody, a second one for the client.

    Paper:    Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image
              Classification, ICLR 2022; linear personal head.
    Changes:  body and generic head by CE(z + gamma log n_c); the personal head by CE of both
              logits' sum, without gradients into the rest. Global prediction by the first, personal
              by the sum.
    Defaults: gamma = 1, absent classes count once (FedETF's code).
    Differs:  both heads take the run's optimiser in one step; FedETF's code takes a plain step for
              the personal one. FL-bench trains both losses without stopping gradients and predicts
              with the personal logits alone (form = joint).
    Uploads:  body and generic head.

    Args:
      gamma: strength of the class counts.
      absent: how a class the client does not have counts.
      form: the paper's, or FL-bench's.
    """
    not_negative("fedrod", gamma=gamma)
    joint = form == "joint"

    def generic(c: Context) -> jax.Array:
        counts = c.info.class_counts
        return losses.balanced_softmax(
            c.out.logits, c.batch.y, counts=counts, gamma=gamma, absent=absent
        )

    def personal(c: Context) -> jax.Array:
        features, logits = c.out.features, c.out.logits
        if not joint:
            features, logits = lax.stop_gradient((features, logits))
        logits = own_logits(c.weights, features, logits=logits, joint=joint)
        return losses.cross_entropy(logits, c.batch.y)

    def predict(out: Outputs, weights: Weights, view: View) -> jax.Array:
        del view
        return own_logits(weights, out.features, logits=out.logits, joint=joint)

    phase = Phase((per_example("balanced", generic), per_example("own", personal)))
    return fedavg()._replace(
        head=HeadSpec(own=True), phases=(phase,), personal=("own_head",), predict=predict
    )


def own_logits(weights: Weights, features, logits, joint: bool) -> jax.Array:
    """Computes the personal head's logits, plus the generic ones unless trained jointly."""
    head = weights.params["own_head"]
    mine = features @ head["kernel"] + head["bias"]
    return mine if joint else logits + mine


class Moments(NamedTuple):
    """The number of features of each class, their mean, and their covariance or deviation."""

    count: jax.Array
    mean: jax.Array
    spread: jax.Array  # [c, d, d], or [c, d] of FedETF's code


@regulariser
def ccvr(
    *,
    samples: int = 2000,
    epochs: int = 10,
    lr: float = 0.01,
    rule: Literal["paper", "fedetf", "flbench"] = "paper",
) -> Regulariser:
    """CCVR: after the last round, the head learns from Gaussian features of every class.

    Paper:    Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning
              with Non-IID Data, NeurIPS 2021.
    Changes:  nothing in the rounds; class means and covariances of features, pooled over clients,
              give virtual features on which the head alone is trained.
    Defaults: 2000 features per class; 10 epochs of SGD at 0.01 in batches of 128.
    Differs:  FedETF's code means means and standard deviations over clients without weights, keeps
              the diagonal only, and takes 10 features and 100 epochs (rule). FL-bench's puts
              biased covariances into the unbiased formula, draws nothing of a class with one
              example in all, and trains on an epoch's incomplete last batch too, which is left out
              otherwise (rule); it takes 200 features, one epoch, and the run's batch size and
              learning rate. Features are gathered in evaluation mode. As in FedETF's code, clients
              also train once more from the calibrated model: `calibrated_personal_accuracy`.
    Uploads:  once C counts, C means and C d x d covariances.

    Args:
      samples: virtual features of each class.
      epochs: passes over them.
      lr: learning rate of plain SGD on them.
      rule: pooled covariances of the paper, FedETF's diagonal ones, or FL-bench's too small ones
        and its batches.
    """
    above_zero(samples=samples, epochs=epochs, lr=lr)

    def collect(out: Outputs, batch: Batch):
        member = jax.nn.one_hot(batch.y, out.logits.shape[-1], dtype=out.features.dtype)
        member = member * batch.mask[:, None]
        z = jnp.where(batch.mask[:, None], out.features, 0.0)
        return (jnp.sum(member, 0), member.T @ z, jnp.einsum("bc,bi,bj->cij", member, z, z))

    def upload(sums):
        if rule == "paper":
            return sums
        return (diagonal_upload if rule == "fedetf" else biased_upload)(*sums)

    def solve(model: Model, weights: Weights, sums, key: jax.Array) -> Weights:
        moments = diagonal_moments(sums) if rule == "fedetf" else pooled_moments(*sums)
        key_draw, key_order = jax.random.split(key)
        flbench = rule == "flbench"
        z, y, valid = virtual_features(key_draw, moments, samples=samples, least=1 + flbench)
        batch = min(128, len(y))
        if flbench:  # an epoch ends with an incomplete batch
            room = -len(y) % batch
            z, y, valid = (jnp.append(x, jnp.zeros_like(x[:room]), 0) for x in (z, y, valid))

        def loss(head, rows):
            _, logits = model.head({**weights.params, "head": head}, z[rows])
            return losses.masked_mean(losses.cross_entropy(logits, y[rows]), valid[rows])

        def epoch(head, key):
            order = jax.random.permutation(key, len(y))
            if flbench:  # batches are filled with features that count
                order = order[jnp.argsort(~valid[order])]
            order = order[: len(y) // batch * batch]

            def step(head, rows):
                grads = jax.grad(loss)(head, rows)
                return jax.tree.map(lambda p, g: p - lr * g, head, grads), None

            return lax.scan(step, head, order.reshape(-1, batch))

        head, _ = lax.scan(epoch, weights.params["head"], jax.random.split(key_order, epochs))
        return weights._replace(params={**weights.params, "head": head})

    return lambda method: method._replace(posthoc=Posthoc(collect, solve, upload=upload))


def pooled_moments(count: jax.Array, total: jax.Array, square: jax.Array) -> Moments:
    """Computes each class's mean and unbiased covariance from all clients' sums (CCVR, eq. 3-4).

    Sums of z and z z^T carry the same as the clients' means and covariances, and pool exactly.
    """
    mean = total / jnp.maximum(count, 1.0)[:, None]
    outer = mean[:, :, None] * mean[:, None, :]
    covariance = (square - count[:, None, None] * outer) / jnp.maximum(count - 1, 1)[:, None, None]
    return Moments(count, mean, spread=covariance)


def diagonal_upload(count: jax.Array, total: jax.Array, square: jax.Array):
    """Computes the means and deviations of a client's classes with two or more (FedETF's code)."""
    own = pooled_moments(count, total, square=square)
    variance = jnp.maximum(jnp.diagonal(own.spread, axis1=1, axis2=2), 0.0)
    kept = (count > 1).astype(total.dtype)
    std, mean = kept[:, None] * jnp.sqrt(variance), kept[:, None] * own.mean
    return kept, mean, std, mean**2


def biased_upload(count: jax.Array, total: jax.Array, square: jax.Array):
    """Computes what FL-bench's (n - 1) times a client's biased covariances stand for.

    That is each class's sum of z z^T less one biased covariance, which is scatter / n.
    """
    own = pooled_moments(count, total, square=square)
    biased = own.spread * (jnp.maximum(count - 1, 0) / jnp.maximum(count, 1))[:, None, None]
    return count, total, square - biased


def diagonal_moments(sums) -> Moments:
    """Pools clients' moments as FedETF's code does.

    The deviation is mean std + mean of squared means - squared mean.
    """
    clients, mean, std, square = sums
    share = 1.0 / jnp.maximum(clients, 1.0)[:, None]
    mean = share * mean
    return Moments(clients, mean, spread=jnp.maximum(share * std + share * square - mean**2, 0.0))


def virtual_features(key: jax.Array, moments: Moments, samples: int, least: int = 1):
    """Draws Gaussian features of every class; returns them, their labels and which ones count.

    Those of a class with fewer than the `least` examples do not.
    """
    classes, width = moments.mean.shape
    noise = jax.random.normal(key, (classes, samples, width), moments.mean.dtype)
    if moments.spread.ndim == 2:
        deviation = noise * moments.spread[:, None]
    else:
        roots = jax.vmap(linalg.root)(moments.spread)  # fewer samples than features: singular
        deviation = jnp.einsum("cnk,cdk->cnd", noise, roots)
    z = moments.mean[:, None] + deviation
    y = jnp.repeat(jnp.arange(classes), samples)
    return z.reshape(-1, width), y, jnp.repeat(moments.count >= least, samples)
