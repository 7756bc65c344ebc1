"""Methods that change the local gradient or the server's average."""

import jax
import jax.numpy as jnp

from fedjax_nc import tree
from fedjax_nc.methods import terms
from fedjax_nc.methods.base import Finished, Method, Part, Phase, Regulariser, Setup, View, add, mix
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import HeadSpec


@base
def fedavg() -> Method:
    """FedAvg: local cross-entropy, weighted mean of the models.

    Paper:    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
              Data, AISTATS 2017.
    Changes:  nothing; this is the baseline.
    Uploads:  the model.
    """
    finetune = (Phase((terms.cross_entropy(),), epochs=5),)
    return Method("fedavg", HeadSpec(), (Phase((terms.cross_entropy(),)),), finetune=finetune)


@base
def fedprox(*, mu: float = 0.01) -> Method:
    """FedProx: FedAvg plus a pull towards the received model.

    Paper:    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
    Changes:  + mu/2 |w - w_g|^2 over all trained parameters.
    Defaults: mu = 0.01 (FedBlade, FedDW's code); 0.001 (FedDr+, FedETF), 0.0001 (FedAlign).
    Differs:  loss form inside the optimiser; FedETF's code adds the pull to plain SGD instead.
    Uploads:  the model.

    Args:
      mu: strength of the pull.
    """
    return add(fedavg(), terms.prox(mu))


@regulariser
def prox(*, beta: float = 0.9) -> Regulariser:
    """Proximal regulariser: beta L + (1 - beta) 1/2 |w - w_g|^2.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.4.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
    """
    return lambda method: mix(method, terms.prox(1.0), beta)


@base
def scaffold(*, server_lr: float = 1.0, adaptive: bool = True) -> Method:
    """SCAFFOLD: gradients corrected by control variates.

    Paper:    Karimireddy et al., SCAFFOLD, ICML 2020, option II.
    Changes:  each gradient g becomes g - c_k + c; c_k is refreshed from the local update.
    Defaults: server step 1; divisor adapted to momentum, as FedNTD's and FedDr+'s code.
    Differs:  the paper divides by K lr, which holds for plain SGD only: with momentum 0.9 it is
              ten times too small, so the divisor counts momentum's effective steps instead.
    Uploads:  the model and a control variate of its size.

    Args:
      server_lr: step of the server along the mean update.
      adaptive: count momentum's effective steps in the control variate's divisor.
    """

    def correct(value_and_grad, view: View):
        drift = tree.sub(view.shared["control"], view.client["control"])

        def corrected(trainable, *args):
            value, grads = value_and_grad(trainable, *args)
            return value, tree.add(grads, tree.pick(drift, tuple(trainable)))

        return corrected

    def step(received, mean_update):
        return tree.add(received, tree.scale(server_lr, mean_update))

    method = fedavg()
    return method._replace(
        phases=tuple(p._replace(grad=correct) for p in method.phases),
        parts=(control_variates(adaptive),), server=step)  # fmt: skip


def control_variates(adaptive: bool) -> Part:
    """c and c_k: c_k' = c_k - c + (w_g - w_k) / (K lr); the server adds the mean change."""

    def zeros(setup: Setup):
        return tree.zeros_like(setup.weights.params)

    def new(f: Finished):
        return control_variate(
            f.client["control"], f.shared["control"], f.received.params, f.weights.params,
            f.info.num_steps, f.info.lr, f.info.momentum if adaptive else 0.0)  # fmt: skip

    def collect(f: Finished):
        return tree.sub(new(f), f.client["control"])

    def reduce(c, total, setup: Setup):
        return tree.add(c, tree.scale(1.0 / setup.num_clients, total))

    return Part("control", zeros, zeros, keep=new, collect=collect, reduce=reduce)


def control_variate(ci, c, received, local, steps, lr, momentum):
    """SCAFFOLD's option II with K' = (K - m (1 - m^K) / (1 - m)) / (1 - m) effective steps."""
    effective = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    scale = 1.0 / (jnp.maximum(effective, 1.0) * lr)
    return jax.tree.map(lambda i, g, x, y: i - g + scale * (x - y), ci, c, received, local)
