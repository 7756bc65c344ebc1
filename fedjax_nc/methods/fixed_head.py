"""Methods whose class vectors never move: random, or a simplex equiangular tight frame."""

from fedjax_nc import losses
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Context, Method, Phase, Repeat, Term
from fedjax_nc.methods.distillation import fd
from fedjax_nc.methods.registry import base
from fedjax_nc.types import CLASSES, HeadSpec


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
    ce = terms.cross_entropy()
    return fedavg()._replace(
        phases=(Phase((ce,), train=("body",)),),
        finetune=(Phase((ce,), epochs=finetune_epochs),))  # fmt: skip


@base
def dot_regression(*, finetune_epochs: int = 5) -> Method:
    """Dot regression: turn features towards a fixed ETF, pulling only.

    Paper:    Yang et al., Inducing Neural Collapse in Imbalanced Learning, NeurIPS 2022;
              federated by Kim et al., FedDr+, arXiv 2406.02355, 2024, section 2.2.
    Changes:  1/2 (cos(f, v_y) - 1)^2 instead of cross-entropy; frozen ETF head without bias.
    Defaults: needs a much larger learning rate than FedAvg (FedDr+, tables 8-10).
    Uploads:  the body.

    Args:
      finetune_epochs: epochs of personal fine-tuning of the body with the same loss.
    """

    def fn(c: Context):
        targets = terms.class_vectors(c)[c.batch.y]
        return losses.masked_mean(losses.dot_regression(c.out.features, targets), c.batch.mask)

    phase = Phase((Term("dot_regression", fn),), train=("body",))
    head = HeadSpec("etf", bias=False, normalise=True)
    return Method(
        "dot_regression", head, (phase,), finetune=(phase._replace(epochs=finetune_epochs),)
    )


@base
def feddr_plus(*, beta: float = 0.9) -> Method:
    """FedDr+: dot regression with feature distillation.

    Paper:    Kim et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation for
              Federated Learning, arXiv 2406.02355, 2024, eq. 1.
    Changes:  dot_regression | fd: beta L_DR + (1 - beta) L_FD.
    Defaults: beta = 0.9 in every experiment of the paper.
    Differs:  one forward pass of the student per step; the code makes two.
    Uploads:  the body.

    Args:
      beta: share of dot regression.
    """
    return fd(beta=beta)(dot_regression())


@base
def fedetf(
    *, gamma: float = 1.0, dim: int = 0, cycles: int = 20, finetune_epochs: int = 3
) -> Method:
    """FedETF: a fixed ETF classifier, a projector and the balanced feature loss.

    Paper:    Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
              with Synthetic and Fixed Classifier, ICCV 2023, eq. 6, algorithms 1-2.
    Changes:  logits = beta v_c . mu with unit mu = g(h), ETF V, learnable beta; log class counts
              are added. Fine-tuning: body, then V and projector in turn, with plain cross-entropy.
    Defaults: d = classes, gamma = 1, beta starts at 1; 20 cycles of 3 epochs (released code).
    Differs:  absent classes count as 1, as in the code. Fine-tuning follows algorithm 2; the code
              first trains everything with the balanced loss and keeps beta fixed.
    Uploads:  body, projector and beta.

    Args:
      gamma: strength of the class counts in the loss.
      dim: width of the projector and the ETF; 0 means the number of classes.
      cycles: alternations of classifier and projector in fine-tuning.
      finetune_epochs: epochs of each of them.
    """

    def fn(c: Context):
        values = losses.balanced_softmax(c.out.logits, c.batch.y, c.info.class_counts, gamma)
        return losses.masked_mean(values, c.batch.mask)

    ce = (terms.cross_entropy(),)
    alternate = (
        Phase(ce, train=("head", "scale"), epochs=finetune_epochs, lr=0.1),
        Phase(ce, train=("projector", "scale"), epochs=finetune_epochs, lr=0.05),
    )
    return Method(
        "fedetf",
        HeadSpec("etf", bias=False, projector=(dim or CLASSES,), normalise=True, learn_scale=True),
        (Phase((Term("balanced", fn),), train=("body", "projector", "scale")),),
        finetune=(Phase(ce, train=("body", "scale")), Repeat(cycles, alternate)),
    )
