"""What is written is on the disk before it counts, and a machine that fails damages nothing."""

import errno
import json
import os
import shutil
import sys
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml
from runs import files_of

from fedjax_nc import inputs
from fedjax_nc.config import RunConfig, fingerprint, to_dict
from fedjax_nc.data import cache
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import assemble
from fedjax_nc.io import checkpoint, checksums, environment, facts, files, left, records, rundir
from fedjax_nc.types import State, Weights

CONFIG = RunConfig()
RUN = {"config": fingerprint(CONFIG), "order": "official"}
ROW = {"seconds": 0.5, "compiled": False, "global_accuracy": 0.5, "global_loss": 1.0}


def state_after(number, seeds=()):
    """A state without a network, of one seed or with the axis of seeds."""
    weights = Weights({"head": np.full((*seeds, 6), number, np.float32)}, {})
    key = jax.random.wrap_key_data(jnp.zeros((*seeds, 2), jnp.uint32))
    return State(jnp.full(seeds, number, jnp.int32), key, weights=weights, shared={}, clients={})


def save(directory, *numbers):
    """Checkpoints after these rounds."""
    with checkpoint.open_manager(directory / "ckpt") as manager:
        for number in numbers:
            lines = [records.line_of({"round": n + 1} | ROW) for n in range(number)]
            about = {"rows": "".join(lines), "run": RUN, "begun": {"devices": 1}}
            checkpoint.save([manager], state_after(number, seeds=(1,)), about=[about])
    (directory / "metrics.jsonl").write_text("".join(lines))


