"""Run a function over clients and sum what they upload: one loop, with five settings.

Each device takes its share of the clients in chunks: the chunks one after another, the clients of
a chunk at once. Callers give rows in any order and get them back in it. Under `jax.vmap` over seeds
there are so many more clients, each of a seed: they are not run in step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_nc import processes, tree
from fedjax_nc.types import State

ClientFn = Callable[[Any, Any], tuple[Any, Any]]  # (broadcast, row) -> (row out, upload)


class Executor(NamedTuple):
    """How clients are run: one loop with five settings."""

    name: str
    devices: int = 1
    chunk: int = 1  # clients at once; 0: all of them
    mesh: jax.sharding.Mesh | None = None
    spread: bool = False  # every device holds a share of the client state, not all of it

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
        return arrays if self.mesh is None else processes.put(arrays, self.everywhere)

    def shares(self, axes: int = 0) -> NamedSharding | None:
        """Returns the sharding of what is divided over devices along the axis behind so many."""
        return self.mesh and NamedSharding(self.mesh, PartitionSpec(*[None] * axes, "clients"))

    def compile_rounds(self, fn: Callable[..., tuple[State, Any]], axes: int = 0) -> Any:
        """Compiles a function of a state with so many leading axes, which takes over its memory.

        The new state, the first of its results, is where the old one was.
        """
        if not self.spread:
            return jax.jit(fn, donate_argnums=0, out_shardings=self.everywhere)
        pin, whole, shares = lax.with_sharding_constraint, self.everywhere, self.shares(axes)

        def pinned(*args: Any) -> tuple[State, Any]:
            state, rest = fn(*args)
            light = pin(dataclasses.replace(state, clients={}), whole)
            return dataclasses.replace(light, clients=pin(state.clients, shares)), pin(rest, whole)

        return jax.jit(pinned, donate_argnums=0)

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a function whose results the host reads, unless nothing is to be compiled."""
        return jax.jit(fn, out_shardings=self.everywhere) if self.jit else fn

    def rows(self, table: Any, ids: jax.Array) -> Any:
        """Returns rows of a table that is divided over devices, or of one that is not."""
        if not self.spread:
            return tree.take(table, ids)

        def of_device(table, ids):
            def one(x):
                place, mine = _own(ids, len(x))
                rows = jnp.where(_column(mine, x), x[jnp.where(mine, place, 0)], 0)
                # one device has the row, the others add nothing
                return lax.psum(rows.astype(int) if rows.dtype == bool else rows, "clients")

            return jax.tree.map(lambda x: one(x).astype(x.dtype), table)

        return self._over_devices(of_device, 1, table, ids)

    def with_rows(self, table: Any, ids: jax.Array, rows: Any) -> Any:
        """Returns a table with other rows, divided over devices as it was."""
        if not self.spread:
            return tree.put(table, ids, rows=rows)

        def of_device(table, ids, rows):
            def one(x, new):
                place, mine = _own(ids, len(x))
                return x.at[jnp.where(mine, place, len(x))].set(new, mode="drop")

            return jax.tree.map(one, table, rows)

        return self._over_devices(of_device, 0, table, ids, rows)

    def _over_devices(self, fn: Callable[..., Any], reduced: int, table: Any, *whole: Any) -> Any:
        """Runs a function on every device's share of a table."""
        shares, everywhere = PartitionSpec("clients"), PartitionSpec()
        return jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=(shares, *[everywhere] * len(whole)),
            out_specs=everywhere if reduced else shares,
            check_vma=False,
        )(table, *whole)

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


def make_executor(name: str, *, devices: int = 0, chunk: int = 4, spread: bool = False) -> Executor:
    """Makes the executor of a name; `auto` asks the backend.

    On a CPU, clients one by one on each of several host devices; on an accelerator, chunks (by
    design, not measured here).

    Args:
      name: of the executor.
      devices: how many of each process; 0 is all of them.
      chunk: clients at once.
      spread: whether devices share the client state out, where there are several.
    """
    chosen = [
        device
        for process in range(processes.count())
        for device in jax.local_devices(process)[: devices or None]
    ]
    devices = len(chosen)
    cpu = jax.default_backend() == "cpu"
    if name == "auto" and cpu:
        name = "sharded" if devices > 1 else "scan"
    elif name == "auto":
        name = "sharded" if devices > 1 else "chunked"
    if name == "sharded":
        mesh = jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,), devices=chosen)
        return Executor(name, devices, chunk=1 if cpu else chunk, mesh=mesh, spread=spread)
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


def _own(ids: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Returns where rows are on this device, which has so many, and whether they are."""
    place = ids - lax.axis_index("clients") * count
    return place, (place >= 0) & (place < count)


def _column(mine: jax.Array, x: jax.Array) -> jax.Array:
    """Gives a vector the axes of an array's rows."""
    return mine.reshape(-1, *[1] * (x.ndim - 1))


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
