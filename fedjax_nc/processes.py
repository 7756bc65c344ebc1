"""Several processes that compute one run: how they join, decide alike and hold the same arrays.

All of them run the same program. The first one alone writes and tells, and decides for all what
depends on a clock or a file. Without `join` there is one process, which is the first.
"""

import contextlib
import dataclasses
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedjax_nc.errors import Fault, UserError, quoted, reason

# notes on an error
AGREED = "all processes end with it"
TOLD = "the first process tells it"
_CONNECTING = threading.Event()  # is set until all processes have found one another
_HEARTBEAT = 30  # seconds without a sign of life after which a process counts as lost
_START = 300  # seconds in which all processes must have started


@dataclasses.dataclass(frozen=True)
class Distributed:
    """Several processes, one or more a host, compute one run."""

    on: bool = False
    """Join the other processes; `--distributed` is short for it. Slurm and others tell who."""
    coordinator: str | None = None
    """By hand: host:port of the first process, the same for all."""
    num_processes: int | None = None
    """By hand: how many there are."""
    process_id: int | None = None
    """By hand: which of them this is, from 0."""

    @property
    def wanted(self) -> bool:
        """Returns whether this process joins others."""
        return self.on or self.by_hand

    @property
    def by_hand(self) -> bool:
        """Returns whether flags say who the others are."""
        return (self.coordinator, self.num_processes, self.process_id) != (None, None, None)


def check(given: Distributed) -> None:
    """Refuses half of what joining by hand takes, and numbers that make no sense."""
    if not given.by_hand:
        return
    values = {
        "coordinator": given.coordinator,
        "num_processes": given.num_processes,
        "process_id": given.process_id,
    }
    absent = [f"--distributed.{name}" for name, value in values.items() if value is None]
    if absent:
        raise UserError(f"--distributed by hand needs {', '.join(absent)} too: give all three")
    count, own = given.num_processes or 0, given.process_id or 0
    host, _, port = (given.coordinator or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 2**16:
        raise UserError(
            f"--distributed.coordinator={given.coordinator}: give host:port of the first process"
        )
    if count < 1:
        raise UserError(f"--distributed.num_processes={count}: give a number above zero")
    if not 0 <= own < count:
        raise UserError(
            f"--distributed.process_id={own}: give a number from 0 to {count - 1}, one below "
            "--distributed.num_processes"
        )


def join(given: Distributed) -> None:
    """Connects this process with the others, before jax makes its devices; waits for all."""
    import jax

    if not given.wanted or jax.distributed.is_initialized():
        return
    # jax would hear SIGTERM in our place, and do nothing but note it
    jax.config.update("jax_enable_preemption_service", False)
    _CONNECTING.set()
    try:
        _in_a_thread(
            partial(
                jax.distributed.initialize,
                given.coordinator,
                num_processes=given.num_processes,
                process_id=given.process_id,
                initialization_timeout=_START,
                heartbeat_timeout_seconds=_HEARTBEAT,
            )
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"--distributed: jax did not find the other processes ({reason(error)}): start them "
            "under Slurm, Open MPI or on a pod, or give --distributed.coordinator, "
            "--distributed.num_processes and --distributed.process_id"
        ) from error
    _CONNECTING.clear()


def until_ready(arrays: Any) -> Any:
    """Returns arrays when they are computed; signals are heard meanwhile."""
    import jax

    _in_a_thread(partial(jax.block_until_ready, arrays))
    return arrays


def _in_a_thread(wait: Callable[[], Any]) -> None:
    """Waits inside jax in a thread of its own.

    Python runs the handlers of signals while it waits for a thread, and not while jax waits.
    """
    over, errors = threading.Event(), []

    def run() -> None:
        try:
            wait()
        except Exception as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=run, daemon=True, name="wait").start()
    over.wait()
    if errors:
        raise errors[0]


def count() -> int:
    """Returns how many processes compute the run."""
    if not _joined():
        return 1
    import jax

    return jax.process_count()


