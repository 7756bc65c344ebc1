"""Five ways to run a function over clients and sum what they upload.

All take the function, what every client receives, and what each gets a row of. Rows come sorted,
largest client first, so that chunks hold clients of like size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_nc import tree

ClientFn = Callable[[Any, Any], tuple[Any, Any]]  # (broadcast, row) -> (row out, upload)
RunFn = Callable[[ClientFn, Any, Any], tuple[Any, Any]]  # -> (rows out, sum of uploads)


class Executor(NamedTuple):
    """A way to run clients. Participants are padded to a multiple of `devices * chunk`."""

    name: str
    run: RunFn
    devices: int = 1
    chunk: int = 1
    mesh: jax.sharding.Mesh | None = None

    @property
    def jit(self) -> bool:
        """Whether the round around it is compiled."""
        return self.name != "debug"

    @property
    def everywhere(self) -> NamedSharding | None:
        """The sharding of what every device reads: a whole copy on each."""
        return self.mesh and NamedSharding(self.mesh, PartitionSpec())

    def place(self, arrays: Any) -> Any:
        """The arrays on every device that will read them, once.

        A state or a dataset on one device would be copied to the others in each call, and the
        round be compiled again for the second one, whose state comes back on all of them.
        """
        return arrays if self.mesh is None else jax.device_put(arrays, self.everywhere)


def vmap_clients(fn: ClientFn, broadcast: Any, rows: Any) -> tuple[Any, Any]:
    """All at once: finished clients wait for the longest."""
    out, uploads = jax.vmap(fn, (None, 0))(broadcast, rows)
    return out, tree.sum_leading(uploads)


def scan_clients(fn: ClientFn, broadcast: Any, rows: Any) -> tuple[Any, Any]:
    """One by one, with running sums: each client costs its own steps."""
    _, upload = jax.eval_shape(fn, broadcast, tree.take(rows, 0))

    def one(sums, row):
        out, upload = fn(broadcast, row)
        return tree.add(sums, upload), out

    zeros = jax.tree.map(lambda u: jnp.zeros(u.shape, u.dtype), upload)
    sums, out = lax.scan(one, zeros, rows)
    return out, sums


def chunked_clients(chunk: int) -> RunFn:
    """Chunks one by one, the clients of a chunk at once."""

    def run(fn, broadcast, rows):
        chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), rows)
        out, sums = scan_clients(lambda b, c: vmap_clients(fn, b, c), broadcast, chunks)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out), sums

    return run


def sharded_clients(mesh: jax.sharding.Mesh, inner: RunFn) -> RunFn:
    """Split over the mesh's devices, run `inner` on each, add the sums up."""
    split, whole = PartitionSpec("clients"), PartitionSpec()

    def run(fn, broadcast, rows):
        def on_device(broadcast, rows):
            out, sums = inner(fn, broadcast, rows)
            return out, lax.psum(sums, "clients")

        # check_vma: loop carries start as constants and become device-varying, which it refuses
        mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(whole, split),
                               out_specs=(split, whole), check_vma=False)  # fmt: skip
        return mapped(broadcast, rows)

    return run


def debug_clients(fn: ClientFn, broadcast: Any, rows: Any) -> tuple[Any, Any]:
    """A Python loop without jit; an exception says which client raised it."""
    outs, uploads = [], []
    with jax.disable_jit():
        for i in range(len(jax.tree.leaves(rows)[0])):
            row = tree.take(rows, i)
            try:
                out, upload = fn(broadcast, row)
            except Exception as error:
                name = row["id"] if isinstance(row, dict) else i
                error.add_note(f"while running client {name}")
                raise
            outs.append(out)
            uploads.append(upload)
    stack = lambda *x: jnp.stack(x)  # noqa: E731
    return jax.tree.map(stack, *outs), tree.sum_leading(jax.tree.map(stack, *uploads))


def make_executor(name: str, *, devices: int = 0, chunk: int = 4) -> Executor:
    """The executor by name; `auto` asks the backend.

    On a CPU, clients one by one on each of several host devices; on an accelerator, chunks (by
    design, not measured here). `devices` 0 means all there are.
    """
    devices = devices or len(jax.devices())
    cpu = jax.default_backend() == "cpu"
    if name == "auto" and cpu:
        name = "sharded" if devices > 1 else "scan"
    elif name == "auto":
        name = "sharded" if devices > 1 else "chunked"
    if name == "sharded":
        inner, chunk = (scan_clients, 1) if cpu else (chunked_clients(chunk), chunk)
        mesh = jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,),
                             devices=jax.devices()[:devices])  # fmt: skip
        return Executor(name, sharded_clients(mesh, inner), devices, chunk, mesh)
    if name == "chunked":
        return Executor(name, chunked_clients(chunk), chunk=chunk)
    run = {"vmap": vmap_clients, "scan": scan_clients, "debug": debug_clients}[name]
    return Executor(name, run)


def deal(count: int, devices: int) -> np.ndarray:
    """Order in which sorted clients go to devices, back and forth, so that totals balance."""
    turns = np.arange(count).reshape(-1, devices)
    turns[1::2] = turns[1::2, ::-1]
    return turns.T.reshape(-1)
