"""Methods that change the forward pass: FedAlign and the regularisers it is compared with."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fedjax_nc import losses
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Context,
    Method,
    Regulariser,
    Term,
    add,
    clipped,
    each_phase,
    not_negative,
)
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import Batch, Model, narrow


@base
def fedalign(
    *,
    mu: float = 0.45,
    width: float = 0.25,
    cut: bool = True,
    relative: bool = True,
    clip: float = 10.0,
) -> Method:
    """FedAlign: the last stage and a narrow copy of it transmit with the same Lipschitz constant.

    Paper:    Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated
              Learning, CVPR 2022, section 4.
    Changes:  + mu L_lip, the squared gap between the spectral norms of two transmitting matrices.
    Defaults: width 0.25, mu = 0.45 (tables 6-10).
    Differs:  as the code, the narrow stage gets only the first channels (cut; eq. 7 has all), the
              term is scaled to the size of the cross-entropy (relative; eq. 5 is not, and its
              matrices are sums over positions), gradients are cut at norm 10 (clip).
              Narrow passes use the batch's statistics.
    Uploads:  the model.

    Args:
      mu: weight of the term.
      width: share of the channels the narrow stage has.
      cut: give the narrow stage that share of its input's channels, or all of them.
      relative: scale the term by cross-entropy / term, both held constant.
      clip: norm at which gradients are cut; 0 does not.
    """
    not_negative("fedalign", mu=mu, width=width, clip=clip)
    method = align(mu=mu, width=width, cut=cut, relative=relative)(fedavg())
    return each_phase(method, grad=clipped(clip))


@regulariser
def align(
    *, mu: float = 0.45, width: float = 0.25, cut: bool = True, relative: bool = True
) -> Regulariser:
    """FedAlign's term on any method: L + mu L_lip.

    Paper:    Mendieta et al., FedAlign, CVPR 2022, section 4.
    Uploads:  nothing more.

    Args:
      mu: weight of the term.
      width: share of the channels the narrow stage has.
      cut: give the narrow stage that share of its input's channels, or all of them.
      relative: scale the term by cross-entropy / term, both held constant.
    """
    not_negative("align", mu=mu, width=width)

    def constant(before, after):
        return losses.spectral_norm(losses.transmitting_matrix(before, after))

    def lipschitz_gap(c: Context) -> jax.Array:
        before, after = (lax.stop_gradient(m) for m in c.out.blocks[-2:])
        part = before[..., : narrow(before.shape[-1], width)] if cut else before
        assert c.model.last_stage is not None
        output = c.model.last_stage(c.weights, part, width=width, mask=c.batch.mask)
        gap = constant(part, output) - constant(before, after)
        value = losses.masked_mean(gap**2, c.batch.mask)
        if not relative:  # eqs. 6-7 sum over positions, the code's matrices are means
            return value * (after.shape[1] * after.shape[2]) ** 2
        ratio = terms.cross_entropy().fn(c) / jnp.maximum(value, 1e-12)
        return value * lax.stop_gradient(ratio)

    def check(model: Model, batch_size: int) -> None:
        del batch_size
        if model.last_stage is None:
            raise UserError(
                "fedalign narrows the last stage, and this model has none: choose a residual "
                "network, e.g. --model=resnet8, and images"
            )
        if not 0 < width <= 1:
            raise UserError(f"width = {width} of fedalign: give a share above 0, at most 1")

    return lambda method: add(method, Term("lipschitz", lipschitz_gap, weight=mu, check=check))


@base
def gradaug(
    *,
    mu: float = 1.75,
    subnets: int = 2,
    min_width: float = 0.8,
    rule: Literal["code", "paper"] = "code",
) -> Method:
    """GradAug: narrow sub-networks on resized images learn from the whole network.

    Paper:    Yang et al., GradAug: A New Regularization Method for Deep Neural Networks, NeurIPS
              2020; in federated learning by Mendieta et al., FedAlign, CVPR 2022.
    Changes:  + mu sum_i KL(whole || sub-network i), gradients into the sub-networks only.
    Defaults: two sub-networks, widths from 0.8, mu = 1.75 (FedAlign, tables 6-10); widths as
              FedAlign's and GradAug's code, by which those tables were made.
    Differs:  in the code the first sub-network always has the least width, the others a uniform
              one; FedAlign's text draws all (rule). Sides are 1, 7/8, 3/4 or 5/8 of the image's: 32
              to 20. Every width is a compiled branch: clients should run one by one, not under
              vmap; in a bottleneck network widths with equal inner channels share one, the
              widest's. With one sub-network ResNet-56 costs 127.7 MFLOPs, with a drawn one 140.7;
              FedAlign's table 5 prints 133.9, by a mean width on a mean side, and for two and more
              adds one of the least width to mean ones.
    Uploads:  the model.

    Args:
      mu: weight of the distillation.
      subnets: how many sub-networks.
      min_width: least share of the channels.
      rule: the first sub-network has the least width as in the code, or all widths are drawn.
    """
    not_negative("gradaug", mu=mu, subnets=subnets, min_width=min_width)

    def distillation(c: Context) -> jax.Array:
        x, teacher = c.batch.x, lax.stop_gradient(c.out.logits)
        sides = [round(x.shape[1] * share) for share in (1, 7 / 8, 3 / 4, 5 / 8)]
        widths, shares = distinct_widths(c.model.channels, min_width)
        branches = [
            lambda x, w=w, s=s: c.forward(resize(x, s), w).logits for w in widths for s in sides
        ]
        # FedAlign's tables are no count of these passes: they take a sub-network for (width times
        # side / 32)^2 of the whole, with 26 for the side, and 0.9 for the width in table 5's n = 1
        # (133.9), 0.8 in table 7's (25.3) and once in all larger n, the others at 0.9. That gives
        # 133.9, 170.8 (printed: 170.7), 217.4 and 264.1; widths here are multiples of 8 channels.
        key_width, key_side = jax.random.split(c.key)
        width = jax.random.categorical(key_width, jnp.log(jnp.asarray(shares)), shape=(subnets,))
        side = jax.random.randint(key_side, (subnets,), 0, len(sides))
        width = width.at[0].set(0) if rule == "code" else width
        chosen = width * len(sides) + side

        def learn(branch):
            logits = lax.switch(branch, branches, x)
            return losses.masked_mean(losses.kd(logits, teacher), c.batch.mask)

        return jnp.sum(lax.map(learn, chosen))

    def check(model: Model, batch_size: int) -> None:
        del batch_size
        if not model.channels:
            raise UserError(
                "gradaug narrows the network, and this model has one width only: choose a residual "
                "network, e.g. --model=resnet8, and images"
            )
        if not 0 < min_width <= 1 or not subnets:
            raise UserError(
                f"gradaug with {subnets} sub-networks from width {min_width}: give at least one, "
                "and a share above 0, at most 1"
            )

    return add(fedavg(), Term("gradaug", distillation, weight=mu, check=check))


def distinct_widths(channels: tuple[int, ...], least: float) -> tuple[list[float], list[float]]:
    """Returns widths from the least to 1 that differ in channels, and the probability of each."""
    found: dict[tuple[int, ...], list[float]] = {}
    for width in np.linspace(least, 1.0, 201):
        found.setdefault(tuple(narrow(c, width) for c in channels), []).append(float(width))
    groups = list(found.values())
    return [group[-1] for group in groups], [len(group) / 201 for group in groups]


@base
def mixup(*, gamma: float = 0.1) -> Method:
    """Mixup: FedAvg on convex combinations of two images and their losses.

    Paper:    Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018; in federated
              learning by Mendieta et al., FedAlign, CVPR 2022.
    Changes:  x = l x_i + (1 - l) x_j, loss = l CE(y_i) + (1 - l) CE(y_j), l of Beta(gamma, gamma).
    Defaults: gamma = 0.1 (FedAlign).
    Uploads:  the model.

    Args:
      gamma: of the Beta distribution; 0 mixes nothing.
    """
    not_negative("mixup", gamma=gamma)
    return mixup_reg(gamma=gamma)(fedavg())


@regulariser
def mixup_reg(*, gamma: float = 0.1) -> Regulariser:
    """Mixed images for any method: every term is mixed over the two labels.

    Paper:    Zhang et al., mixup, ICLR 2018.
    Uploads:  nothing more.

    Args:
      gamma: of the Beta distribution; 0 mixes nothing.
    """
    not_negative("mixup", gamma=gamma)
    if not gamma:
        return lambda method: method
    return lambda m: each_phase(m, augment=lambda batch, key: mixed(batch, key, gamma=gamma))


def mixed(batch: Batch, key: jax.Array, gamma: float) -> tuple[tuple[Batch, jax.Array], ...]:
    """Mixes every image with another one by one share; padding stays with padding."""
    key_share, key_order = jax.random.split(key)
    share = jax.random.beta(key_share, gamma, gamma).astype(batch.x.dtype)
    draw = jax.random.uniform(key_order, batch.mask.shape)
    real = jnp.argsort(jnp.where(batch.mask, draw, 2.0))  # the real rows in random order
    place = jnp.argsort(~batch.mask, stable=True)  # where the real rows are
    other = jnp.zeros_like(real).at[place].set(real)
    x = share * batch.x + (1 - share) * batch.x[other]
    return (
        (batch._replace(x=x), share),
        (batch._replace(x=x, y=batch.y[other]), 1 - share),
    )


@base
def stochdepth(*, last: float = 0.9, rule: Literal["code", "paper"] = "code") -> Method:
    """StochDepth: FedAvg whose residual blocks are left out now and then in training.

    Paper:    Huang et al., Deep Networks with Stochastic Depth, ECCV 2016; in federated learning by
              Mendieta et al., FedAlign, CVPR 2022.
    Changes:  block l is kept with probability p_l, falling linearly to the last one's; tests
              multiply its branch by p_l.
    Defaults: the last block is kept with 0.9 (FedAlign); probabilities fall as in FedAlign's code,
              by which its tables were made.
    Differs:  in that code the first block is always kept; the paper's rule, 1 - l/L (1 - p_L),
              starts below 1 (rule). A block that is left out is computed and multiplied by zero,
              so ResNet-56 costs FedAvg's 87.3 MFLOPs, where FedAlign's table 5 has 82.4.
    Uploads:  the model.

    Args:
      last: probability that the last block is kept.
      rule: how the probability falls, as FedAlign's code or as the paper.
    """
    return stochdepth_reg(last=last, rule=rule)(fedavg())


@regulariser
def stochdepth_reg(*, last: float = 0.9, rule: Literal["code", "paper"] = "code") -> Regulariser:
    """Stochastic depth for any method on a residual network.

    Paper:    Huang et al., Deep Networks with Stochastic Depth, ECCV 2016.
    Uploads:  nothing more.

    Args:
      last: probability that the last block is kept.
      rule: how the probability falls, as FedAlign's code or as the paper.
    """
    if not 0 < last <= 1:
        raise UserError(f"last = {last} of stochdepth: give a probability above 0, at most 1")
    return lambda method: method._replace(survival=lambda blocks: kept(blocks, last, rule=rule))


def kept(blocks: int, last: float, rule: str) -> tuple[float, ...]:
    """Returns the probability of every residual block to be kept in training."""
    first = 1.0 if rule == "code" else 1 - (1 - last) / blocks
    return tuple(float(p) for p in np.linspace(first, last, blocks))


def resize(x: Float[Array, "b h w c"], side: int) -> Float[Array, "b s s c"]:
    """Resizes images to squares, bilinear with aligned corners as GradAug's code has it."""
    across, down = (_aligned(n, side) for n in (x.shape[2], x.shape[1]))
    x = jnp.einsum("jk,bikc->bijc", across, x, precision="highest")
    return jnp.einsum("ik,bkjc->bijc", down, x, precision="highest")


def _aligned(n: int, side: int) -> Float[Array, "s n"]:
    place = jnp.linspace(0.0, n - 1.0, side)
    return jnp.maximum(0, 1 - jnp.abs(place[:, None] - jnp.arange(n)))
