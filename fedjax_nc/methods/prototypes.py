"""Methods that share class means: FedProto, FedFM, FedNH."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import linalg, losses, tree
from fedjax_nc.methods import parts, terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Arrived,
    Context,
    Finished,
    Method,
    Part,
    Phase,
    Setup,
    View,
    above_zero,
    add,
    clipped,
    not_negative,
    per_example,
)
from fedjax_nc.methods.registry import base
from fedjax_nc.types import Batch, HeadSpec, Outputs, Weights


@base
def fedproto(
    *,
    lam: float = 1.0,
    average: bool = True,
    weighted: bool = False,
    history: bool = False,
    predict: Literal["head", "nearest"] = "head",
) -> Method:
    """FedProto: features are drawn to the mean prototype of their class.

    Paper:    Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI
              2022.
    Changes:  + lambda mean (z - P_y)^2; P_c is the mean of the clients' prototypes.
    Defaults: lambda = 1 (original, FedDW, FedBlade); 0.1 (FedETF's code). Models are averaged too,
              as FedBlade's numbers imply.
    Differs:  the original and FedETF average no models (average) and predict by the nearest
              prototype (predict); FedDW weighs prototypes by counts (weighted), and its code
              averages those of all past rounds, since it never clears its lists (history); there
              z is what the convolutions give, before FedDW's two dense layers, here it is what the
              class vectors see. Local prototypes are of the new local model, the original takes
              features seen during its last epoch.
    Uploads:  C prototypes and which exist; with averaging the model.

    Args:
      lam: weight of the term.
      average: average the models as FedAvg; otherwise only prototypes travel.
      weighted: weigh a client's prototype by how many samples it is of.
      history: average the prototypes of all past rounds, not of the last alone.
      predict: personal prediction by the head or by the nearest prototype.
    """
    not_negative("fedproto", lam=lam)

    def distance(c: Context) -> jax.Array:
        known, y = c.shared["prototypes"], c.batch.y
        return losses.prototype_l2(c.out.features, known.mean[y], seen=known.seen[y])

    def nearest(out: Outputs, weights: Weights, view: View) -> jax.Array:
        del weights
        known = view.shared["prototypes"]
        gaps = out.features[:, None] - known.mean
        return jnp.where(known.seen, -jnp.sum(gaps**2, axis=-1), -1e9)

    term = per_example("prototypes", distance, weight=lam)
    method = add(fedavg(), term, parts=(parts.prototypes(weighted, history),))
    method = method if average else method._replace(personal=("body", "head"), finetune=())
    return method._replace(predict=nearest) if predict == "nearest" else method


class Anchors(NamedTuple):
    """FedFM's class means, which of them exist, and the rounds so far."""

    mean: jax.Array
    seen: jax.Array
    rounds: jax.Array


@base
def fedfm(
    *,
    lam: float = 1.0,
    tau: float = 0.1,
    start: int = 0,
    matching: Literal["contrast", "l2"] = "contrast",
) -> Method:
    """FedFM: features are matched to anchors measured with the new global model.

    Paper:    Ye et al., FedFM: Anchor-based Feature Matching for Data Heterogeneity in Federated
              Learning, IEEE TSP 2023.
    Changes:  + lambda CE(cos(z, A_c) / tau, y); after averaging, the participants send class means
              under the new model.
    Defaults: lambda = 1, tau = 0.1 (FedBlade); official 50 from round 20 on.
    Differs:  a class no participant has keeps its anchor, where the official code has 0/0. Until a
              class has an anchor, its examples give zero and others do not see it.
    Uploads:  the model, C means and C counts, in two exchanges.

    Args:
      lam: weight of the term.
      tau: temperature of the cosines.
      start: rounds without the term.
      matching: contrast with all anchors, or distance to the own one.
    """
    not_negative("fedfm", lam=lam, start=start)
    above_zero(tau=tau)

    def match(c: Context) -> jax.Array:
        anchors, y = c.shared["anchors"], c.batch.y
        if matching == "l2":
            values = losses.prototype_l2(
                c.out.features, anchors.mean[y], seen=anchors.seen[y], unit=True
            )
        else:
            values = losses.prototype_contrast(
                c.out.features,
                y,
                prototypes=anchors.mean,
                seen=anchors.seen,
                shift=jnp.zeros(len(anchors.mean)),
                tau=tau,
            )
        return jnp.where(anchors.rounds >= start, values, 0.0)

    def empty(setup: Setup) -> Anchors:
        none = parts.no_class_means(setup)
        return Anchors(none.mean, none.seen, rounds=jnp.zeros((), jnp.int32))

    def exchange(out: Outputs, batch: Batch) -> losses.ClassSums:
        return losses.class_sums(
            out.features, batch.y, mask=batch.mask, classes=out.logits.shape[-1]
        )

    def reduce(old: Anchors, sums: losses.ClassSums, arrived: Arrived) -> Anchors:
        del arrived
        mean = jnp.where((sums.count > 0)[:, None], sums.mean, old.mean)
        return Anchors(mean, old.seen | (sums.count > 0), rounds=old.rounds + 1)

    part = Part("anchors", empty, reduce=reduce, exchange=exchange)
    return add(fedavg(), per_example("matching", match, weight=lam), parts=(part,))


@base
def fednh(
    *,
    rho: float = 0.9,
    scale: float = 0.0,
    clip: float = 10.0,
    form: Literal["authors", "fedetf"] = "authors",
) -> Method:
    """FedNH: class vectors spread out at the start and moved by the server towards prototypes.

    Paper:    Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes,
              AAAI 2023.
    Changes:  cosine logits with fixed vectors W; W <- rho W + (1 - rho) prototypes, normalised.
    Defaults: rho = 0.9 (FedETF); learnable scale from 1, gradients cut at norm 10.
    Differs:  the authors' code fixes the scale at 30 for some data (scale). FedETF's code means raw
              features and weighs neither classes nor clients (form).
    Uploads:  body, scale, C prototypes.

    Args:
      rho: how much of the old class vectors stays.
      scale: of the cosines; 0 learns it.
      clip: norm at which gradients are cut.
      form: prototypes as the authors' code or as FedETF's.
    """
    not_negative("fednh", rho=rho, scale=scale, clip=clip)
    authors = form == "authors"

    def scaled(c: Context) -> jax.Array:
        return losses.cross_entropy(c.out.logits * (scale or 1.0), c.batch.y)

    def collect(f: Finished):
        sums = parts.per_class(lambda out: out.projected if authors else out.features)(f)
        if authors:  # n_c times the normalised mean of normalised features
            return sums.count[:, None] * linalg.normalise(sums.mean), sums.count
        return sums.mean, (sums.count > 0).astype(sums.mean.dtype)

    def reduce(vectors, sums, arrived: Arrived):
        del arrived
        total, count = sums
        return losses.moving_prototypes(vectors, total / jnp.maximum(count, 1.0)[:, None], rho=rho)

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        new = tree.add(arrived.sent, arrived.mean)
        return new._replace(params={**new.params, "head": {"kernel": shared["vectors"].T}})

    term = per_example("cross_entropy", scaled)
    phase = Phase((term,), ("body", "scale"), grad=clipped(clip))
    head = HeadSpec("orthonormal", bias=False, normalise=True, learn_scale=not scale)
    part = Part(
        "vectors",
        lambda setup: setup.weights.params["head"]["kernel"].T,
        collect=collect,
        reduce=reduce,
    )
    return Method(
        "fednh",
        head,
        phases=(phase,),
        parts=(part,),
        server=server,
        finetune=(Phase((terms.cross_entropy(),), epochs=5),),
        weights="equal" if authors else None,
    )
