"""High-dimensional directions as points of a plane."""

import numpy as np
from jaxtyping import Array, Float

from fedjax_nc import linalg


def tsne(vectors: Float[Array, "n d"], seed: int) -> Float[np.ndarray, "n 2"]:
    """Maps the directions of vectors into one plane by t-SNE.

    Args:
      vectors: each counts by its direction, not by its length.
      seed: of t-SNE.
    """
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    points = np.asarray(linalg.normalise(vectors))
    return TSNE(random_state=seed, perplexity=perplexity, init="pca").fit_transform(points)
