"""Collapse, spectrum and alignment of a model's outputs, before and after its projector."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc import losses
from fedjax_nc.analysis import alignment, collapse, spectrum
from fedjax_nc.analysis.outputs import ExampleOutputs
from fedjax_nc.types import Batch, Outputs

SPACES = ("features", "projected")  # without a projector both are the same


def collapse_of(
    outputs: ExampleOutputs, vectors: Float[Array, "c p"]
) -> dict[str, collapse.Collapse]:
    """Computes the measures of neural collapse in each space.

    Class vectors belong to the projected space, so NC3 is NaN for features of another width.
    """
    found = {}
    for space in SPACES:
        points = getattr(outputs, space)
        fits = points.shape[-1] == vectors.shape[-1]
        own = vectors if fits else jnp.zeros((len(vectors), points.shape[-1]))
        values = collapse.collapse(
            points, outputs.logits, y=outputs.y, mask=outputs.mask, vectors=own
        )
        found[space] = values if fits else values._replace(nc3=jnp.full_like(values.nc3, jnp.nan))
    return found


def class_sums_of(out: Outputs, batch: Batch) -> dict[str, losses.ClassSums]:
    """Computes the sums by class of a batch's features in each space."""
    classes = out.logits.shape[-1]
    return {
        space: losses.class_sums(getattr(out, space), batch.y, mask=batch.mask, classes=classes)
        for space in SPACES
    }


def consistency_of(sums: Mapping[str, losses.ClassSums]) -> dict[str, Array]:
    """Computes how alike clients' class means are in each space, of sums by client and class."""
    return {
        space: collapse.prototype_consistency(own.mean, own.count > 0)
        for space, own in sums.items()
    }


def spectrum_of(outputs: ExampleOutputs) -> dict[str, spectrum.Spectrum]:
    """Computes singular values and effective ranks in each space."""
    return {space: spectrum.spectrum(getattr(outputs, space), outputs.mask) for space in SPACES}


def alignment_of(
    local: ExampleOutputs,
    received: ExampleOutputs,
    vectors: Float[Array, "k c p"],
    observed: Bool[Array, "k c"],
) -> alignment.Alignment:
    """Computes the alignment of several clients' models with the global model.

    Args:
      local: outputs of the clients' models, an axis of clients first.
      received: outputs of the global model on the same examples.
      vectors: class vectors of each client.
      observed: classes in each client's training data.

    Returns:
      The measures, an axis of clients first.
    """

    def of_client(local: ExampleOutputs, vectors: Array, observed: Array) -> alignment.Alignment:
        return alignment.alignment(
            local.features,
            received.features,
            local_projected=local.projected,
            global_projected=received.projected,
            vectors=vectors,
            y=received.y,
            mask=received.mask,
            observed=observed,
        )

    return jax.vmap(of_client)(local, vectors, observed)
