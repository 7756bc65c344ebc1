"""Terms that several families of methods use."""

from jaxtyping import Array

from fedjax_nc import losses, tree
from fedjax_nc.methods.base import Context, Term


def cross_entropy() -> Term:
    """Softmax cross-entropy of the logits."""

    def fn(c: Context) -> Array:
        return losses.masked_mean(losses.cross_entropy(c.out.logits, c.batch.y), c.batch.mask)

    return Term("cross_entropy", fn)


def prox(mu: float) -> Term:
    """mu/2 |w - w_g|^2 over every parameter; BatchNorm statistics are not parameters."""
    return Term(
        "prox", lambda c: 0.5 * tree.sq_distance(c.weights.params, c.received.params), weight=mu
    )


def class_vectors(c: Context) -> Array:
    """The head's class vectors, one row per class."""
    return c.weights.params["head"]["kernel"].T
