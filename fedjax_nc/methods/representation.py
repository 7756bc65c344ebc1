"""Methods that shape the feature space: decorrelation and prototypes."""

from typing import Literal

import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.errors import UserError
from fedjax_nc.methods import parts, terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Context,
    Method,
    Regulariser,
    Term,
    above_zero,
    add,
    clipped,
    each_phase,
    no_effect,
    not_negative,
    per_example,
)
from fedjax_nc.methods.fixed_head import fedetf
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import Model


@base
def feddecorr(*, beta: float = 0.1, scale: Literal["code", "paper"] = "code") -> Method:
    """FedDecorr: FedAvg with features that are uncorrelated over a batch.

    Paper:    Shi et al., Towards Understanding and Mitigating Dimensional Collapse in
              Heterogeneous Federated Learning, ICLR 2023.
    Changes:  + beta/B mean_{i != j} M_ij^2, M = Z^T Z of the standardised features.
    Defaults: beta = 0.1 (official code, FedBlade).
    Differs:  the paper's and FedBlade's equation 8, |K|_F^2 / d^2 of the correlation K, is about B
              times smaller (scale); 0.1 belongs to the code's.
    Uploads:  the model.

    Args:
      beta: weight of the decorrelation.
      scale: the released code's, or that of the papers' equations.
    """
    not_negative("feddecorr", beta=beta)
    return decorr(beta=beta, kind="feddecorr" if scale == "code" else "correlation")(fedavg())


@regulariser
def decorr(
    *, beta: float = 0.1, kind: Literal["feddecorr", "correlation", "lddecorr"] = "feddecorr"
) -> Regulariser:
    """Decorrelated features on any method: L + beta L_decorr.

    Paper:    Shi et al., FedDecorr, ICLR 2023; FedBlade, eq. 11, for lddecorr.
    Uploads:  nothing more.

    Args:
      beta: weight of the decorrelation; 0.1 belongs to feddecorr, 0.005 to lddecorr.
      kind: FedDecorr's squared correlations on its code's scale or on its paper's, or FedBlade's
        log-determinant.
    """
    not_negative("decorr", beta=beta)
    return lambda method: add(method, decorrelation(kind)._replace(weight=beta))


def decorrelation(kind: str) -> Term:
    """Returns FedDecorr's or FedBlade's term on the body's features."""
    loss = {
        "feddecorr": losses.frobenius,
        "correlation": losses.squared_correlation,
        "lddecorr": losses.log_det,
    }[kind]

    def check(model: Model, batch_size: int) -> None:
        del model
        if batch_size < 2:
            raise UserError(
                f"{kind} correlates features over a batch: give --local.batch_size of 2 or more, "
                f"not {batch_size}"
            )

    return Term(kind, lambda c: loss(c.out.features, c.batch.mask), check=check)


@base
def feduv(*, lam: float = 2.5, mu: float = 0.5) -> Method:
    """FedUV: softmax outputs vary and features spread as on balanced data.

    Paper:    Son et al., FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR
              2024.
    Changes:  + lambda mean_c max(0, 1/sqrt(C) - std_c) + mu mean_ij exp(-D_ij / median D).
    Defaults: lambda = 2.5, mu = 0.5 (official code, FedDW's).
    Differs:  a batch of one gives zero, where the code breaks.
    Uploads:  the model.

    Args:
      lam: weight of the variance of softmax outputs.
      mu: weight of the uniformity of features.
    """
    not_negative("feduv", lam=lam, mu=mu)

    def variance(c: Context):
        return losses.class_variance(c.out.logits, c.batch.mask)

    def uniform(c: Context):
        return losses.uniformity(c.out.features, c.batch.mask)

    return add(
        fedavg(), Term("variance", variance, weight=lam), Term("uniformity", uniform, weight=mu)
    )


