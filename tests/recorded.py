"""Numbers recorded from public code, and how they are compared."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np


def golden(name):
    """Recorded numbers, as floats of the working precision."""
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as z:
        values = {k: z[k] for k in z.files if z[k].dtype.kind != "U"}
    return {k: jnp.asarray(v, float if v.dtype.kind == "f" else None) for k, v in values.items()}


def close(actual, expected, rtol=1e-5):
    """Equal up to rtol of each number, or of the largest."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.max(np.abs(expected)))


def everything(rows):
    """A mask without padding."""
    return jnp.ones(len(rows), bool)
