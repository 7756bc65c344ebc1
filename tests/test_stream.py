"""Examples on the host: the same bits as on the device, fetched ahead, in bounded memory."""

import json
import threading

import jaxtyping
import numpy as np
import pytest
from runs import COMMAND, assert_same_run, directory_of, needs_proc, peak_of, steps_of

from fedjax_nc.cli import console, main
from fedjax_nc.data import stream
from fedjax_nc.io import rundir

STREAMED = "--execution.pool_mb=0"


def host(rows=30):
    x = np.arange(2 * rows, dtype=np.uint8).reshape(rows, 2)
    return stream.Host(x[:20], np.arange(0, 20, 2), x[20:], np.arange(20) % 3)


def test_gather_renumbers():
    rows = stream.Rows(np.array([[9, 12, 9], [0, -1, -1]]), np.array([3, 1]))
    x, y, (new,) = stream.gather(host(), 5, tables=[rows])
    assert x.shape == (5, 2) and new.size is rows.size
    np.testing.assert_array_equal(x[new.index[0]], [[36, 37], [44, 45], [36, 37]])  # kept[9] = 18
    np.testing.assert_array_equal(x[new.index[1, 0]], [0, 1])
    np.testing.assert_array_equal(y[new.index[0]], host().y[[9, 12, 9]])
    assert not x[3:].any()


def test_rows_of_a_file(tmp_path):
    x = np.arange(60, dtype=np.int32).reshape(10, 3, 2)
    np.save(tmp_path / "x.npy", x)
    mapped, indices, out = np.load(tmp_path / "x.npy", "r"), np.array([0, 7, 9]), np.zeros_like(x)
    stream._read(mapped, indices, out[:3])
    np.testing.assert_array_equal(out[:3], x[indices])
    assert not out[3:].any()
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(mapped.offset + 9 * x[0].nbytes)
    with pytest.raises(OSError, match="ends before example 9"):
        stream._read(mapped, indices, out[:3])


@pytest.mark.parametrize("most", [1, 4, 7, 1000])
def test_cut_rows_continue(most):
    sizes = [np.array([5, 0, 9]), np.array([4])]
    tables = [stream.Rows(np.arange(len(s) * 9).reshape(-1, 9), s) for s in sizes]
    seen = [[[] for _ in s] for s in sizes]
    for piece in stream.cut(tables, 3, most=most):
        # a batch begun is a batch finished
        assert sum(table.size.sum() for table, _ in piece) <= most + 2
        for k, ((index, size), rows) in enumerate(piece):
            assert not size[rows == len(sizes[k])].any()
            for place, row in enumerate(rows[size > 0]):
                assert not len(seen[k][row]) % 3, "between batches only"
                seen[k][row] += index[place, : size[place]].tolist()
    for table, rows in zip(tables, seen, strict=True):
        for index, size, row in zip(*table, rows, strict=True):
            assert row == index[:size].tolist()


def test_the_next_is_made_while_the_caller_has_this_one():
    made = [threading.Event() for _ in range(3)]
    got = []
    for i in stream.ahead(lambda i: made[i].set() or i, range(3)):
        got.append(i)
        assert i == 2 or made[i + 1].wait(10)
    assert got == [0, 1, 2]

    def broken(_):
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        list(stream.ahead(broken, range(3)))


def test_streamed_is_the_same_run(tmp_path, monkeypatch):
    """Rounds, tests, personal and fine-tuned models; stopped on the host, resumed on the device."""
    command = [*COMMAND[:-3], "--seed=0", "--evaluation.personal_global"]
    assert main.train([*command, f"--out={tmp_path / 'device'}"]) == 0
    assert main.train([*command, STREAMED, f"--out={tmp_path / 'host'}"]) == 0
    device, streamed = (directory_of(tmp_path / k, command) for k in ("device", "host"))
    assert device.name == streamed.name and device.parent.name == streamed.parent.name
    assert_same_run(device, streamed)

    shown = console.Progressing.round

    def interrupt(self, rows, rounds):
        shown(self, rows, rounds)
        if rows[0]["round"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(console.Progressing, "round", interrupt)
        assert main.train([*command, STREAMED, f"--out={tmp_path / 'both'}"]) == 130
    resumed = directory_of(tmp_path / "both", command)
    assert steps_of(resumed) == [2]
    assert main.train([*command, f"--out={tmp_path / 'both'}"]) == 0
    assert_same_run(device, resumed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, executor",
    [("fedavg | ccvr(samples=5)", "scan"), ("scaffold", "vmap"), ("scaffold", "debug")],
)
def test_streamed_methods(tmp_path, method, executor):
    command = [
        f"--method={method}",
        *COMMAND[1:-3],
        "--rounds=2",
        "--evaluation.no-finetune",
        f"--execution.executor={executor}",
    ]
    rows = []
    for name, flags in (("device", ()), ("host", (STREAMED,))):
        assert main.train([*command, *flags, f"--out={tmp_path / name}"]) == 0
        end = json.loads((directory_of(tmp_path / name, command) / "summary.json").read_text())
        rows.append({k: v for k, v in end.items() if "accuracy" in k and isinstance(v, float)})
    assert rows[0] == pytest.approx(rows[1], abs=0.02 if "ccvr" in method else 1e-6)


def test_dry_run_says_where_the_examples_are(capfd, monkeypatch):
    # lowering puts ArgInfo where a State has arrays
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    small = ["--dataset=digits", "--model=mlp", "--method=fedavg", "--dry-run"]
    assert main.train([*small, STREAMED]) == 0
    text = " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert "pool 0.1 MB in host memory, 0.0 MB of it on the device" in text


@pytest.mark.slow
@needs_proc
def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """The peak of two runs whose rounds are alike, the second with ten times the pictures."""
    side, peaks, sizes = 64, [], []
    for clients in (100, 1000):
        data = tmp_path / str(clients)
        folder = data / "imagenet100" / str(side)
        folder.mkdir(parents=True)
        count = 100 * clients
        for split, n in (("train", count), ("test", 1000)):
            # a file without blocks: reading it fills memory as any other, writing it nothing
            np.lib.format.open_memmap(folder / f"{split}_x.npy", "w+", np.uint8, (n, side, side, 3))
            np.save(folder / f"{split}_y.npy", np.arange(n, dtype=np.int32) % 100)
        sizes.append(count * side * side * 3 / 1e6)
        argv = [
            "--dataset=imagenet100",
            f"--data.side={side}",
            f"--data.dir={data}",
            "--method=fedavg",
            "--model=mlp",
            "--rounds=2",
            "--data.partition=iid",
            STREAMED,
            f"--federation.clients={clients}",
            "--federation.participants=10",
            "--local.epochs=1",
            "--evaluation.no-personal",
            "--data.client_test=split",
            "--evaluation.every=2",
            f"--out={tmp_path / 'out'}",
        ]
        peaks.append(peak_of("run.py", *argv))
    assert sizes[1] - sizes[0] > 1000
    assert peaks[1] - peaks[0] < 250, (sizes, peaks)


def test_pool_mb_is_not_part_of_a_run():
    from fedjax_nc.cli import flags

    a, b = (flags.parse([f"--execution.pool_mb={n}"]).configs[0] for n in (0, 1))
    assert rundir.path_of("runs", a) == rundir.path_of("runs", b)
