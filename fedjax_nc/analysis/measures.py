"""Collapse, spectrum and alignment of what a model says, in both spaces it has."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc.analysis import alignment, collapse, spectrum
from fedjax_nc.analysis.outputs import Seen

SPACES = ("features", "projected")  # before and after the projector; the same without one


def collapse_of(seen: Seen, vectors: Float[Array, "c p"]) -> dict[str, collapse.Collapse]:
    """Of each space; class vectors live in the projected one alone."""
    found = {}
    for space in SPACES:
        points = getattr(seen, space)
        fits = points.shape[-1] == vectors.shape[-1]
        own = vectors if fits else jnp.zeros((len(vectors), points.shape[-1]))
        numbers = collapse.collapse(points, seen.logits, y=seen.y, mask=seen.mask, vectors=own)
        found[space] = (
            numbers if fits else numbers._replace(nc3=jnp.full_like(numbers.nc3, jnp.nan))
        )
    return found


def spectrum_of(seen: Seen) -> dict[str, spectrum.Spectrum]:
    """Of each space."""
    return {space: spectrum.spectrum(getattr(seen, space), seen.mask) for space in SPACES}


def alignment_of(
    local: Seen, seen: Seen, vectors: Float[Array, "k c p"], observed: Bool[Array, "k c"]
) -> alignment.Alignment:
    """Of several clients' models with the global one, an axis of clients in front."""

    def one(local: Seen, vectors: Array, observed: Array) -> alignment.Alignment:
        return alignment.alignment(
            local.features,
            seen.features,
            local_projected=local.projected,
            global_projected=seen.projected,
            vectors=vectors,
            y=seen.y,
            mask=seen.mask,
            observed=observed,
        )

    return jax.vmap(one)(local, vectors, observed)
