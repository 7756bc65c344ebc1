"""What is damaged on disk is noticed, told and made again; it never changes a number."""

import json
import os
import shutil
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml
from runs import DATA, FEW, PLAIN, SAVING, assert_same_run, directory_of, files_of, steps_of, train

from fedjax_nc import config
from fedjax_nc.cli import flags, main
from fedjax_nc.data import cache
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import state_of_seed
from fedjax_nc.io import checkpoint, checksums, environment, facts, rundir

COMMAND = ["--method=fedavg", *DATA, *FEW, *SAVING, *PLAIN, "--rounds=6", "--evaluation.last=3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a finished run; tests that change files take a copy."""
    return train(tmp_path_factory.mktemp("whole"), COMMAND)


@pytest.fixture
def copied(whole, tmp_path):
    """The directory of a copy of the finished run."""
    shutil.copytree(whole.parents[3], tmp_path / "out")
    return directory_of(tmp_path / "out", COMMAND)


@pytest.fixture
def stopped(copied):
    """The same run, as if it was stopped before its end."""
    (copied / "summary.json").unlink()
    return copied


@pytest.fixture(scope="module")
def template():
    """A state of the run before round one."""
    return state_of_seed(assemble(flags.parse(COMMAND).configs[0]))


def again(directory):
    """The same command once more."""
    return train(directory.parents[3], COMMAND)


def flip(path):
    """Changes a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def same(left, right):
    """Whether two states are equal bit for bit."""
    return checksums.of(checkpoint._to_host(left)) == checksums.of(checkpoint._to_host(right))


# --- checkpoints


def test_every_file_of_a_checkpoint_may_be_damaged(whole, template, tmp_path):
    """What is restored is always what was saved, of this round or of the one before."""
    good = {step: checkpoint.load(whole / "ckpt", template, step=step) for step in (4, 6)}
    used = {4: 0, 6: 0}
    files = sorted(p.relative_to(whole) for p in (whole / "ckpt" / "6").rglob("*") if p.is_file())
    ways = {
        flip: files,
        Path.unlink: files[::3],
        lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]): files[1::3],
    }
    for damage, some in ways.items():
        for file in some:
            shutil.copytree(whole / "ckpt", tmp_path / "ckpt")
            damage(tmp_path / file)
            found = checkpoint.restore(tmp_path / "ckpt", template)
            step = int(found.state.round)
            assert same(found.state, good[step]), file
            assert [row["round"] for row in found.rows] == list(range(1, step + 1))
            used[step] += 1
            if step == 4:
                first, second = found.warnings
                assert first.startswith("checkpoint of round 6 is damaged (")
                assert first.endswith("): kept as ckpt/6.damaged") and len(first) < 200
                assert second == "the last good checkpoint is round 4: 2 rounds are computed again"
                assert (tmp_path / "ckpt" / "6.damaged").is_dir()
            shutil.rmtree(tmp_path / "ckpt")
    assert used[4] > 8 and used[6]  # some files, such as Orbax's timestamps, mean nothing


def test_damaged_checkpoints_are_kept_and_the_run_ends_as_it_would(stopped, whole, template, capfd):
    shutil.rmtree(stopped / "ckpt" / "6" / "state")
    (stopped / "ckpt" / "6.damaged").mkdir()  # there was one before
    with pytest.raises(
        UserError, match=r"round 6 .* is damaged .* choose another with --round, of"
    ):
        checkpoint.load(stopped / "ckpt", template, step=6)
    assert steps_of(stopped) == [4, 6]  # `analyse` changes nothing
    again(stopped)
    assert "kept as ckpt/6.damaged2" in capfd.readouterr().err
    assert_same_run(stopped, whole)
    with checkpoint.open_manager(stopped / "ckpt") as manager:
        assert list(manager.all_steps()) == [4, 6]
        manager.reload()
        assert manager.latest_step() == checkpoint.last(stopped / "ckpt") == 6


@pytest.mark.parametrize("what", ["config", "order", "labels", "examples", "partition"])
def test_checkpoints_of_another_run_are_refused_and_left_alone(whole, template, what):
    asked = facts.newest(whole / "ckpt")["run"]
    assert set(asked) == {"config", "order", "labels", "examples", "partition"}
    before = files_of(whole)
    with pytest.raises(UserError, match=r"holds a run of (an)?other .*--out, or --overwrite"):
        checkpoint.restore(whole / "ckpt", template, run=asked | {what: "x"})
    assert files_of(whole) == before


def test_another_precision_is_no_damage(whole, template):
    wide = jax.tree.map(lambda x: x, template)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), wide.weights.params)
    wide = wide.__class__(
        wide.round,
        wide.key,
        weights=wide.weights._replace(params=params),
        shared=wide.shared,
        clients=wide.clients,
    )
    with pytest.raises(UserError, match=r"other arrays .* was float32 .*, is float64"):
        checkpoint.restore(whole / "ckpt", wide)
    assert steps_of(whole) == [4, 6]


def test_checkpoints_of_earlier_versions(whole, template, tmp_path):
    """They have one item and no facts; the records are those of metrics.jsonl."""
    good = checkpoint.load(whole / "ckpt", template, step=6)
    with ocp.CheckpointManager(tmp_path / "ckpt") as manager:
        manager.save(6, args=ocp.args.StandardSave(checkpoint._to_host(good)))
    shutil.copy(whole / "metrics.jsonl", tmp_path)
    found = checkpoint.restore(tmp_path / "ckpt", template)
    assert same(found.state, good) and len(found.rows) == 6 and found.begun is None
    assert found.warnings == ["checkpoint of round 6 is of an earlier version, without checksums"]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:5]))
    found = checkpoint.restore(tmp_path / "ckpt", template)
    assert found.state is None and "metrics.jsonl has lost rows" in found.warnings[0]
    assert (tmp_path / "ckpt" / "6.damaged" / "default").is_dir()


# --- records, summary, configuration


def test_lost_rows_change_no_summary(stopped, whole):
    log = stopped / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:700] + bytes(500))
    again(stopped)
    assert_same_run(stopped, whole)


SPOILT = {
    "summary.json": (b"", b"null", b"{}", b"\xff\xfe\x00", b'{"rounds": 6'),
    "metrics.jsonl": (b"", b"null\n", b"{}\n", b"\xff\xfe\n", b'{"round": 1}\n{"round": 1}\n'),
}


def test_damaged_files_of_a_finished_run_are_told_and_made_again(copied, whole, capfd):
    for name, contents in SPOILT.items():
        good = (copied / name).read_bytes()
        changed = good.replace(b"0.", b"1.", 1)  # only a checksum tells
        for content in (*contents, changed):
            (copied / name).write_bytes(content)
            assert rundir.finished(copied) is None and name in rundir.damage(copied)
            assert main.curves([str(copied)]) == 2
            line = capfd.readouterr().err
            assert line.startswith("error: ") and line.count("\n") == 1 and name in line
        (copied / name).write_bytes(good)
    (copied / "summary.json").write_bytes(b"null")
    (copied / "metrics.jsonl").write_bytes(b"\xff")
    again(copied)
    printed = capfd.readouterr().err
    assert "made again of the last checkpoint" in printed and "after round 6" in printed
    assert_same_run(copied, whole)
    (copied / "summary.json").write_bytes(b"null")
    shutil.rmtree(copied / "ckpt")
    assert main.train([*COMMAND, f"--out={copied.parents[3]}"]) == 2
    assert "there is no checkpoint to make it of" in capfd.readouterr().err


def test_damaged_config_is_written_again(copied, capfd):
    path = copied / "config.yaml"
    good = path.read_text()
    half = yaml.safe_dump(yaml.safe_load(good) | {"data": None})
    for content in (b"\xff\x00", b"", half.encode(), good.replace("lr: 0.0", "lr: 1.0").encode()):
        path.write_bytes(content)
        assert main.curves([str(copied)]) == 2
        assert capfd.readouterr().err.count("\n") == 1
        again(copied)
        printed = capfd.readouterr().err
        assert "config.yaml was damaged: it is written again" in printed
        assert "already finished" in printed and path.read_text() == good


def test_a_killed_start_never_blocks(tmp_path):
    cfg = flags.parse(COMMAND).configs[0]
    directory = rundir.path_of(str(tmp_path), cfg)
    directory.mkdir(parents=True)
    (directory / "config.yaml.tmp").write_text("method: fed")
    (directory / "ckpt").mkdir()
    rundir.check(directory, cfg, overwrite=False)
    other = flags.parse([*COMMAND, "--seed=1"]).configs[0]
    with pytest.raises(UserError, match="another configuration"):
        rundir.check(directory, other, overwrite=False)


def test_values_of_a_config_are_checked(copied, capfd):
    shutil.rmtree(copied / "ckpt")
    good = yaml.safe_load((copied / "config.yaml").read_text())
    for change in ({"rounds": "six"}, {"local": {"lr": [1]}}, {"seed": -1}, {7: 8}):
        (copied / "config.yaml").write_text(yaml.safe_dump(good | change))
        assert main.curves([str(copied)]) == 2
        assert capfd.readouterr().err.count("\n") == 1


# --- devices and versions


def test_other_devices_are_told_recorded_and_refused_if_strict(stopped, monkeypatch, capfd):
    begun = environment.history(stopped)
    assert [one["round"] for one in begun] == [0] and begun[0]["devices"] == 2
    start = environment.start
    monkeypatch.setattr(environment, "start", lambda devices: start(1) | {"jax": "0.0.1"})
    before = files_of(stopped)
    assert main.train([*COMMAND, f"--out={stopped.parents[3]}", "--strict"]) == 2
    words = "the run began with 2 devices, jax "
    line = next(x for x in capfd.readouterr().err.splitlines() if x.startswith("error: "))
    assert words in line and "goes on with 1 device, jax 0.0.1: go on there, or leave out" in line
    assert files_of(stopped) == before
    again(stopped)
    assert words in capfd.readouterr().err
    history = environment.history(stopped)
    assert [one["round"] for one in history] == [0, 6]
    assert [one["devices"] for one in history] == [2, 1]
    assert {"time", "host", "pid", "backend", "python", "jaxlib"} < set(history[1])


def test_devices_are_no_part_of_a_runs_name(tmp_path):
    first = flags.parse(["--method=fedetf"]).configs[0]
    assert config.config_hash(first) == "b1136b30"  # as the README shows it
    two = config.changed(first, "execution", values={"devices": 2})
    assert config.config_hash(two) == "b1136b30"
    path = rundir.path_of(str(tmp_path), two)
    earlier = path.parents[1] / config.config_hash(two, devices=2) / path.name
    earlier.mkdir(parents=True)  # where an earlier version had it
    assert rundir.path_of(str(tmp_path), two) == earlier != path
    rundir.check(earlier, two, overwrite=False)


# --- decoded data


def test_a_flipped_cache_is_decoded_again(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    written = []

    def write(folder):
        written.append(folder)
        for part in cache.Arrays._fields:
            np.save(folder / f"{part}.npy", np.arange(100, dtype=np.int32))

    def read():
        return cache.cached("key", tmp_path, write=write, broken="{}")

    folder = tmp_path / ".fedjax_nc_cache" / "key"
    read()
    known = json.loads((folder / cache.CHECKSUMS).read_text())
    assert len(known) == 4 and len(written) == 1
    os.utime(folder / "test_x.npy")  # touched, and still the same
    read()
    assert len(written) == 1 and known != json.loads((folder / cache.CHECKSUMS).read_text())
    flip(folder / "train_x.npy")
    assert read().train_x[50] == 50 and len(written) == 2
    assert "is damaged (train_x.npy is not what was written): decoding again" in (
        capfd.readouterr().err
    )
    stamp = (folder / "train_y.npy").stat().st_mtime_ns
    flip(folder / "train_y.npy")  # by a disk that keeps the file's time
    os.utime(folder / "train_y.npy", ns=(stamp, stamp))
    read()
    assert len(written) == 2
    old = time.time() - 8 * 24 * 3600
    os.utime(folder / cache.CHECKSUMS, (old, old))
    read()
    assert len(written) == 3
    (folder / cache.CHECKSUMS).unlink()  # a cache of an earlier version gets them
    read()
    assert len(written) == 3 and (folder / cache.CHECKSUMS).is_file()