def reseal(step, **changes):
    """Other facts of a step, with the right checksum."""
    path = step / "facts" / "metadata"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "checksum"} | changes
    content = {k: v for k, v in content.items() if v != "gone"}
    path.write_text(json.dumps(facts.sealed(content)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The directory of a run of four rounds with two checkpoints; tests do not change it."""
    directory = tmp_path_factory.mktemp("saved") / "seed0"
    save(directory, 2, 4)
    (directory / "config.yaml").write_text(yaml.safe_dump(to_dict(CONFIG)))
    (directory / "environment.json").write_text(json.dumps({"history": [{"devices": 1}]}))
    summary = {"method": "fedetf", "dataset": "digits", "seed": 0, "rounds": 4}
    summary |= {"global_accuracy": 0.5, "seconds_per_round": 0.5}
    (directory / "summary.json").write_text(json.dumps(summary))
    assert rundir.finished(directory)
    return directory


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "seed0")


# --- flushed before it replaces


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    step, flushed, flush = tmp_path / "ckpt" / "3", [], files.flush

    def noted(path):
        flushed.append((path, facts.steps(step.parent)))
        flush(path)

    monkeypatch.setattr(files, "flush", noted)
    save(tmp_path, 3)
    assert facts.steps(step.parent) == [2, 3]
    early = {path for path, steps in flushed if steps == [1, 2]}
    late = {path for path, steps in flushed if steps == [1, 2, 3]}  # before an older one goes
    [folder] = {path for path in early if path.parent == step.parent}
    written = {folder / path.relative_to(step) for path in step.rglob("*")}
    assert folder / "facts" / "metadata" in early
    assert {path.name for path in written - early} == {"commit_success.txt"}
    assert late >= {*step.iterdir(), step, step.parent}


def write_arrays(folder):
    for part in cache.Arrays._fields:
        np.save(folder / f"{part}.npy", np.arange(100, dtype=np.int32))


def read_cache(root, write=write_arrays):
    return cache.cached("key", root, write=write, broken="{}")


def test_decoded_arrays_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    folder, flushed, flush = tmp_path / ".fedjax_nc_cache" / "key", [], files.flush

    def noted(path):
        flushed.append((path.name, folder.exists()))
        flush(path)

    monkeypatch.setattr(files, "flush", noted)
    read_cache(tmp_path)
    assert {name for name, named in flushed if not named} >= {p.name for p in folder.iterdir()}
    assert flushed[-1] == (folder.parent.name, True)


# --- a machine that fails


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_machine_that_fails_is_no_damage(saved, monkeypatch, number):
    before, steps = files_of(saved.parent), saved / "ckpt"

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), "x")

    readers = [
        lambda: checkpoint.restore(steps, state_after(0)),
        lambda: checkpoint.load(steps, state_after(0), step=4),
        lambda: facts.newest(steps),
        lambda: rundir.finished(saved),
        lambda: rundir.check(saved, CONFIG, overwrite=False),
        lambda: rundir.mend(saved, CONFIG),
        lambda: rundir.read(saved),
        lambda: environment.history(saved),
        lambda: left.summary(saved / "summary.json"),
    ]
    monkeypatch.setattr(inputs, "_opener", fail)
    for reader in readers:
        with pytest.raises(OSError) as fault:
            reader()
        assert fault.value.errno == number
    monkeypatch.undo()
    for name in ("listdir", "scandir"):  # else all checkpoints, or arrays, seem to be lost
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(os, name, fail)
            checkpoint.restore(steps, state_after(0))

    def fail_in_words(*args, **kwargs):  # as tensorstore does
        try:
            raise ValueError(f"UNKNOWN: Failed to open: {os.strerror(number)} [os_error_code=...]")
        except ValueError as error:
            raise RuntimeError("restoring failed") from error

    monkeypatch.setattr(ocp.StandardCheckpointer, "restore", fail_in_words)
    with pytest.raises(OSError) as fault:
        checkpoint.restore(steps, state_after(0))
    assert (fault.value.errno, fault.value.filename) == (number, str(steps / "4" / "state"))
    assert files_of(saved.parent) == before


def test_a_machine_that_fails_costs_no_decoded_arrays(tmp_path, monkeypatch):
    read_cache(tmp_path)
    before = files_of(tmp_path)

    def fail(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
        patch.setattr(np, "load", fail)
        read_cache(tmp_path, write=fail)
    assert files_of(tmp_path) == before


def test_late_threads_of_orbax_are_not_heard(monkeypatch):
    """A disk that is full ends one of several writers; the others find the event loop closed."""
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: heard.append(str(seen.exc_value)))
    with pytest.raises(OSError), checkpoint.told_once():
        for text in ("Event loop is closed", "something else"):
            sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(text)))
        raise OSError(errno.ENOSPC, "No space left on device")
    assert heard == ["something else"]


# --- decoded arrays of several processes


def test_arrays_that_another_process_has_made_meanwhile_are_kept(tmp_path, monkeypatch):
    read_cache(tmp_path)
    folder, opened, made = tmp_path / ".fedjax_nc_cache" / "key", cache._open, []

    def open_and_be_overtaken(path):
        if made:
            return opened(path)
        shutil.rmtree(path)  # the other process has found the same damage
        path.mkdir()
        write_arrays(path)
        made.append(path.stat().st_ino)
        raise ValueError("damaged")

    monkeypatch.setattr(cache, "_open", open_and_be_overtaken)
    assert read_cache(tmp_path, write=lambda folder: 1 / 0).train_x[7] == 7
    assert [folder.stat().st_ino] == made


def test_processes_of_one_host_decode_in_turn(tmp_path):
    written, found = [], []

    def write(folder):
        written.append(folder)
        time.sleep(0.1)
        write_arrays(folder)

    def read():
        found.append(read_cache(tmp_path, write=write).train_x[7])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7, 7, 7] and len(written) == 1
    assert [p.name for p in (tmp_path / ".fedjax_nc_cache").iterdir()] == ["key"]


# --- facts that somebody has sealed again

HOSTILE = [
    *({"run": value} for value in ([1], None, 7, {"config": [1]})),
    *({"rows": value} for value in (7, ["x"], '{"round": 1}\n', "[" * 5000 + "\n")),
    *({"arrays": value} for value in ("gone", [], {"round": 7})),
    {"begun": [[]]},
]


@pytest.mark.parametrize("change", HOSTILE, ids=range(len(HOSTILE)))
def test_facts_of_another_kind_are_damage(copied, change):
    steps, good = copied / "ckpt", files_of(copied / "ckpt" / "2")
    reseal(steps / "4", **change)
    (copied / "summary.json").unlink()
    rundir.check(copied, CONFIG, overwrite=False)
    found = checkpoint.restore(steps, state_after(0))
    assert int(found.state.round) == 2 and "checkpoint of round 4 is damaged" in found.warnings[0]
    assert len(found.rows) == 2 and files_of(steps / "2") == good


@pytest.mark.parametrize("depth", [60, 500, 900])
def test_deep_lists_are_damage(copied, depth):
    """Python's parser may take what a function that calls itself does not."""
    deep = json.dumps({"round": 1, "lists": 0}).replace(": 0", f": {'[' * depth}{']' * depth}")
    (copied / "metrics.jsonl").write_text(f"{deep}\n")
    assert "metrics.jsonl is no row of a round" in rundir.damage(copied)
    (copied / "summary.json").write_text(deep)
    with pytest.raises(facts.Damaged, match="too deeply nested"):
        left.summary(copied / "summary.json")


def test_rows_of_arrays_that_are_none():
    for rows in ("a:b", "1:2:3:4", ""):
        assert checksums.changed({f"x[{rows}]": "int32 3 0"}, {"x": np.zeros(3, np.int32)})


def test_losses_may_be_infinite_and_accuracies_not(copied):
    """A run that diverges is no damaged one."""
    log = copied / "metrics.jsonl"
    good = log.read_text()
    log.write_text(good.replace('"global_loss": 1.0', '"global_loss": Infinity'))
    assert all(row["global_loss"] > 1e300 for row in left.rows(log))
    log.write_text(good.replace('"global_accuracy": 0.5', '"global_accuracy": Infinity'))
    with pytest.raises(facts.Damaged, match="has no number for global_accuracy"):
        left.rows(log)


@pytest.mark.parametrize("name", ["dataset", "model", "method"])
def test_a_configuration_of_nothing_we_know_is_refused(copied, name):
    """Such a value passes as text until a dataset, network or method is looked for."""
    for step in ("2", "4"):
        reseal(copied / "ckpt" / step, run={})
    (copied / "config.yaml").write_text(yaml.safe_dump(to_dict(CONFIG) | {name: "nope"}))
    with pytest.raises(UserError, match=rf"(?=.*nope).*{name}"):
        assemble(rundir.read(copied))  # as `analyse` does
