"""Partition files, npz datasets and run directories, damaged: understood or refused on one line."""

import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import yaml
from fuzzing import ANYTHING, answered, damaged, fuzz, replaced
from hypothesis import example, given
from hypothesis import strategies as st

from fedjax_nc.cli import curves
from fedjax_nc.config import RunConfig, fingerprint, from_dict, to_dict
from fedjax_nc.data import own, partition_file
from fedjax_nc.io import environment, facts, rundir

PARTS = {str(k): list(range(k, 60, 3)) for k in range(3)}
META = {"pool": "train", "allow": [], "labels": "ab", "dataset": "digits"}
CONFIG = to_dict(RunConfig())
ROW = {"round": 1, "seconds": 0.5, "compiled": True, "global_accuracy": 0.5, "global_loss": 1.0}
SUMMARY = {"method": "fedavg", "dataset": "digits", "seed": 0, "rounds": 2, "seeds_in_parallel": 1}
SUMMARY |= {"global_accuracy": 0.5, "client_accuracy": 0.5, "seconds_per_round": 0.5}
START = {"devices": 1, "backend": "cpu", "processor": "x", "jax": "1", "jaxlib": "1", "round": 0}
ENVIRONMENT = {"packages": {"jax": "1", "jaxlib": "1"}, "devices": ["cpu:0"], "started": "now"}
ENVIRONMENT |= {"plugins": [{"path": "a.py", "sha256": "0"}], "history": [START]}
FACTS = {"run": {"config": fingerprint(RunConfig()), "order": "official"}, "begun": START}
FACTS |= {"arrays": {"round": "int32 scalar 0"}, "rows": json.dumps(ROW) + "\n"}


