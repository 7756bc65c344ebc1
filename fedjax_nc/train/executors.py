"""Run a function over clients and sum what they upload: one loop, with five settings.

Each device takes its share of the clients in chunks: the chunks one after another, the clients of
a chunk at once. Callers give rows in any order and get them back in it. Under `jax.vmap` over seeds
there are so many more clients, each of a seed: they are not run in step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_nc import tree

ClientFn = Callable[[Any, Any], tuple[Any, Any]]  # (broadcast, row) -> (row out, upload)


class Executor(NamedTuple):
    """How clients are run: one loop with five settings."""

    name: str
    devices: int = 1
    chunk: int = 1  # clients at once; 0: all of them
    mesh: jax.sharding.Mesh | None = None

    @property
    def jit(self) -> bool:
        """Whether the program around it is compiled."""
        return self.name != "debug"

    @property
    def lanes(self) -> int:
        """How many rows keep all devices busy at once."""
        return self.devices * max(self.chunk, 1)

    @property
    def everywhere(self) -> NamedSharding | None:
        """The sharding of what every device reads: a whole copy on each."""
        return self.mesh and NamedSharding(self.mesh, PartitionSpec())

    def place(self, arrays: Any) -> Any:
        """Puts arrays on every device that will read them.

        A state or a dataset on one device would be copied to the others in each call, and the
        round be compiled again for the second one, whose state comes back on all of them.
        """
        return arrays if self.mesh is None else jax.device_put(arrays, self.everywhere)

    def run(self, fn: ClientFn, broadcast: Any, rows: Any, steps: jax.Array) -> tuple[Any, Any]:
        """Runs a client function for every row; returns its outputs and the sum of the uploads.

        `steps` says how much work each row is, in any unit.
        """
        if not self.jit:
            return _in_python(fn, broadcast, rows=rows)
        fn = jax.jit(fn, inline=True)  # traced once, though it is asked for its shapes first

        @jax.custom_batching.custom_vmap
        def of_one(broadcast, rows, steps):
            out, sums = _run(
                self,
                fn,
                broadcast=broadcast,
                rows=rows,
                steps=steps,
                seed=jnp.zeros(len(steps), int),
                seeds=1,
            )
            return out, tree.take(sums, 0)

        @of_one.def_vmap
        def of_seeds(seeds, stacked, broadcast, rows, steps):
            own = stacked[0]

            def one(broadcast, row):
                mine = jax.tree.map(lambda x, s: x[row["seed"]] if s else x, broadcast, own)
                return fn(mine, row["row"])

            def flat(x, s):
                x = x if s else jnp.broadcast_to(x, (seeds, *x.shape))
                return x.reshape(-1, *x.shape[2:])

            rows, steps = jax.tree.map(flat, (rows, steps), tuple(stacked[1:]))
            seed = jnp.repeat(jnp.arange(seeds), len(steps) // seeds)
            rows = {"row": rows, "seed": seed}
            out, sums = _run(
                self, one, broadcast=broadcast, rows=rows, steps=steps, seed=seed, seeds=seeds
            )
            result = jax.tree.map(lambda x: x.reshape(seeds, -1, *x.shape[1:]), out), sums
            return result, jax.tree.map(lambda _: True, result)

        return of_one(broadcast, rows, steps)


def make_executor(name: str, *, devices: int = 0, chunk: int = 4) -> Executor:
    """Makes the executor of a name; `auto` asks the backend.

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
        mesh = jax.make_mesh(
            (devices,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
        )
        return Executor(name, devices, chunk=1 if cpu else chunk, mesh=mesh)
    return Executor(name, chunk={"vmap": 0, "chunked": chunk}.get(name, 1))


def deal(steps: jax.Array, devices: int, slots: int) -> tuple[jax.Array, jax.Array]:
    """Deals work in turn to the least loaded device that has a free slot.

    It is balanced if the largest come first. Returns the slot of each piece of work, device after
    device, and how many each device has.
    """

    def one(carry, mine):
        load, held = carry
        device = jnp.argmin(jnp.where(held < slots, load, jnp.iinfo(load.dtype).max))
        slot = device * slots + held[device]
        return (load.at[device].add(mine), held.at[device].add(1)), slot

    start = jnp.zeros(devices, steps.dtype), jnp.zeros(devices, jnp.int32)
    (_, held), slot = lax.scan(one, start, steps)
    return slot, held


def _run(
    executor: Executor, fn: ClientFn, broadcast, rows, steps, seed: jax.Array, seeds: int
) -> tuple[Any, Any]:
    """Runs all rows; returns their outputs, and for each seed the sum of its rows' uploads."""
    count, devices = len(steps), executor.devices
    chunk = executor.chunk or count
    chunks = -(-count // chunk)
    order = jnp.argsort(-steps)  # largest first, so that a chunk holds clients of like size
    members = jnp.pad(order, (0, chunks * chunk - count), mode="edge").reshape(chunks, chunk)
    # what fills the last chunk up belongs to no seed
    real = jnp.arange(chunks * chunk).reshape(chunks, chunk) < count
    seed = jnp.where(real, seed[members], seeds)
    # room for half as many again as an even share: a device with few long clients has fewer
    slots = min(chunks, -(-3 * chunks // (2 * devices))) if devices > 1 else chunks
    slot, held = deal(steps[members[:, 0]], devices, slots=slots)
    of_slot = jnp.zeros(devices * slots, int).at[slot].set(jnp.arange(chunks))

    def on_device(broadcast, rows, members, seed, held):
        def one(i, carry):
            outs, sums = carry
            if chunk == 1:
                out, upload = fn(broadcast, tree.take(rows, members[i, 0]))
                sums = tree.put(
                    sums, seed[i, 0], rows=tree.add(tree.take(sums, seed[i, 0]), upload)
                )
                return tree.put(outs, i, rows=out), sums
            out, uploads = jax.vmap(fn, (None, 0))(broadcast, tree.take(rows, members[i]))
            return tree.put(outs, i, rows=out), tree.add(sums, _sums(uploads, seed[i], seeds=seeds))

        out, upload = jax.eval_shape(fn, broadcast, tree.take(rows, 0))
        room = (slots,) if chunk == 1 else (slots, chunk)
        zeros = tree.zeros(out, *room), tree.zeros(upload, seeds)
        outs, sums = lax.fori_loop(0, held[0], one, zeros)
        return outs, sums if executor.mesh is None else lax.psum(sums, "clients")

    if executor.mesh is not None:
        split, whole = PartitionSpec("clients"), PartitionSpec()
        # check_vma: loop carries start as constants and become device-varying, which it refuses
        on_device = jax.shard_map(
            on_device,
            mesh=executor.mesh,
            in_specs=(whole, whole, split, split, split),
            out_specs=(split, whole),
            check_vma=False,
        )
    outs, sums = on_device(broadcast, rows, members[of_slot], seed[of_slot], held)
    rank = jnp.argsort(order)
    where = slot[rank // chunk] * chunk + rank % chunk
    if chunk > 1:
        outs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outs)
    return tree.take(outs, where), sums


def _sums(uploads: Any, seed: jax.Array, seeds: int) -> Any:
    """Sums over a chunk for each seed; a scatter would add in any order on an accelerator."""
    mine = seed[:, None] == jnp.arange(seeds)

    def one(x):
        return jnp.sum(jnp.where(mine.reshape(*mine.shape, *[1] * (x.ndim - 1)), x[:, None], 0), 0)

    return jax.tree.map(one, uploads)


def _in_python(fn: ClientFn, broadcast: Any, rows: Any) -> tuple[Any, Any]:
    """Runs rows in a Python loop without jit; an exception says which client raised it."""
    outs, uploads = [], []
    with jax.disable_jit():
        for i in range(len(jax.tree.leaves(rows)[0])):
            row = tree.take(rows, i)
            try:
                out, upload = fn(broadcast, row)
            except Exception as error:
                name = getattr(row, "id", i)
                error.add_note(f"while running client {name}")
                raise
            outs.append(out)
            uploads.append(upload)
    stack = lambda *x: jnp.stack(x)  # noqa: E731
    return jax.tree.map(stack, *outs), tree.sum_leading(jax.tree.map(stack, *uploads))
