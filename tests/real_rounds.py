"""Rounds on CIFAR-10 through `fnc.run`, what chance decides in them, and PyTorch's recorded rounds.

    PEER_PYTHON=.venv-peers/bin/python python tests/real_rounds.py

computes the rounds in both and writes the recording again; that Python has torch.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_nc as fnc
from fedjax_nc.data import augment, datasets, federated
from fedjax_nc.data.catalogue import release_of
from fedjax_nc.host import session
from fedjax_nc.io import checkpoint

GOLDEN = Path(__file__).parent / "golden"
PEER = Path(__file__).parents[1] / "benchmarks/peers/cifar_rounds.py"
PYTHON = os.environ.get("PEER_PYTHON", sys.executable)
# The largest difference after each round, relative to a tensor's largest entry. Rounding decides
# which of two nearly equal pixels a pool takes, and later steps enlarge that: PyTorch beside
# itself, its inputs changed by a unit or two in float32's last place, is up to 7.5e-4, 3.1e-3 and
# 7.5e-3 away in float32, and 3.3e-8, 1.2e-3 and 4.1e-3 in float64 (ten trials each).
TOLERANCE = {"float32": (2e-3, 1e-2, 2e-2), "float64": (1e-5, 5e-3, 1e-2)}
HITS = {"float32": 30, "float64": 30}  # of 10,000 test pictures
SAMPLE = 250  # entries of a tensor that are recorded
LIMIT, EPOCHS = 2000, 2
SETTINGS = {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "decay": 0.9}
DRAWS = ("round", "client", "index", "down", "right", "mirrored")


def run(out):
    """Trains as the command does; returns the result, the first weights and the draws.

    The draws have a row for each step; padding has the number -1. The weights are PyTorch's, first
    ones and those after each round.
    """
    seen, steps, weights = [], [], []
    make_batch, train_rounds, save = federated.make_batch, session.train_rounds, checkpoint.save

    def watched_batch(spec, names=(), **options):
        batch, move = make_batch(spec, names, **options), augment.build(names)
        place = jnp.arange(32 * 32.0).reshape(1, 32, 32, 1)

        def watched(pool, indices, mask, key):
            if key is not None:  # two pixels of a picture of places tell what becomes of a picture
                moved = move(key, jnp.repeat(place, len(indices), axis=0))
                jax.debug.callback(
                    lambda *x: seen.append([np.array(y) for y in x]),
                    *(indices, mask, moved[:, 16, 15:17, 0]),
                )
            return batch(pool, indices, mask, key)

        return watched

    def watched_rounds(job, seeds, *, state, **options):
        weights.append(as_torch(state.weights))
        owner.update((int(i), k) for k, part in enumerate(job.splits[0].train) for i in part)
        return train_rounds(job, seeds, state=state, **options)

    def watched_save(managers, state, **facts):
        jax.effects_barrier()
        weights.append(as_torch(state.weights))
        # the cores take turns, but a client's steps follow each other
        rows = [
            (len(steps), owner[int(index[0])], index, mask, moved) for index, mask, moved in seen
        ]
        steps.append(sorted(rows, key=lambda row: row[1]))
        seen.clear()
        save(managers, state, **facts)

    owner = {}
    with contextlib.ExitStack() as patches:
        for where, name, new in (
            (federated, "make_batch", watched_batch),
            (session, "train_rounds", watched_rounds),
            (checkpoint, "save", watched_save),
        ):
            patches.enter_context(mock.patch.object(where, name, new))
        result = fnc.run(
            "fedavg",
            dataset="cifar10",
            model="cnn",
            rounds=3,
            data={
                "partition": "dirichlet",
                "alpha": 10.0,
                "limit": LIMIT,
                "augment": ("crop4", "flip"),
                "client_test": "split",
            },
            local={
                **SETTINGS,
                "epochs": EPOCHS,
                "batch_size": 32,
                "clip": 0.0,
                "schedule": "exponential",
            },
            federation={"clients": 10, "participants": 5},
            evaluation={"personal": False, "finetune": False},
            execution={"checkpoint_every": 1},
            out=out,
            progress=False,
        )
    return result, weights, draws_of([row for rows in steps for row in rows])


def draws_of(rows):
    """Returns the draws of (round, client, places among the kept, mask, two pixels) as arrays."""
    numbers, clients, index, mask, pixels = (np.array(column) for column in zip(*rows, strict=True))
    labels = datasets.load("cifar10", None, order="official").train_y
    each = LIMIT // 10
    kept = np.sort(np.concatenate([np.flatnonzero(labels == k)[:each] for k in range(10)]))
    mirrored = pixels[..., 0] > pixels[..., 1]
    centre = np.where(mirrored, pixels[..., 0], pixels[..., 1]).astype(int)
    return {
        "round": numbers.astype(np.int8),
        "client": clients.astype(np.int8),
        "index": np.where(mask, kept[index], -1).astype(np.int32),
        "down": (centre // 32 - 16).astype(np.int8),
        "right": (centre % 32 - 16).astype(np.int8),
        "mirrored": mirrored,
    }


def as_torch(weights):
    """Returns the network's weights, of one seed, by the names and in the layout of PyTorch."""
    params = jax.tree.map(lambda x: np.array(x[0]), weights.params)
    body, found = params["body"], {}
    layers = {
        "0": body["Conv_0"],
        "3": body["Conv_1"],
        "7": body["Dense_0"],
        "9": body["Dense_1"],
        "10": params["head"],
    }
    for name, layer in layers.items():
        kernel = layer["kernel"]
        if name == "7":  # PyTorch flattens channel after channel
            kernel = kernel.reshape(5, 5, 16, -1).transpose(2, 0, 1, 3).reshape(400, -1)
        found[f"{name}.weight"] = kernel.T if kernel.ndim == 2 else kernel.transpose(3, 2, 0, 1)
        found[f"{name}.bias"] = layer["bias"]
    return found


