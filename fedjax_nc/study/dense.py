"""A check of Hessian products against the dense Hessian of a small network on a run's features."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import linalg
from fedjax_nc.analysis import curvature, hessian, lanczos
from fedjax_nc.study.subject import BATCH, Subject
from fedjax_nc.types import Batch, Model, Outputs, Pool, Weights

FEATURES, UNITS = 16, 8  # of the small network


def compare(run: Subject) -> dict[str, str]:
    """Returns eigenvalues and trace of the dense matrix beside those found by products."""
    found = run.outputs
    x = np.asarray(linalg.normalise(found.features[found.mask]))
    x = x[:, np.argsort(-x.std(0), kind="stable")[:FEATURES]]
    key, classes = jax.random.key(run.options.seed), found.logits.shape[-1]
    model = _small_network(x.shape[1], classes)
    make = hessian.make_hessian(
        model,
        lambda pool, indices, mask, _: Batch(pool.x[indices], pool.y[indices], mask=mask),
        executor=run.job.executor,
        batch_size=BATCH,
        groups=("body", "head"),
    )
    pool = Pool(jnp.asarray(x), found.y[found.mask])
    small = make(model.init(key), pool, np.arange(len(x)))
    matrix = hessian.dense(small)
    exact = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    top = lanczos.top(small, key, count=1, products=min(60, small.size), by="value")
    power = curvature.power_iteration(small, key)
    trace = curvature.trace(curvature.probe(small, key, probes=run.options.probes))
    far = abs(np.trace(matrix) - trace.mean) / trace.error
    return {
        "network": f"{x.shape[1]} features, {UNITS} tanh units, {classes} classes: "
        f"{small.size} parameters, {len(x)} examples",
        "largest eigenvalue": f"{exact[-1]:.6g} dense, {top.values[0]:.6g} by Lanczos "
        f"(relative difference {abs(top.values[0] / exact[-1] - 1):.1e})",
        "largest in magnitude": f"{exact[np.argmax(np.abs(exact))]:.6g} dense, "
        f"{power.values[0]:.6g} by power iteration ({power.products} products, tolerance 1e-3)",
        "trace": f"{np.trace(matrix):.6g} dense, {trace.mean:.6g} ± {trace.error:.2g} by "
        f"{trace.probes} probes ({far:.1f} standard errors)",
        "symmetry": f"{np.abs(matrix - matrix.T).max() / np.abs(matrix).max():.1e} of the largest",
    }


def _small_network(features: int, classes: int) -> Model:
    """Makes a network of one hidden layer."""

    def init(key):
        keys = jax.random.split(key)
        body = {"kernel": jax.random.normal(keys[0], (features, UNITS)), "bias": jnp.zeros(UNITS)}
        head = {"kernel": jax.random.normal(keys[1], (UNITS, classes)), "bias": jnp.zeros(classes)}
        return Weights({"body": body, "head": head}, {})

    def apply(weights, x, *, train, mask=None):
        del train, mask
        body, head = weights.params["body"], weights.params["head"]
        hidden = jnp.tanh(x @ body["kernel"] + body["bias"])
        logits = hidden @ head["kernel"] + head["bias"]
        return Outputs((), (), features=hidden, projected=hidden, logits=logits), weights.stats

    return Model(init, apply, head=lambda params, features: (features, features))
