"""FedDW's figure 4: are the vectors of frequent classes shorter? (two minutes; 100 mixes an hour)

python experiments/papers/class_mixes.py                                # four of mnist5k
python experiments/papers/class_mixes.py --dataset=cifar10 --mixes=100  # or mnist, fashion_mnist

Each mix has more examples of some classes than of others, all in one place, where a network with a
head without bias is trained. The paper shows three mixes of a hundred, and says neither how they
are drawn nor how long they are trained: here shares are from Dir(0.5) and training is 20 epochs.
The same command again goes on where it was stopped.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_nc as fnc
from fedjax_nc.analysis import relations
from fedjax_nc.figures import canvas

ALPHA, SHOWN = 0.5, 3
ONE = {"clients": 1, "participants": 1}


def draw_counts(sizes, seed):
    """Draws how many examples of each class a mix has, of as many as there are."""
    shares = np.random.default_rng(seed).dirichlet(np.full(len(sizes), ALPHA))
    return np.minimum(shares * sizes.max(), sizes).astype(int)


def mix(labels, clients, seed):
    """Returns the examples of a mix as those of the only client."""
    del clients
    counts = draw_counts(np.bincount(labels), seed)
    return [np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(counts)])]


def train(dataset, mixes, *, epochs, out):
    """Trains a model on each mix and returns counts [m c] and class vectors [m c d]."""
    result = fnc.run(
        "feddw",
        hp={"mu": 0.0},  # FedDW's head without bias, and nothing else of it
        dataset=dataset,
        protocol="feddw",
        rounds=1,
        seeds=range(mixes),
        data={"partition": mix, "seed": -1},
        local={"epochs": epochs},
        federation=ONE,
        evaluation={"personal": False, "finetune": False},
        out=out,
    )
    everything = fnc.prepare("fedavg", dataset=dataset, data={"partition": "iid"}, federation=ONE)
    sizes = np.asarray(everything.data.class_counts)[0]
    counts = np.stack([draw_counts(sizes, seed) for seed in result.seeds])
    return counts, np.swapaxes(result.weights.params["head"]["kernel"], -1, -2)


def draw(counts, norms, correlations, *, title):
    """Draws the first mixes as the paper does, and the correlations of all."""
    figure, axes = canvas.panels(1, 2, height=3.6, width_ratios=(2, 1))
    figure.suptitle(title)
    left, right = axes
    shown = min(SHOWN, len(counts))
    for row in range(shown):
        for c, (n, norm) in enumerate(zip(counts[row], norms[row], strict=True)):
            size = 700 * n / counts[row].max()
            left.scatter(c, -row, s=max(size, 12), color=canvas.COLOURS[0] if n else "white")
            left.scatter(c, -row, s=max(size, 12), facecolors="none", edgecolors="0.5")
            left.annotate(f"{norm:.3f}", (c, -row - 0.42), ha="center", fontsize=7)
    left.set(xlabel="class", xticks=range(counts.shape[1]), ylim=(0.5 - shown, 0.5))
    left.set(ylabel="mix", title="share of the class, and relative norm of its vector")
    left.set_yticks([-row for row in range(shown)], [f"D{row + 1}" for row in range(shown)])
    right.hist(correlations, bins=np.linspace(-1, 1, 21), color=canvas.COLOURS[0])
    right.set(xlabel="rank correlation of norm and share", ylabel="mixes")
    right.axvline(0, color="0.3")
    right.locator_params(axis="y", integer=True)
    return figure


def main():
    """Trains, prints what the paper claims, and leaves a picture."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--dataset", default="mnist5k")
    words.add_argument("--mixes", type=int, default=4)
    words.add_argument("--epochs", type=int, default=20)
    words.add_argument("--out", default="runs")
    asked = words.parse_args()
    counts, vectors = train(asked.dataset, asked.mixes, epochs=asked.epochs, out=asked.out)
    vectors, each = jnp.asarray(vectors), jnp.asarray(counts, float)
    norms = np.asarray(jax.vmap(relations.relative_norms)(vectors))
    correlations = np.asarray(relations.norm_share_correlation(vectors, each).clients)
    print(f"rank correlation of norm and share: mean {np.mean(correlations):.2f}")
    print(f"negative, as FedDW finds: {np.sum(correlations < 0)} of {asked.mixes} mixes")
    path = Path(asked.out) / f"class_mixes-{asked.dataset}.png"
    draw(counts, norms, correlations, title=f"{asked.dataset}, {asked.mixes} mixes").savefig(path)
    print(path)


if __name__ == "__main__":
    main()
