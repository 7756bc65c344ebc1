"""Methods whose class vectors never move: random, or a simplex equiangular tight frame."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_nc import linalg, losses
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    SGD,
    Context,
    Method,
    Phase,
    Posthoc,
    Repeat,
    View,
    above_zero,
    clipped,
    no_effect,
    not_negative,
    per_example,
)
from fedjax_nc.methods.distillation import fd
from fedjax_nc.methods.registry import base
from fedjax_nc.types import CLASSES, Batch, HeadSpec, Model, Outputs, Weights


@base
def fedbabu(*, finetune_epochs: int = 5) -> Method:
    """FedBABU: the head keeps its random start, only the body is trained.

    Paper:    Oh et al., FedBABU: Toward Enhanced Representation for Federated Image
              Classification, ICLR 2022.
    Changes:  the head is frozen in the rounds; fine-tuning trains everything.
    Defaults: 5 fine-tuning epochs, at the last round's learning rate.
    Differs:  the official notebook fine-tunes at a learning rate of 0.001.
    Uploads:  the body.

    Args:
      finetune_epochs: epochs of personal fine-tuning of the whole network.
    """
    not_negative("fedbabu", finetune_epochs=finetune_epochs)
    ce = terms.cross_entropy()
    return fedavg()._replace(
        phases=(Phase((ce,), train=("body",)),), finetune=(Phase((ce,), epochs=finetune_epochs),)
    )


@base
def dot_regression(
    *, finetune: Literal["dr", "dr_plus"] = "dr", finetune_epochs: int = 5
) -> Method:
    """Dot regression: turn features towards a fixed ETF, pulling only.

    Paper:    Yang et al., Inducing Neural Collapse in Imbalanced Learning, NeurIPS 2022;
              federated by Kim et al., FedDr+, arXiv 2406.02355, 2024, section 2.2.
    Changes:  1/2 (cos(f, v_y) - 1)^2 instead of cross-entropy; frozen ETF head without bias.
    Defaults: needs a much larger learning rate than FedAvg (FedDr+, tables 8-10); fine-tuning with
              L_DR, the better one of table 14.
    Uploads:  the body.

    Args:
      finetune: loss of personal fine-tuning of the body, L_DR or L_Dr+ with beta = 0.9 (FedDr+,
        table 14).
      finetune_epochs: epochs of it.
    """
    not_negative("dot_regression", finetune_epochs=finetune_epochs)

    def regression(c: Context) -> jax.Array:
        return losses.dot_regression(c.out.features, terms.class_vectors(c)[c.batch.y])

    phase = Phase((per_example("dot_regression", regression),), train=("body",))
    head = HeadSpec("etf", bias=False, normalise=True)
    method = Method(
        "dot_regression", head, phases=(phase,), finetune=(phase._replace(epochs=finetune_epochs),)
    )
    return method if finetune == "dr" else fd(finetune=True)(method)._replace(phases=(phase,))


@base
def feddr_plus(
    *, beta: float = 0.9, finetune: Literal["dr", "dr_plus"] = "dr_plus", finetune_epochs: int = 5
) -> Method:
    """FedDr+: dot regression with feature distillation.

    Paper:    Kim et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation for
              Federated Learning, arXiv 2406.02355, 2024, eq. 1; fine-tuning of section 5.
    Changes:  dot_regression | fd: beta L_DR + (1 - beta) L_FD.
    Defaults: beta = 0.9 in every experiment of the paper; fine-tuning with L_Dr+ (table 5).
    Differs:  one forward pass of the student per step; the code makes two. Epochs of fine-tuning
              are not stated: 5, as FedBABU's code base has.
    Uploads:  the body.

    Args:
      beta: share of dot regression.
      finetune: loss of personal fine-tuning, L_DR alone or L_Dr+ (table 14).
      finetune_epochs: epochs of it.
    """
    not_negative("feddr_plus", beta=beta, finetune_epochs=finetune_epochs)
    plain = dot_regression(finetune_epochs=finetune_epochs)
    return fd(beta=beta, finetune=finetune == "dr_plus")(plain)


@base
def spherefed(*, calibrate: bool = False, finetune_epochs: int = 5) -> Method:
    """SphereFed: unit features regress on fixed orthonormal class vectors.

    Paper:    Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022.
    Changes:  mean over classes of (cos_c - [c = y])^2; frozen orthonormal head.
    Defaults: needs a large learning rate (FedDr+, tables 8-10: 0.55 and 6.5).
    Differs:  the authors' code is not public: the loss is that of FedDr+'s code, which leaves the
              calibration out.
    Uploads:  the body; with calibration once d x d and d x C sums.

    Args:
      calibrate: after the last round, solve for the head by least squares over everybody's data.
      finetune_epochs: epochs of personal fine-tuning of the body with the same loss.
    """
    not_negative("spherefed", finetune_epochs=finetune_epochs)
    term = per_example("cosine_mse", lambda c: losses.cosine_mse(c.out.logits, c.batch.y))
    phase = Phase((term,), train=("body",))
    return Method(
        "spherefed",
        HeadSpec("orthonormal", bias=False, normalise=True),
        phases=(phase,),
        finetune=(phase._replace(epochs=finetune_epochs),),
        posthoc=least_squares_head() if calibrate else None,
    )


def least_squares_head() -> Posthoc:
    """Returns the step W = (Z^T Z)^-1 Z^T Y for unit features Z and one-hot labels Y."""

    def collect(out: Outputs, batch: Batch):
        z = jnp.where(batch.mask[:, None], out.projected, 0.0)
        return z.T @ z, z.T @ jax.nn.one_hot(batch.y, out.logits.shape[-1], dtype=z.dtype)

    def solve(model: Model, weights: Weights, sums, key: jax.Array) -> Weights:
        del model, key
        gram, cross = sums
        ridge = 1e-4 * jnp.trace(gram) / len(gram)  # features can be fewer than dimensions
        kernel = linalg.solve(gram + ridge * jnp.eye(len(gram), dtype=gram.dtype), cross)
        return weights._replace(params={**weights.params, "head": {"kernel": kernel}})

    return Posthoc(collect, solve)


@base
def fedgela(
    *,
    form: Literal["authors", "feddr"] = "authors",
    temperature: float = 0.2,
    clip: float = 20.0,
    finetune_epochs: int = 5,
    projector_bias: bool = True,
) -> Method:
    """FedGELA: a fixed ETF whose vectors are as long as the client's classes are frequent.

    Paper:    Fan et al., Federated Learning with Bilateral Curation for Partially
              Class-Disjoint Data, NeurIPS 2023.
    Changes:  CE on phi_c v_c . h / T with phi_c = C n_c / n; personal prediction with phi too.
    Defaults: T = 0.2, gradients cut at norm 20, features through two dense layers and BatchNorm
              (official code).
    Differs:  FedDr+'s form projects to C dimensions, normalises, learns a scale, has neither T nor
              clipping, and predicts without phi; its code has no bias there (projector_bias). An
              absent class has logit 0; it is not removed.
    Uploads:  the body; in FedDr+'s form also projector and scale.

    Args:
      form: the authors' or FedDr+'s.
      temperature: T of the authors' form.
      clip: norm at which the authors' form cuts gradients.
      finetune_epochs: epochs of personal fine-tuning with the same loss.
      projector_bias: give the projector of FedDr+'s form a bias.
    """
    not_negative("fedgela", clip=clip, finetune_epochs=finetune_epochs)
    above_zero(temperature=temperature)
    ours = form == "authors"

    def scaled(c: Context) -> jax.Array:
        counts = c.info.class_counts
        logits = losses.prior_scaled(c.out.logits, counts, temperature=temperature if ours else 1.0)
        return losses.cross_entropy(logits, c.batch.y)

    phase = Phase((per_example("scaled_etf", scaled),), train=("body", "projector", "scale"))
    head = HeadSpec(
        "etf",
        bias=False,
        projector=(CLASSES,),
        normalise=True,
        learn_scale=True,
        projector_bias=projector_bias,
    )
    if ours and not projector_bias:
        raise UserError(
            "fedgela: projector_bias=False belongs to form='feddr': give both, or neither"
        )
    if not ours:
        no_effect("fedgela", "form='feddr'", temperature=(temperature, 0.2), clip=(clip, 20.0))
    if ours:
        phase = phase._replace(grad=clipped(clip))
        head = HeadSpec("etf", bias=False, encoder=True)
    method = Method(
        "fedgela", head, phases=(phase,), finetune=(phase._replace(epochs=finetune_epochs),)
    )
    return method._replace(predict=_scaled_logits) if ours else method


def _scaled_logits(out: Outputs, weights: Weights, view: View) -> jax.Array:
    return losses.prior_scaled(out.logits, view.info.class_counts)


@base
def fedetf(
    *,
    gamma: float = 1.0,
    dim: int = 0,
    projector: bool = True,
    balanced: bool = True,
    learn_scale: bool = True,
    scale: float = 1.0,
    absent: Literal["one", "remove", "epsilon"] = "one",
    finetune: Literal["paper", "code"] = "paper",
    cycles: int = 20,
    finetune_epochs: int = 0,
    resume: bool = False,
    projector_bias: bool = True,
) -> Method:
    """FedETF: a fixed ETF classifier, a projector and the balanced feature loss.

    Paper:    Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
              with Synthetic and Fixed Classifier, ICCV 2023, eq. 6, algorithms 1-2.
    Changes:  logits = beta v_c . mu with unit mu = g(h), ETF V, learnable beta; log class counts
              are added. Fine-tuning: body, then V and projector in turn, with plain cross-entropy.
    Defaults: d = classes, gamma = 1, beta starts at 1; 20 cycles (released code), every stage of E
              epochs (algorithm 2).
    Differs:  fine-tuning by algorithm 2 trains beta with every stage at the round's learning rate;
              the code first trains everything but V with the balanced loss, then V by plain SGD at
              0.1 and the projector at 0.05, 3 epochs each whatever E is, with beta fixed. The
              code's first stage goes on with the client's momentum where clients keep it (resume).
              Absent classes count as 1, as in the code; FedDr+'s version of the method removes
              them (absent) and has no bias in its projector (projector_bias).
    Uploads:  body, projector and beta.

    Args:
      gamma: strength of the class counts in the loss.
      dim: width of the projector and the ETF; 0 means the number of classes (figure 6a).
      projector: a linear layer between body and ETF (table 4).
      balanced: class counts in the loss (table 4).
      learn_scale: train the temperature beta; otherwise it stays what it is (table 4).
      scale: the temperature beta at the start, or for good without learn_scale.
      absent: how a class the client does not have counts.
      finetune: personal fine-tuning by algorithm 2 or as the released code.
      cycles: alternations of classifier and projector in fine-tuning.
      finetune_epochs: epochs of each of them; 0 means the run's local epochs by algorithm 2, and 3
        as the released code.
      resume: let the code's first stage of fine-tuning go on with the client's kept optimiser.
      projector_bias: give the projector a bias.
    """
    if resume and finetune == "paper":
        raise UserError("fedetf: resume=True belongs to finetune='code': give both, or neither")
    if not (projector or projector_bias):
        raise UserError(
            "fedetf: projector_bias=False belongs to a projector: leave it out with projector=False"
        )
    if not projector:
        no_effect("fedetf", "projector=False", dim=(dim, 0))
    if not balanced:
        no_effect("fedetf", "balanced=False", gamma=(gamma, 1.0))
    not_negative("fedetf", gamma=gamma, dim=dim, cycles=cycles, finetune_epochs=finetune_epochs)
    above_zero(scale=scale)

    def balanced_loss(c: Context) -> jax.Array:
        strength = gamma if balanced else 0.0
        return losses.balanced_softmax(
            c.out.logits, c.batch.y, counts=c.info.class_counts, gamma=strength, absent=absent
        )

    ce = (terms.cross_entropy(),)
    epochs = finetune_epochs or (None if finetune == "paper" else 3)
    phase = Phase((per_example("balanced", balanced_loss),), train=("body", "projector", "scale"))
    if finetune == "paper":
        first = Phase(ce, train=("body", "scale"))
        vectors = Phase(ce, train=("head", "scale"), epochs=epochs)
        layer = Phase(ce, train=("projector", "scale"), epochs=epochs)
    else:
        first = phase._replace(resume=0 if resume else None)
        vectors = Phase(ce, ("head",), epochs=epochs, optimizer=SGD(0.1))
        layer = Phase(
            ce, ("projector",), epochs=epochs, optimizer=SGD(0.05, 0.9, weight_decay=5e-4)
        )
    alternate = (vectors, layer) if projector else (vectors,)
    width = (dim or CLASSES,) if projector else ()
    head = HeadSpec(
        "etf",
        bias=False,
        projector=width,
        normalise=True,
        learn_scale=learn_scale,
        projector_bias=projector_bias,
        scale=scale,
    )
    return Method("fedetf", head, phases=(phase,), finetune=(first, Repeat(cycles, alternate)))
