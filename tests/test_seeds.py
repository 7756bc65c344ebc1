"""Several seeds as one program, and several rounds in one dispatch: the same runs as one by one."""

import json
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import (
    DATA,
    FEDETF,
    FEW,
    PLAIN,
    ROOT,
    SAVING,
    assert_same_run,
    directory_of,
    rows_of,
    state_of,
    steps_of,
    train,
)
from trees import fresh, identical, personal_of, same, scores_of

from fedjax_nc import tree
from fedjax_nc.cli import main
from fedjax_nc.data.federated import make_table
from fedjax_nc.data.stream import on_device
from fedjax_nc.host import assemble, loop
from fedjax_nc.host.states import stack_states
from fedjax_nc.methods import registry
from fedjax_nc.train import executors
from fedjax_nc.train import round as rounds
from fedjax_nc.train.evaluate import make_evaluate
from fedjax_nc.train.personalise import make_personalise, personalise
from fedjax_nc.train.seeds import Seeds, lead, own_tables

COMMAND = [
    FEDETF,
    *DATA,
    *FEW,
    *SAVING,
    "--rounds=5",
    "--evaluation.every=4",
    "--evaluation.last=2",
    "--evaluation.finetune",
]
BOTH, PARALLEL = ["--seeds", "0", "1"], ["--seeds", "0", "1", "--seeds_parallel"]


def lrs(t, count):
    return t.hyper._replace(lr=jnp.full(count, t.hyper.lr))


def with_other_tables(t):
    """The tiny federation's clients in another order, one of them longer."""
    index, size = (np.asarray(x)[::-1] for x in t.data.train)
    parts = [row[:n] for row, n in zip(index, size, strict=True)]
    parts[0] = np.concatenate([parts[0], parts[2][:9], parts[3]])
    tests = [part[1::2] for part in parts]
    counts = t.data.class_counts[::-1]
    data = t.data._replace(
        train=make_table(parts), client_test=make_table(tests), class_counts=counts
    )
    return t._replace(data=data)


CASES = [("scaffold", "sharded", True), (FEDETF.split("=", 1)[1], "sharded", False)]
MORE = [
    ("fedavg", "chunked", True),
    ("scaffold", "chunked", False),
    ("fedavg", "sharded", False),
    (CASES[1][0], "chunked", True),
    (CASES[1][0], "sharded", True),
]


@pytest.mark.parametrize(
    "spec, executor, own",
    [*CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in MORE)],
)
def test_seeds_at_once_equal_separate_ones(x64, tiny, spec, executor, own):
    t = tiny(spec, federation={"participants": 5})
    each = [t, with_other_tables(t) if own else t]
    states = [t.state(seed) for seed in (0, 1)]
    seeds = Seeds(2, data=own_tables()) if own else Seeds(2)
    data = assemble.stack_tables([e.data for e in each]) if own else t.data
    how = executors.make_executor(executor, chunk=2)
    data, state = how.place((data, stack_states(states)))
    run = rounds.make_rounds(t.task, how, at_once=2, seeds=seeds)
    expected = [e.run(2, executor, state=fresh(s)) for e, s in zip(each, states, strict=True)]
    state, metrics = run(state, lrs(t, 2), 2, data)
    final = fresh(state)
    for i, (other, last) in enumerate(expected):
        same(tree.take(final, i), other)
        same(tree.take(metrics, (1, i)), last)

    evaluate = make_evaluate(t.task, how, batch_size=4, seeds=seeds)
    scores = evaluate(state.weights, on_device(data).tests())
    for i, (e, (other, _)) in enumerate(zip(each, expected, strict=True)):
        same(tree.take(scores, i), scores_of(t, how, other.weights, data=how.place(e.data)))
    phases = t.task.method.finetune or t.task.method.phases
    hyper = t.hyper if phases == t.task.method.phases else t.hyper._replace(term_weights=())
    quiet = lambda *_: None  # noqa: E731
    score = personalise(
        t.task,
        how,
        train=make_personalise(t.task, how, batch_size=4, phases=phases, seeds=seeds),
        state=state,
        hyper=hyper,
        feed=on_device(data),
        progress=quiet,
    )["own"]
    for i, (e, (other, _)) in enumerate(zip(each, expected, strict=True)):
        alone = personal_of(t, how, phases, state=other, data=how.place(e.data))
        same(tree.take(score, i), alone)