def is_first() -> bool:
    """Returns whether this process is the one that writes and tells."""
    if not _joined():
        return True
    import jax

    return jax.process_index() == 0


def _joined() -> bool:
    jax = sys.modules.get("jax")
    if jax is None or _CONNECTING.is_set():
        return False
    return jax.distributed.is_initialized()


def of_all(values: Any) -> Any:
    """Returns an array of every process, stacked in the order of processes."""
    import numpy as np

    if count() == 1:
        return np.asarray(values)[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(values)))


def texts_of_all(text: str) -> list[str]:
    """Returns a text of every process, in the order of processes."""
    import numpy as np

    data = np.frombuffer(text.encode(), np.uint8)
    sizes = of_all(np.asarray(len(data)))
    padded = of_all(np.pad(data, (0, int(sizes.max()) - len(data))))
    return [bytes(row[:size]).decode() for row, size in zip(padded, sizes, strict=True)]


def in_step(do: Callable[[], Any]) -> Any:
    """Does something on every process; if it fails or is refused on one, all end with its error."""
    result = error = None
    try:
        result = do()
    except Exception as raised:
        if count() == 1:
            raise
        error = raised
    if count() == 1:
        return result
    told = [json.loads(text) for text in texts_of_all(json.dumps(_told(error)))]
    number = next((i for i, one in enumerate(told) if one), None)
    if number is None:
        return result
    which = told[number]
    if error is None:
        kind = Fault if which["fault"] else UserError
        whose = "the first process" if number == 0 else f"process {number} ({which['host']})"
        raise ends_all(kind(f"{whose} ended: {which['message']}"))
    # a fault is told where it is, with what to do there
    raise ends_all(error, told=not which["fault"] and which["message"] == str(error))


def _told(error: Exception | None) -> dict[str, Any]:
    """Returns what other processes should know of an error."""
    if error is None:
        return {}
    fault = not isinstance(error, UserError)
    return {"message": str(error), "fault": fault, "host": socket.gethostname()}


def ends_all(error: Any, *, told: bool = True) -> Any:
    """Notes on an error that all processes end with it, and whether the first one tells it."""
    if count() > 1:
        for note in (AGREED, TOLD)[: 1 + told]:
            error.add_note(note)
    return error


def in_turn(first: Callable[[], Any], others: Callable[[], Any]) -> Any:
    """Does something on the first process, and only then its counterpart on the others.

    If it is refused or fails on any of them, all end with the same error instead of waiting.
    """
    if count() == 1:
        return first()
    mine = in_step(first if is_first() else _nothing)
    theirs = in_step(_nothing if is_first() else others)
    return mine if is_first() else theirs


def _nothing() -> None:
    pass


def compare(mine: Mapping[str, Any]) -> None:
    """Refuses what is not the same in all processes, by name: their numbers would be wrong."""
    if count() == 1:
        return
    first, *others = (json.loads(text) for text in texts_of_all(json.dumps(mine)))
    for number, theirs in enumerate(others, start=1):
        for name in (*first, *theirs):
            if first.get(name) != theirs.get(name):
                here, there = quoted(first.get(name)), quoted(theirs.get(name))
                raise ends_all(
                    UserError(
                        f"process {number} differs from the first one in {name} ({there}, {here}): "
                        "give all of them the same flags, files and versions, and an --out that "
                        "all of them see"
                    )
                )


def leave() -> None:
    """Parts from the others when all have come to an end that was agreed on.

    The process with jax's service would else be gone while others ask for it, and jax ends those.
    """
    if count() > 1:
        import jax

        with contextlib.suppress(RuntimeError):  # one was killed meanwhile
            jax.distributed.shutdown()


def put(arrays: Any, sharding: Any) -> Any:
    """Puts arrays that every process has whole where a sharding of all devices wants them."""
    import jax

    if count() == 1:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(lambda x: _put(x, sharding), arrays)


def _put(x: Any, sharding: Any) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(x), sharding))
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