@base
def fedrcl(
    *,
    contrast: float = 1.0,
    penalty: float = 1.0,
    tau: float = 0.05,
    threshold: float = 0.7,
    beta: float = 1.0,
    clip: float = 10.0,
) -> Method:
    """FedRCL: supervised contrast on every level of the network, relaxed against collapse.

    Paper:    Seo et al., Relaxed Contrastive Learning for Federated Learning, CVPR 2024.
    Changes:  + mean over levels of L_scl + L_pen on pooled maps before their ReLU.
    Defaults: tau = 0.05, threshold 0.7, both weights 1, gradients cut at norm 10 (official code).
              FedBlade: "weight 0.7, temperature 0.1".
    Differs:  all levels the model has, stem and stages; the code takes its first five. The code's
              own beta adds log(beta) / tau to negatives, which may be what FedBlade means.
    Uploads:  the model.

    Args:
      contrast: weight of the supervised contrast.
      penalty: weight of what keeps a class from collapsing.
      tau: temperature of the cosines.
      threshold: cosine below which vectors of a class do not repel.
      beta: weight of negatives in the denominator, by its logarithm over tau.
      clip: norm at which gradients are cut; 0 does not.
    """
    not_negative("fedrcl", contrast=contrast, penalty=penalty, threshold=threshold, clip=clip)
    above_zero(tau=tau, beta=beta)

    def relaxed(c: Context):
        values = [
            losses.relaxed_contrast(
                z, c.batch.y, mask=c.batch.mask, tau=tau, threshold=threshold, beta=beta
            )
            for z in c.out.levels
        ]
        each = [losses.masked_mean(contrast * a + penalty * b, c.batch.mask) for a, b in values]
        return jnp.mean(jnp.stack(each))

    return each_phase(add(fedavg(), Term("relaxed_contrast", relaxed)), grad=clipped(clip))


@base
def fedblade(
    *,
    beta: float = 0.005,
    gamma: float = 1.0,
    tau: float = 0.1,
    decorr: Literal["lddecorr", "feddecorr", "correlation", "none"] = "lddecorr",
    feature_alignment: bool = True,
    distribution_factor: bool = True,
    projector_alignment: bool = True,
    absent: Literal["one", "remove", "epsilon"] = "one",
    dim: int = 0,
) -> Method:
    """FedBlade: FedETF with decorrelated features and prototypes that align body and projector.

    Paper:    anonymous, Stabilizing Heterogeneous Federated Learning via Feature Decorrelation and
              Bilateral Alignment, under review 2025, eqs. 11-17, algorithm 1.
    Changes:  FedETF + beta L_LDDecorr + gamma (L_PA + L_FA); global prototypes of every class.
    Defaults: beta = 0.005, gamma = 1, tau = 0.1 (appendix D); projector of width C, as FedETF.
    Differs:  no code is public. Correlations are of the body's output, standardised as FedDecorr's
              code. Before a class has a prototype its alignment terms are zero; a class nobody has
              in a round keeps its old one (eq. 14 is 0/0). Absent classes count once, as FedETF's
              code; the letter of eqs. 12 and 16 is absent = remove.
    Uploads:  body, projector, scale, C prototypes and C counts.

    Args:
      beta: weight of the decorrelation.
      gamma: weight of both alignments (PBA); 0 leaves them out.
      tau: temperature of the feature alignment.
      decorr: log-determinant, or FedDecorr's term instead as its code has it or as equation 8, or
        none (table 3, figure 3).
      feature_alignment: L_FA (table 4, FA).
      distribution_factor: class counts in L_FA (table 4, DF).
      projector_alignment: L_PA (table 4, PA).
      absent: how a class the client does not have counts in both balanced losses.
      dim: width of the projector and the ETF; 0 means the number of classes.
    """
    not_negative("fedblade", beta=beta, gamma=gamma, dim=dim)
    above_zero(tau=tau)
    if decorr == "none":
        no_effect("fedblade", "decorr='none'", beta=(beta, 0.005))

    def align_projector(c: Context):
        known = c.shared["prototypes"]
        projected, _ = c.model.head(c.weights.params, known.mean)
        return losses.projector_alignment(projected, terms.class_vectors(c), seen=known.seen)

    def align_features(c: Context):
        known = c.shared["prototypes"]
        shift = losses.log_prior(c.info.class_counts, absent)
        shift = shift if distribution_factor else jnp.zeros_like(shift)
        return losses.prototype_contrast(
            c.out.features, c.batch.y, prototypes=known.mean, seen=known.seen, shift=shift, tau=tau
        )

    extra = [] if decorr == "none" else [decorrelation(decorr)._replace(weight=beta)]
    if projector_alignment and gamma:
        extra.append(Term("projector_alignment", align_projector, weight=gamma))
    if feature_alignment and gamma:
        extra.append(per_example("feature_alignment", align_features, weight=gamma))
    uses = bool(gamma) and (projector_alignment or feature_alignment)
    return add(fedetf(dim=dim, absent=absent), *extra, parts=(parts.prototypes(),) if uses else ())