# --- whole runs


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    """Two seeds one after the other."""
    out = tmp_path_factory.mktemp("separate")
    train(out, [*COMMAND, *BOTH])
    return out


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """The same as one program."""
    out = tmp_path_factory.mktemp("parallel")
    train(out, [*COMMAND, *PARALLEL])
    return out


def assert_like(left, right):
    """The same run up to rounding: records, final state, summary, and the same files."""
    names = [
        {str(p.relative_to(d)) for p in d.rglob("*") if "ckpt" not in str(p)} for d in (left, right)
    ]
    assert names[0] == names[1]
    assert steps_of(left) == steps_of(right)
    assert (left / "config.yaml").read_text() == (right / "config.yaml").read_text()
    assert (left / "partition.npz").read_bytes() == (right / "partition.npz").read_bytes()
    for a, b in zip(rows_of(left), rows_of(right), strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(jax.tree.leaves(a), jax.tree.leaves(b), rtol=1e-3)
    a, b = state_of(left), state_of(right)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
    ends = [json.loads((d / "summary.json").read_text()) for d in (left, right)]
    assert list(ends[0]) == list(ends[1])
    for name in ("global_accuracy", "personal_accuracy", "finetuned_accuracy", "bytes_up"):
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-3)


def cut(directory, step):
    """As a kill after this checkpoint would leave it."""
    (directory / "summary.json").unlink()
    for later in [s for s in steps_of(directory) if s > step]:
        shutil.rmtree(directory / "ckpt" / str(later))


def test_parallel_runs_leave_what_separate_ones_do(separate, parallel):
    for seed in (0, 1):
        left, right = (directory_of(d, [*COMMAND, *BOTH], seed) for d in (separate, parallel))
        assert_like(left, right)
        summary = json.loads((right / "summary.json").read_text())
        assert summary["seeds_in_parallel"] == 2 and summary["seed"] == seed
        assert json.loads((left / "summary.json").read_text())["seeds_in_parallel"] == 1