def write_official(folder):
    """Writes the prepared CIFAR-10 as its official binary files, and checks that these they are."""
    arrays = datasets.load("cifar10", None, order="official")
    official = release_of("cifar10").md5
    parts = [(f"data_batch_{i + 1}", "train", 10000 * i) for i in range(5)]
    for name, split, first in (*parts, ("test_batch", "test", 0)):
        part = slice(first, first + 10000)
        x, y = getattr(arrays, f"{split}_x")[part], getattr(arrays, f"{split}_y")[part]
        planes = np.asarray(x).transpose(0, 3, 1, 2).reshape(len(y), -1)
        content = np.column_stack([y.astype(np.uint8), planes]).tobytes()
        assert hashlib.md5(content).hexdigest() == official[f"{name}.bin"], name
        (folder / f"{name}.bin").write_bytes(content)
    return folder


def by_torch(draws, first, folder, **settings):
    """Returns PyTorch's rounds: parameters as `round1/NAME`, and correct answers.

    Args:
      draws: of every step.
      first: the weights before.
      folder: where the official files are.
      **settings: in place of the usual ones.
    """
    told = json.dumps({"model": "cnn", **SETTINGS, **settings})
    initial = {f"init/{name}": x for name, x in first.items()}
    with tempfile.TemporaryDirectory() as there:
        problem, result = f"{there}/problem.npz", f"{there}/result.npz"
        np.savez(problem, settings=told, **initial, **draws)
        subprocess.run([PYTHON, PEER, problem, folder, result], check=True)
        with np.load(result) as z:
            return {name: z[name] for name in z.files}


def shortened(name, tensor):
    """Returns what is recorded of a tensor: entries, and its mean, norm and largest entry."""
    flat = np.ravel(tensor)
    places = np.random.default_rng(0).permutation(flat.size)[:SAMPLE]
    wide = flat.astype(float)
    facts = np.array([wide.mean(), np.linalg.norm(wide), np.abs(wide).max()])
    return {name: flat[places], f"{name}/facts": facts}


def difference(here, there):
    """Returns the largest difference of shortened tensors after each round.

    It is relative to a tensor's largest entry, that of norms to the norm.

    Args:
      here: name to entries and facts.
      there: the same of the other side; its names are compared.
    """
    found = [0.0, 0.0, 0.0]
    for name in (name for name in there if f"{name}/facts" in there):
        mine, facts = here[f"{name}/facts"], there[f"{name}/facts"]
        mean, norm, largest = np.abs(mine - facts)
        entries = np.abs(here[name].astype(float) - there[name]).max()
        away = max(max(entries, mean, largest) / facts[2], norm / facts[1])
        if name.startswith("init/"):
            assert away < 1e-6, f"{name}: the first weights are others"
        else:
            number = int(name[len("round")]) - 1
            found[number] = max(found[number], float(away))
    return found


def shorten(tensors):
    """Returns what is recorded of tensors by name."""
    return {k: x for name, tensor in tensors.items() for k, x in shortened(name, tensor).items()}


def named(weights):
    """Returns the weights before and after each round as `init/NAME` and `round1/NAME`."""
    places = ["init", *(f"round{i}" for i in range(1, len(weights)))]
    return {f"{p}/{k}": x for p, ws in zip(places, weights, strict=True) for k, x in ws.items()}


def whole(tensors):
    """Returns tensors as if every entry were recorded, to be compared by `difference`."""
    facts = {f"{name}/facts": shortened(name, x)[f"{name}/facts"] for name, x in tensors.items()}
    return {name: np.ravel(x) for name, x in tensors.items()} | facts


def load(dtype):
    """Returns PyTorch's recorded rounds of a precision."""
    with np.load(GOLDEN / f"cifar10_rounds_{dtype}.npz") as z:
        return {name: z[name] for name in z.files}


def main():
    """Writes the recordings, and prints how far both sides are from each other."""
    for dtype in ("float32", "float64"):
        with tempfile.TemporaryDirectory() as there, jax.enable_x64(dtype == "float64"):
            result, weights, draws = run(f"{there}/runs")
            folder = write_official(Path(there))
            found = by_torch(draws, weights[0], folder, dtype=dtype)
            still = {**draws, "mirrored": np.zeros_like(draws["mirrored"])}
            other = by_torch(still, weights[0], folder, dtype=dtype)
        correct, other_correct = found.pop("correct"), other.pop("correct")
        ours, recorded = named(weights), shorten(found)
        np.savez_compressed(
            GOLDEN / f"cifar10_rounds_{dtype}.npz",
            **draws,
            **recorded,
            **shorten({f"init/{name}": x for name, x in weights[0].items()}),
            correct=correct,
        )
        for title, side, hits in (("", found, correct), ("unmirrored", other, other_correct)):
            away = difference(whole(ours), whole(side))
            print(dtype, title, [f"{x:.1e}" for x in away], hits)
        print(result.curves["global_accuracy"])


if __name__ == "__main__":
    main()
