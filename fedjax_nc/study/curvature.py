"""What the studies of second order share: Hessians of the run's models, and Lanczos' findings."""

from functools import partial

import jax
import numpy as np

from fedjax_nc.analysis import hessian, lanczos
from fedjax_nc.study.subject import BATCH, Subject
from fedjax_nc.types import Weights

STARTS = 2  # vectors from which the spectral density is estimated


def hessian_of(run: Subject, weights: Weights, several: bool = False) -> hessian.Hessian:
    """Returns the Hessian at the given weights, over the run's training examples.

    Args:
      run: its trained groups are the variables.
      weights: of one model, or of several on a leading axis.
      several: whether there are several.
    """
    trainer, few = run.job.task.trainer, run.probe.train
    make = run.once(
        "hessian",
        lambda: hessian.make_hessian(
            trainer.model,
            trainer.make_batch,
            executor=run.job.executor,
            batch_size=BATCH,
            groups=run.trained,
        ),
    )
    indices = np.asarray(few.indices)[np.asarray(few.mask)]
    return make(weights, run.probe.pool, indices, several)


def ritz_of(run: Subject) -> lanczos.Ritz:
    """Returns approximate eigenvalues and eigenvectors of the global model's Hessian."""
    key = jax.random.fold_in(jax.random.key(run.options.seed), 0)
    return run.once(
        "ritz",
        lambda: lanczos.lanczos(
            hessian_of(run, run.weights),
            key,
            starts=STARTS,
            products=run.options.products,
            progress=partial(run.progress, "hessian: Lanczos"),
        ),
    )
