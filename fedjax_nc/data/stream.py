"""Examples that stay on the host: the devices get those of a round's clients, a round ahead.

What is sent looks like the data of a run that fits the device: its pool holds the examples that
somebody needs, padded to a fixed number, and its tables have indices into that pool. So a round
computes the same on it, bit for bit.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc import processes
from fedjax_nc.data import arrays
from fedjax_nc.types import FederatedData, Pool, Table

_LOOKED_AT = 256  # examples of a split whose content is part of the fingerprint
NOBODY = -1  # in a table's index: a slot whose example is not wanted


class Host(NamedTuple):
    """All examples in host memory or on disk: training ones first, official test ones behind.

    Where devices hold them too, each a share, `fetch` gives those of some indices to all devices.
    """

    train_x: np.ndarray
    kept: np.ndarray  # indices of the training examples that the run has
    test_x: np.ndarray
    y: np.ndarray
    fetch: Callable[[np.ndarray], Pool] | None = None

    @property
    def num_bytes(self) -> int:
        """The size of all examples of the run."""
        return len(self.y) * self.test_x[:1].nbytes

    @property
    def fingerprint(self) -> str:
        """Characters that change with any label, and with examples: a few of them are looked at."""
        train, test = (
            rows[:: max(1, -(-len(rows) // _LOOKED_AT))]
            for rows in (self.kept, np.arange(len(self.test_x)))
        )
        found = [_rows_of(self.train_x, train), _rows_of(self.test_x, test)]
        return arrays.fingerprint([*found, self.y])


class Rows(NamedTuple):
    """A `Table` in host memory."""

    index: np.ndarray
    size: np.ndarray


class Feed(NamedTuple):
    """Where rounds and tests get their data.

    clients: (groups of clients, tests=False, official=False) -> an iterator of the data of each
             group: its training examples, and its own and the official test examples if they are
             asked for
    tests:   () -> an iterator of pieces of all test examples; a row that does not fit into a piece
             goes on in the next
    sizes:   the number of training examples of each client, summed over seeds
    at_once: the number of clients whose examples there is room for
    """

    clients: Callable[..., Iterator[FederatedData]]
    tests: Callable[[], "Iterator[Tests]"]
    sizes: np.ndarray
    at_once: int


class Tests(NamedTuple):
    """A piece of the test examples."""

    data: FederatedData
    clients: Any  # the client that each row of `data.client_test` belongs to
    official: Any  # the row of the official test set that each row of `data.test` belongs to


def on_device(data: FederatedData) -> Feed:
    """Returns the feed of data that is on the device already."""
    clients, official = (np.arange(t.index.shape[-2]) for t in (data.client_test, data.test))
    sizes = np.asarray(data.train.size).reshape(-1, len(clients)).sum(0)
    return Feed(
        lambda groups, tests=False, official=False: itertools.repeat(data),
        lambda: iter((Tests(data, clients, official=official),)),
        sizes=sizes,
        at_once=len(sizes),
    )


def from_host(
    host: Host, data: FederatedData, *, participants: int, batch_size: int, sharding: Any
) -> Feed:
    """Returns the feed of examples on the host: one piece is used while the next is fetched.

    Args:
      host: the examples.
      data: the tables of all clients; its pool is not read.
      participants: clients of a round, whose examples a piece has room for.
      batch_size: of evaluation; a row of tests is cut between its batches.
      sharding: where pieces are put.
    """
    train, client_test, test = (
        Rows(*map(np.asarray, t)) for t in (data.train, data.client_test, data.test)
    )

    # devices must be asked by one thread: two would ask them in another order each
    each = ahead if host.fetch is None else map

    def send(room: int, *tables: Rows) -> FederatedData:
        x, y, new = gather(host, room, tables=tables)
        train, client_test, test = (Table(*t) for t in new)
        made = FederatedData(
            Pool(x, y), train, client_test=client_test, test=test, class_counts=data.class_counts
        )
        return processes.put(made, sharding)

    def clients(
        groups: Iterable[np.ndarray], tests: bool = False, official: bool = False
    ) -> Iterator[FederatedData]:
        common = _only(test, np.arange(len(test.size)) if official else [])

        def send_group(group: np.ndarray) -> FederatedData:
            mine = _only(client_test, group if tests else [])
            sizes = train.size + client_test.size if tests else train.size
            most = room(sizes, len(group)) + int(common.size.sum())
            return send(most, _only(train, group), mine, common)

        return each(send_group, groups)

    def pieces() -> Iterator[Tests]:
        most = max(room(train.size, participants), batch_size)

        def send_piece(piece: list[tuple[Rows, np.ndarray]]) -> Tests:
            (clients, official), rows = zip(*piece, strict=True)
            return Tests(send(most + batch_size, _only(train, []), clients, official), *rows)

        return each(send_piece, cut((client_test, test), batch_size, most=most))

    return Feed(clients, pieces, sizes=train.size, at_once=participants)


def room(sizes: np.ndarray, clients: int) -> int:
    """Returns the number of examples of the largest clients, which is enough for any others."""
    return max(1, int(np.sort(sizes)[::-1][:clients].sum()))


def gather(host: Host, room: int, *, tables: Sequence[Rows]) -> tuple[Any, Any, list[Any]]:
    """Reads the examples that tables have indices of.

    Args:
      host: the examples.
      room: the number of examples that are returned; nobody wants the last of them.
      tables: rows of indices, with NOBODY where no example is wanted.

    Returns:
      The examples, their labels, and the tables with indices into these examples.
    """
    wanted = [t.index != NOBODY for t in tables]
    indices = np.unique(np.concatenate([t.index[w] for t, w in zip(tables, wanted, strict=True)]))
    new = [Rows(np.zeros(t.index.shape, np.int32), t.size) for t in tables]
    for t, w, made in zip(tables, wanted, new, strict=True):
        made.index[w] = np.searchsorted(indices, t.index[w])
    if host.fetch is not None:
        found = host.fetch(np.pad(indices, (0, room - len(indices))).astype(np.int32))
        return found.x, found.y, new
    x = _aligned((room, *host.test_x.shape[1:]), host.test_x.dtype)
    y = np.zeros(room, np.int32)
    y[: len(indices)] = host.y[indices]
    known = np.searchsorted(indices, len(host.kept))
    _read(host.train_x, host.kept[indices[:known]], out=x[:known])
    _read(host.test_x, indices[known:] - len(host.kept), out=x[known : len(indices)])
    x[len(indices) :] = 0
    return x, y, new


def cut(
    tables: Sequence[Rows], batch_size: int, *, most: int
) -> Iterator[list[tuple[Rows, np.ndarray]]]:
    """Cuts tables into pieces of whole batches.

    The first batches of all rows come first, so that every piece has work for all devices. Pieces
    have equally many rows; those that fill a piece up are empty and belong to no row of the table.

    Args:
      tables: rows of indices.
      batch_size: examples of a batch.
      most: examples of a piece, up to a batch.

    Yields:
      For each table its part of the piece, and the row of the table that each of its rows is from.
    """
    batches = np.array(
        [
            (k, row, first)
            for k, t in enumerate(tables)
            for first in range(0, t.index.shape[1], batch_size)
            for row in np.flatnonzero(t.size > first)
        ]
    ).reshape(-1, 3)
    counts = np.array([min(batch_size, tables[k].size[row] - at) for k, row, at in batches], int)
    piece = (np.cumsum(counts) - counts) // most
    pieces = [batches[piece == p] for p in range(int(piece.max(initial=0)) + 1)]
    rows = [[np.unique(b[b[:, 0] == k, 1]) for k in range(len(tables))] for b in pieces]
    room = np.maximum(1, np.max([[len(r) for r in mine] for mine in rows], axis=0))
    for some, mine in zip(pieces, rows, strict=True):
        new = [
            (
                Rows(np.full((n, t.index.shape[1]), NOBODY), np.zeros(n, np.int32)),
                np.pad(r, (0, n - len(r)), constant_values=len(t.size)),
            )
            for t, r, n in zip(tables, mine, room, strict=True)
        ]
        for k, row, at in some:
            index, size = new[k][0]
            place = np.searchsorted(mine[k], row)
            part = tables[k].index[row, at : min(at + batch_size, tables[k].size[row])]
            index[place, size[place] : size[place] + len(part)] = part
            size[place] += len(part)
        yield new


def ahead(make: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yields make(item) of each item; a thread makes the next while the caller has this one."""
    with ThreadPoolExecutor(1) as thread:
        waiting = None
        for item in items:
            coming = thread.submit(make, item)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()