def test_begun_in_parallel_finished_separately(separate, parallel, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(parallel, out)
    cut(directory_of(out, COMMAND), 4)
    train(out, COMMAND)  # seed 0
    assert_like(directory_of(out, COMMAND), directory_of(separate, COMMAND))


def test_begun_separately_finished_in_parallel(separate, tmp_path, capfd):
    """Seeds that stand at different rounds are different programs."""
    out = tmp_path / "out"
    shutil.copytree(separate, out)
    first, second = (directory_of(out, [*COMMAND, *BOTH], seed) for seed in (0, 1))
    cut(first, 4)
    cut(second, 4)
    train(out, [*COMMAND, *PARALLEL])
    printed = capfd.readouterr().err
    assert "seed 0: resuming after round 4" in printed and "seeds 0 1: round 5/5" in printed
    cut(first, 4)
    cut(second, 5)
    train(out, [*COMMAND, *PARALLEL])
    printed = capfd.readouterr().err
    assert "seed 1: resuming after round 5" in printed and "seed 0: round 5/5" in printed
    for seed, directory in enumerate((first, second)):
        assert_like(directory, directory_of(separate, [*COMMAND, *BOTH], seed))
    cut(first, 4)
    train(out, [*COMMAND, *PARALLEL])  # the other is finished
    assert_like(first, directory_of(separate, COMMAND))


@pytest.mark.slow
def test_own_partitions_and_client_state(tmp_path):
    argv = ["--method=scaffold", *DATA, *FEW, "--rounds=2", "--data.seed=-1"]
    train(tmp_path / "separate", [*argv, *BOTH])
    train(tmp_path / "parallel", [*argv, *PARALLEL])
    directories = []
    for seed in (0, 1):
        directories += [
            directory_of(tmp_path / d, [*argv, *BOTH], seed) for d in ("separate", "parallel")
        ]
    parts = [(d / "partition.npz").read_bytes() for d in directories]
    assert parts[0] == parts[1] != parts[2] == parts[3]
    for a, b in (directories[:2], directories[2:]):
        np.testing.assert_allclose(
            [row["global_loss"] for row in rows_of(a)],
            [row["global_loss"] for row in rows_of(b)],
            rtol=1e-3,
        )


def test_seed_that_diverges_is_named(tmp_path, capfd):
    argv = [
        "--method=fedavg",
        *DATA,
        *FEW,
        *PLAIN,
        "--rounds=30",
        "--local.schedule=exponential",
        "--local.decay=1e6",
        "--evaluation.every=30",
    ]
    assert main.train([*argv, *PARALLEL, f"--out={tmp_path}"]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: seed 0, round ") and ", client " in line


def test_refused(refused):
    assert "give several" in refused("--seeds_parallel")
    assert "give several" in refused("--seeds", "3", "--seeds_parallel")
    assert "debug" in refused(*PARALLEL, "--execution.executor=debug")


def test_large_client_state_is_refused(tmp_path, capfd):
    argv = ["--method=moon", *DATA, *FEW, "--execution.client_state_mb=0", *PARALLEL]
    assert main.train([*argv, f"--out={tmp_path}"]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert "--execution.client_state_mb=0" in line and "leave out --seeds_parallel" in line


# --- several rounds in one dispatch


@pytest.mark.parametrize("executor", ["scan", "sharded"])
def test_rounds_at_once_are_rounds(tiny, executor):
    """Bit for bit, in one trace; the state that went in is gone."""
    traced = 0
    method = registry.build("scaffold")
    term = method.phases[0].terms[0]

    def counting(context):
        nonlocal traced
        traced += 1
        return term.fn(context)

    phase = method.phases[0]._replace(terms=(term._replace(fn=counting),))
    t = tiny(method._replace(phases=(phase,)), federation={"participants": 3})
    how = executors.make_executor(executor)
    run = rounds.make_rounds(t.task, how, at_once=4)
    data = how.place(t.data)
    rates = t.hyper._replace(lr=np.array([0.1, 0.05, 0.02, 0.01], np.float32))
    state = how.place(lead(t.state()))
    given = jax.tree.leaves((state.weights, state.shared, state.clients))
    at_once, stacked = run(state, rates, 3, data)
    at_once, stacked = tree.take(at_once, 0), jax.tree.map(lambda x: x[:, 0], stacked)
    assert all(x.is_deleted() for x in given)
    first, state = traced, how.place(lead(t.state()))
    for i in range(3):
        one = rates._replace(lr=np.pad(rates.lr[i : i + 1], (0, 3)))
        state, metrics = run(state, one, 1, data)
        identical(tree.take(metrics, (0, 0)), tree.take(stacked, i))
    identical(tree.take(state, 0), at_once)
    assert 0 < first == traced
    by_one, _ = t._replace(hyper=t.hyper).run(1, executor)
    state, _ = run(how.place(lead(t.state())), rates, 1, data)
    same(tree.take(state, 0), by_one, rtol=1e-5, atol=1e-6)


def test_dispatches_change_nothing(tmp_path, monkeypatch):
    argv = [
        "--method=scaffold",
        *DATA,
        *FEW,
        *PLAIN,
        "--rounds=15",
        "--evaluation.every=6",
        "--execution.checkpoint_every=8",
        "--local.schedule=exponential",
        "--local.decay=0.9",
    ]
    seen = {}

    def counting(name):
        make = rounds.make_rounds

        def made(*args, **options):
            run = make(*args, **options)

            def call(state, hyper, count, data):
                seen.setdefault(name, []).append(count)
                return run(state, hyper, count, data)

            return call

        return made

    for name, seconds in (("long", 1e9), ("short", 0.0)):
        monkeypatch.setattr(loop, "_SECONDS", seconds)
        monkeypatch.setattr(loop, "make_rounds", counting(name))
        train(tmp_path / name, argv)
    assert seen["short"] == [1] * 15
    assert sum(seen["long"]) == 15 and len(seen["long"]) < 10
    ends = np.cumsum(seen["long"])
    assert {6, 8, 12, 15} <= set(ends.tolist())
    assert_same_run(*(directory_of(tmp_path / name, argv) for name in ("long", "short")))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg | ccvr(samples=20)", "spherefed(calibrate=True)"])
def test_calibration_of_parallel_seeds_ends(tmp_path, method):
    """As a command: with as many devices as threads, LAPACK's batches wait for themselves."""
    script = [sys.executable, str(ROOT / "experiments" / "run.py"), f"--method={method}"]
    command = [*script, *DATA, *FEW, *PARALLEL, *PLAIN, "--rounds=1", f"--out={tmp_path}"]
    done = subprocess.run(command, timeout=150, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "calibrated" in done.stdout, done.stderr
