"""Time the lowerings of a convolution where training runs them: gradients inside a loop.

    python benchmarks/conv.py            # prints milliseconds per step, the fastest marked

The choice of `auto` in fedjax_nc/models/conv.py comes from this table.
"""

import statistics
import time

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedjax_nc.models import conv

# batch, image side, input channels, output channels, kernel side, stride
SHAPES = [
    (50, 28, 1, 10, 5, 1),
    (50, 12, 10, 20, 5, 1),
    (50, 32, 3, 6, 5, 1),
    (50, 14, 6, 16, 5, 1),
    (50, 32, 3, 32, 5, 1),
    (50, 14, 32, 64, 5, 1),
    (50, 32, 16, 16, 3, 1),
    (50, 32, 16, 32, 3, 2),
    (50, 16, 32, 32, 3, 1),
    (50, 8, 64, 64, 3, 1),
]
STEPS, REPEATS = 5, 5


def seconds(lowering: str, shape: tuple[int, ...]) -> float:
    """Median seconds of one forward and backward pass, measured inside a loop of several."""
    batch, side, inputs, outputs, size, stride = shape
    fn = getattr(conv, lowering)
    pads = ((size // 2, size // 2),) * 2

    def loss(x, kernel):
        return jnp.sum(fn(x, kernel, stride, pads) ** 2)

    def step(_, carry):
        dx, dk = jax.grad(loss, (0, 1))(*carry)
        return carry[0] - 1e-6 * dx, carry[1] - 1e-6 * dk

    @jax.jit
    def run(x, kernel):
        return lax.fori_loop(0, STEPS, step, (x, kernel))

    key = jax.random.key(0)
    x = jax.random.normal(key, (batch, side, side, inputs))
    kernel = 0.1 * jax.random.normal(key, (size, size, inputs, outputs))
    jax.block_until_ready(run(x, kernel))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run(x, kernel))
        times.append(time.perf_counter() - start)
    return statistics.median(times) / STEPS


def main() -> None:
    """Print the table."""
    lowerings = [name for name in conv.LOWERINGS if name != "auto"]
    table = Table("batch, side, in, out, kernel, stride", *lowerings, "auto takes")
    for shape in track(SHAPES, "timing"):
        times = {name: seconds(name, shape) for name in lowerings}
        best = min(times.values())
        cells = [f"{1e3 * t:.2f}{' *' if t == best else ''}" for t in times.values()]
        table.add_row(str(shape), *cells, conv.choose(jax.default_backend(), shape[2]))
    console = Console()
    console.print(f"jax {jax.__version__}, {jax.default_backend()}, milliseconds per step")
    console.print(table)


if __name__ == "__main__":
    main()