def _only(table: Rows, rows: Any) -> Rows:
    """A table of the same shape in which other rows than these have no examples.

    Sizes stay, so that a client knows its own; without any rows they are zero.
    """
    index = np.full_like(table.index, NOBODY)
    if not len(rows):
        return Rows(index, np.zeros_like(table.size))
    real = np.arange(index.shape[1]) < table.size[rows, None]
    index[rows] = np.where(real, table.index[rows], NOBODY)
    return Rows(index, table.size)


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Makes an array that all devices of a CPU read in place; others are copied for each device."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _rows_of(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns rows of an array in memory or in a file."""
    out = np.empty((len(indices), *x.shape[1:]), x.dtype)
    _read(x, indices, out=out)
    return out


def _read(x: np.ndarray, indices: np.ndarray, out: np.ndarray) -> None:
    """Reads rows of an array in memory or in a file into `out`.

    A file is read, not mapped: with a row the system maps what is around it, up to the whole file,
    and counts it as this process's memory.
    """
    if not isinstance(x, np.memmap):
        np.take(x, indices, axis=0, out=out, mode="clip")  # other modes take a copy of `out` first
        return
    with open(str(x.filename), "rb") as file:
        for index, row in zip(indices, out, strict=True):
            file.seek(x.offset + int(index) * row.nbytes)
            if file.readinto(row) != row.nbytes:
                raise OSError(f"{x.filename} ends before example {index}")
