"""Methods that listen to another model: the received one, or the client's previous one."""

from fedjax_nc import losses
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Context, Method, Part, Regulariser, Term, add, mix
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import FEATURES, HeadSpec


@base
def moon(*, mu: float = 1.0, tau: float = 0.5, dim: int = 256) -> Method:
    """MOON: model-contrastive learning with the global and the previous local model.

    Paper:    Li et al., Model-Contrastive Federated Learning, CVPR 2021.
    Changes:  + mu * contrastive loss on a two-layer projection before the head.
    Defaults: mu = 1, tau = 0.5 (FedDr+, FedAlign), dimension 256 (official code).
    Differs:  a client's previous model starts as the initial global model (FedDr+, FedAlign code);
              the official code leaves the term out until a client has a previous model.
    Uploads:  the model with its projector.

    Args:
      mu: weight of the contrastive term.
      tau: temperature of the similarities.
      dim: output width of the projector; 0 leaves the projector out, as FedDr+'s code.
    """
    head = HeadSpec(projector=(FEATURES, dim) if dim else ())
    term = contrastive(tau)._replace(weight=mu)
    return add(fedavg()._replace(head=head), term, parts=(previous_model(),))


@regulariser
def moon_reg(*, beta: float = 0.9, tau: float = 0.5) -> Regulariser:
    """MOON's term on any method: beta L + (1 - beta) L_moon.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.4.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
      tau: temperature of the similarities.
    """
    return lambda method: mix(method, contrastive(tau), beta, parts=(previous_model(),))


@regulariser
def fd(*, beta: float = 0.9) -> Regulariser:
    """Feature distillation from the received model: beta L + (1 - beta) L_FD.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.2.
    Changes:  + mean squared distance of raw features to the received model's.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
    """

    def fn(c: Context):
        values = losses.feature_l2(c.out.features, c.ref().features)
        return losses.masked_mean(values, c.batch.mask)

    return lambda method: mix(method, Term("fd", fn), beta)


def contrastive(tau: float) -> Term:
    """MOON's term, equation 3."""

    def fn(c: Context):
        z, z_global, z_previous = c.out, c.ref("global"), c.ref("previous")
        values = losses.model_contrastive(
            z.projected, z_global.projected, z_previous.projected, tau
        )
        return losses.masked_mean(values, c.batch.mask)

    return Term("moon", fn)


def previous_model() -> Part:
    """Each client's own model at the end of its last round."""
    return Part("previous", init_client=lambda s: s.weights, keep=lambda f: f.weights)
