"""Time the lowerings of a convolution where training runs them: gradients inside a loop.

    python benchmarks/conv.py            # milliseconds per step on every core, the fastest marked

`choose` in fedjax_nc/models/conv.py is this table; benchmarks/results/conv.json keeps it.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import chart
import jax
import machine
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from rich.console import Console
from rich.progress import track

from fedjax_nc import devices
from fedjax_nc.models import conv, lowerings, tiles

RESULTS = machine.UNTRACKED / "conv.json"
BATCH, STEPS, REPEATS = 50, 5, 7
ENOUGH = 2.0  # seconds after which a slow one is not repeated


class Shape(NamedTuple):
    """A layer: image side, channels in and out, kernel side, stride, zeros all round, groups."""

    side: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    first: bool = False  # of the network: nobody asks for the gradient by the images
    clients: int = 1  # at once on a device (vmap), each with kernels of its own; they share a batch


SHAPES = [
    Shape(28, 1, outputs=10, kernel=5, first=True),  # cnn, grey
    Shape(12, 10, outputs=20, kernel=5),
    Shape(32, 3, outputs=6, kernel=5, first=True),  # cnn, colour
    Shape(14, 6, outputs=16, kernel=5),
    Shape(32, 3, outputs=32, kernel=5, first=True),  # fedavg_cnn
    Shape(14, 32, outputs=64, kernel=5),
    Shape(32, 3, outputs=16, kernel=3, padding=1, first=True),  # resnet20
    Shape(32, 16, outputs=16, kernel=3, padding=1),
    Shape(32, 16, outputs=32, kernel=3, stride=2, padding=1),
    Shape(16, 32, outputs=32, kernel=3, padding=1),
    Shape(8, 64, outputs=64, kernel=3, padding=1),
    Shape(32, 16, outputs=32, kernel=1, stride=2),
    Shape(16, 64, outputs=64, kernel=3, padding=1, groups=64),  # depthwise
    Shape(16, 64, outputs=64, kernel=3, padding=1, groups=4),
    Shape(16, 64, outputs=64, kernel=3, padding=1, groups=64, clients=5),
    Shape(16, 192, outputs=192, kernel=3, stride=2, padding=1, groups=192),  # mobilenet_v2
    Shape(16, 192, outputs=192, kernel=3, stride=2, padding=1, groups=192, clients=5),
    Shape(16, 64, outputs=64, kernel=3, padding=1, groups=4, clients=5),
]
SPECIAL = {
    "pointwise": lambda s: s.kernel == 1,
    "depthwise": lambda s: s.groups == s.inputs > 1,
    "grouped": lambda s: 1 < s.groups < s.inputs,
}


def candidates(shape: Shape) -> dict[str, Callable]:
    """The functions (x, kernel) -> y that compute it."""
    pads = (shape.padding, shape.padding), (shape.padding, shape.padding)
    names = [
        n
        for n in ("native", "canonical", "im2col", "winograd")
        if conv.can(n, shape.kernel, stride=shape.stride, groups=shape.groups)
    ]
    found: dict[str, Callable] = {
        n: partial(conv.convolve, stride=shape.stride, pads=pads, groups=shape.groups, name=n)
        for n in names
    }
    for name, fits in SPECIAL.items():
        if fits(shape):
            found[name] = partial(
                conv.convolve, stride=shape.stride, pads=pads, groups=shape.groups
            )
    if "winograd" in found and shape.kernel == 3 and not shape.first:  # maps that are kept in tiles
        found["tiled"] = tiles.winograd
    if "im2col" in found and shape.kernel == 5 and shape.stride == 1:  # with and without blocks
        found["im2col 1"] = partial(lowerings.im2col, stride=1, pads=pads)
    return found


def seconds(fn, shape: Shape) -> float:
    """Median seconds of one forward and backward pass on every device at once, in a loop."""
    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(AxisType.Auto,))

    def step(_, carry):
        x, kernel = carry
        y, pullback = jax.vjp(fn if not shape.first else partial(fn, x), *carry[shape.first :])
        grads = pullback(1e-6 * y)
        dx, dk = (0.0, *grads)[-2:]
        return x - dx, kernel - dk

    def client(x, kernel):
        return lax.fori_loop(0, STEPS, step, (x, kernel))

    def on_device(x, kernel):
        if shape.clients > 1:
            return jax.vmap(client)(x, kernel)
        return jax.tree.map(lambda a: a[None], client(x[0], kernel[0]))

    split = PartitionSpec("d")
    run = jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )
    key, width = jax.random.key(0), shape.inputs // shape.groups
    lead, batch = devices * shape.clients, BATCH // shape.clients
    x = jax.random.normal(key, (lead, batch, shape.side, shape.side, shape.inputs))
    x = jax.vmap(tiles.tile)(x) if fn is tiles.winograd else x
    kernel = 0.1 * jax.random.normal(key, (lead, shape.kernel, shape.kernel, width, shape.outputs))
    jax.block_until_ready(run(x, kernel))
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < ENOUGH:
        start = time.perf_counter()
        jax.block_until_ready(run(x, kernel))
        times.append(time.perf_counter() - start)
    return statistics.median(times) / STEPS


def chosen(shape: Shape) -> str:
    """What `auto` takes."""
    out = (shape.side + 2 * shape.padding - shape.kernel) // shape.stride + 1
    return conv.choose(
        jax.default_backend(),
        shape.kernel,
        stride=shape.stride,
        channels=shape.inputs,
        groups=shape.groups,
        smallest=out,
    )


def main(argv: list[str]) -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description="Time the lowerings of a convolution.")
    parser.add_argument("--json", default=str(RESULTS), help=f"results file (default: {RESULTS})")
    given = parser.parse_args(argv)
    devices.start(0)
    rows = []
    for shape in track(SHAPES, "timing", console=Console(stderr=True)):
        milliseconds = {n: 1e3 * seconds(fn, shape) for n, fn in candidates(shape).items()}
        rows.append({**shape._asdict(), "auto": chosen(shape), "milliseconds": milliseconds})
    result = {
        "command": "python benchmarks/conv.py",
        "date": str(datetime.date.today()),
        "machine": machine.describe(),
        "batch": BATCH,
        "shapes": rows,
    }
    Path(given.json).parent.mkdir(parents=True, exist_ok=True)
    Path(given.json).write_text(json.dumps(result, indent=1) + "\n")
    chart.show(result)


if __name__ == "__main__":
    main(sys.argv[1:])
