"""Terms that several families of methods use."""

from jaxtyping import Array

from fedjax_nc import losses, tree
from fedjax_nc.methods.base import Context, Term, per_example


def cross_entropy() -> Term:
    """Returns the softmax cross-entropy of the logits."""
    return per_example("cross_entropy", lambda c: losses.cross_entropy(c.out.logits, c.batch.y))


def prox(mu: float) -> Term:
    """Returns mu/2 |w - w_g|^2 over every parameter; BatchNorm statistics are not parameters."""
    return Term(
        "prox", lambda c: 0.5 * tree.sq_distance(c.weights.params, c.received.params), weight=mu
    )


def class_vectors(c: Context) -> Array:
    """Returns the head's class vectors, one row per class."""
    return c.weights.params["head"]["kernel"].T