def npz_of(arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def bomb(name, size):
    """An archive whose one array is zeros, a thousandth of its size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file, file.open(name, "w") as out:
        header = {"descr": "<i8", "fortran_order": False, "shape": (size // 8,)}
        np.lib.format.write_array_header_1_0(out, header)
        for _ in range(size >> 20):
            out.write(bytes(1 << 20))
    return stream.getvalue()


NPZ = npz_of({k: np.array(v) for k, v in PARTS.items()} | {"meta": np.array(json.dumps(META))})
IMAGES = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
LABELS = np.array([0, 1, 2, 1])
DATA = npz_of({"train_x": IMAGES, "train_y": LABELS, "test_x": IMAGES, "test_y": LABELS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@fuzz(60)
@given(damaged(NPZ))
def test_a_partition_file_of_damaged_bytes(folder, content):
    (folder / "parts.npz").write_bytes(content)
    answered(partition_file.load, folder / "parts.npz", 60)


@fuzz(60)
@given(replaced(PARTS) | ANYTHING)
def test_a_partition_file_of_anything(folder, content):
    (folder / "parts.json").write_text(json.dumps(content))
    answered(partition_file.load, folder / "parts.json", 60)


@fuzz(40, share=0.5)
@example({"pool": "x"})
@example({"allow": "repeated"})
@given(replaced(META))
def test_the_facts_of_a_partition_file(folder, meta):
    arrays = {k: np.array(v) for k, v in PARTS.items()} | {"meta": np.array(json.dumps(meta))}
    (folder / "facts.npz").write_bytes(npz_of(arrays))
    found = answered(partition_file.load, folder / "facts.npz", 60)
    assert found is None or found[2].get("pool", "train") in ("train", "test")


@fuzz(40)
@given(damaged(DATA))
def test_an_npz_dataset(folder, content):
    (folder / "data.npz").write_bytes(content)
    answered(own.load, str(folder / "data.npz"))


def test_bombs_and_pipes_are_refused_before_they_are_read(folder):
    (folder / "bomb.npz").write_bytes(bomb("client0.npy", 1 << 29))
    assert answered(partition_file.load, folder / "bomb.npz", 60) is None
    assert answered(own.load, str(folder / "bomb.npz")) is None
    (folder / "deep.json").write_text("[" * 1_000_000)
    assert answered(partition_file.load, folder / "deep.json", 60) is None
    for name in ("pipe.npz", "pipe.json"):
        os.mkfifo(folder / name)
        assert answered(partition_file.load, folder / name, 60) is None
    assert answered(own.load, str(folder / "pipe.npz")) is None


@fuzz(80)
@example({**CONFIG, "data": None})
@example({**CONFIG, "local": [1]})
@example({**CONFIG, "rounds": True})
@example({**CONFIG, "rounds": 10**400})
@given(replaced(CONFIG) | ANYTHING)
def test_a_configuration_of_anything(content):
    found = answered(from_dict, content)
    assert found is None or from_dict(to_dict(found)) == found


def write_run(directory, config=None, metrics=None, summary=None):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    whole = yaml.safe_dump(CONFIG).encode()
    (directory / "config.yaml").write_bytes(whole if config is None else config)
    rows = (json.dumps(ROW) + "\n" + json.dumps(ROW | {"round": 2}) + "\n").encode()
    (directory / "metrics.jsonl").write_bytes(rows if metrics is None else metrics)
    (directory / "summary.json").write_bytes(
        json.dumps(SUMMARY).encode() if summary is None else summary
    )


def table_of(directory):
    rundir.read(directory)
    return curves.markdown(curves.arrange([curves.open_run(directory)]))


LAUGHS = "a: &a {x: 1}\n" + "\n".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}]}}"
    for a, b in zip("abcdefghijklmnopq", "bcdefghijklmnopqr", strict=True)
)


@fuzz(60)
@example(LAUGHS.encode())
@example(b"!!bool x")
@example(b"!!timestamp x")
@given(damaged(yaml.safe_dump(CONFIG).encode()))
def test_a_damaged_configuration_file(folder, content):
    write_run(folder / "run", config=content)
    answered(table_of, folder / "run")


@fuzz(80)
@example(json.dumps({**ROW, "compiled": 10**400}).encode())
@given(
    damaged(json.dumps(ROW).encode() + b"\n" + json.dumps(ROW).encode())
    | st.lists(replaced(ROW) | ANYTHING, max_size=3).map(
        lambda rows: "\n".join(map(json.dumps, rows)).encode()
    )
)
def test_damaged_records(folder, content):
    write_run(folder / "run", metrics=content)
    answered(table_of, folder / "run")


@fuzz(60)
@given(
    damaged(json.dumps(SUMMARY).encode())
    | (replaced(SUMMARY) | ANYTHING).map(lambda c: json.dumps(c).encode())
)
def test_a_damaged_summary(folder, content):
    write_run(folder / "run", summary=content)
    answered(table_of, folder / "run")


def resumed(directory):
    """What a command reads of a run before it starts jax."""
    plugin = {"path": "a.py", "sha256": "0"}
    rundir.finished(directory)
    rundir.check(directory, RunConfig(), overwrite=False, plugins=[plugin])
    rundir.mend(directory, RunConfig())
    begun = (facts.newest(directory / "ckpt") or {}).get("begun", {})
    for start in (begun, *environment.history(directory)):
        said = environment.differences(start, START | {"devices": 2})
        assert len(said) < 1500 and (not said or said.isprintable())


def write_facts(directory, content):
    path = directory / "ckpt" / "2" / "facts" / "metadata"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))


@fuzz(40)
@example(FACTS | {"run": None})
@example(FACTS | {"run": {}})
@example(FACTS | {"rows": 7})
@given(replaced(FACTS) | ANYTHING)
def test_facts_that_were_sealed_again(folder, content):
    write_run(folder / "run")
    write_facts(folder / "run", facts.sealed(content) if isinstance(content, dict) else content)
    answered(resumed, folder / "run")
    answered(table_of, folder / "run")


@fuzz(30)
@example(ENVIRONMENT | {"plugins": [{"path": [1], "sha256": "1"}]})
@given(replaced(ENVIRONMENT) | ANYTHING)
def test_an_environment_of_anything(folder, content):
    write_run(folder / "run")
    (folder / "run" / "environment.json").write_text(json.dumps(content))
    answered(resumed, folder / "run")


def test_run_directories_of_pipes_are_refused(folder):
    """Nobody waits for what is never written."""
    write_run(folder / "run")
    write_facts(folder / "run", facts.sealed(FACTS))
    for name in ("ckpt/2/facts/metadata", "environment.json", "metrics.jsonl"):
        (folder / "run" / name).unlink(missing_ok=True)
        os.mkfifo(folder / "run" / name)
        answered(resumed, folder / "run")
        answered(table_of, folder / "run")


def test_an_undamaged_run_has_its_table(folder):
    write_run(folder / "run")
    assert "50.0" in table_of(folder / "run")
