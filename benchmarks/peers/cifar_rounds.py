"""Rounds of FedAvg on CIFAR-10 as a plain PyTorch loop, from the official binary files.

    python benchmarks/peers/cifar_rounds.py PROBLEM.npz cifar-10-batches-bin RESULT.npz

The problem holds what chance decides, one row for each step: which pictures, numbered as in the
files, how far each is moved and whether it is mirrored. Everything else is written down here.
"""

# pyright: reportMissingImports=false

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torch_models

TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)[:, None, None]
STD = np.array([0.2023, 0.1994, 0.2010], np.float32)[:, None, None]
PAD = 4


class Step(NamedTuple):
    """A step of one client as chance decided it; arrays have an entry for each example."""

    index: np.ndarray  # the picture's number among the 50,000
    down: np.ndarray  # where the crop begins, from -PAD to PAD
    right: np.ndarray
    mirrored: np.ndarray


def read(folder: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures [n, 3, 32, 32] and labels of official files."""
    rows = np.concatenate([np.fromfile(folder / name, np.uint8) for name in names])
    rows = rows.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def normalised(pictures: np.ndarray) -> np.ndarray:
    """Returns pictures as the network sees them."""
    return (pictures.astype(np.float32) / 255 - MEAN) / STD


def augmented(pictures: np.ndarray, step: Step) -> np.ndarray:
    """Returns pictures with a black border, cropped to their old size, some of them mirrored."""
    wide = np.pad(pictures, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    found = []
    for picture, top, left, mirrored in zip(
        wide, step.down, step.right, step.mirrored, strict=True
    ):
        top, left = top + PAD, left + PAD
        crop = picture[:, top : top + 32, left : left + 32]
        found.append(crop[:, :, ::-1] if mirrored else crop)
    return np.stack(found)


def steps_of(problem: dict[str, np.ndarray], number: int, client: int) -> Iterator[Step]:
    """Yields a client's steps of a round; a last batch is padded with -1."""
    for row in np.flatnonzero((problem["round"] == number) & (problem["client"] == client)):
        real = problem["index"][row] >= 0
        yield Step(*(problem[field][row][real] for field in Step._fields))


def train(model: Any, steps: Iterator[Step], data: Any, settings: dict[str, float]) -> int:
    """Trains a client's model; returns how many different pictures it has seen."""
    pictures, labels = data
    optimizer = torch.optim.SGD(
        model.parameters(),
        settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
    )
    seen: set[int] = set()
    for step in steps:
        x = torch.from_numpy(normalised(augmented(pictures[step.index], step)))
        y = torch.from_numpy(labels[step.index])
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()
        optimizer.step()
        seen.update(step.index.tolist())
    return len(seen)


@torch.no_grad()
def correct(model: Any, data: Any) -> int:
    """Returns how many pictures get their label."""
    hits = 0
    for start in range(0, len(data[1]), 1000):
        part = slice(start, start + 1000)
        x = torch.from_numpy(normalised(data[0][part])).to(next(model.parameters()).dtype)
        hits += int((model(x).argmax(1) == torch.from_numpy(data[1][part])).sum())
    return hits


def rounds(problem: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Returns the parameters after each round, and how many test pictures are then right.

    Args:
      problem: `settings` in json, `init/NAME` for every parameter, and one row for each step:
        `round`, `client`, and the fields of `Step`.
      folder: where the official binary files are.
    """
    settings = json.loads(str(problem["settings"]))
    training, testing = read(folder, TRAIN), read(folder, ("test_batch.bin",))
    model = torch_models.make(settings["model"])
    dtype = getattr(torch, settings.get("dtype", "float32"))
    model = model.to(dtype)
    server = {
        name: torch.from_numpy(problem[f"init/{name}"]).to(dtype) for name in model.state_dict()
    }
    found, hits = {}, []
    for number in range(int(problem["round"].max()) + 1):
        now = settings | {"lr": settings["lr"] * settings["decay"] ** number}
        models, sizes = [], []
        for client in np.unique(problem["client"][problem["round"] == number]):
            model.load_state_dict(server)
            mine = steps_of(problem, number, client=int(client))
            sizes.append(train(model, mine, data=training, settings=now))
            models.append({name: x.clone() for name, x in model.state_dict().items()})
        shares = np.array(sizes) / sum(sizes)
        server = {
            name: sum(float(share) * one[name] for share, one in zip(shares, models, strict=True))
            for name in server
        }
        model.load_state_dict(server)
        hits.append(correct(model, testing))
        found |= {f"round{number + 1}/{name}": np.asarray(x) for name, x in server.items()}
    return found | {"correct": np.array(hits)}


def main(problem: str, folder: str, result: str) -> None:
    """Reads a problem and writes what becomes of it."""
    torch.set_num_threads(1)
    with np.load(problem) as z:
        found = rounds({name: z[name] for name in z.files}, Path(folder))
    np.savez(result, allow_pickle=False, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
