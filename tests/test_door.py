"""The Python door: the same words as the flags, the same numbers as the command."""

import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from runs import directory_of, rows_of, state_of, train

import fedjax_nc as fnc
from fedjax_nc.host import session

SMALL = {
    "dataset": "digits",
    "model": "mlp",
    "rounds": 3,
    "data": {"limit": 300},
    "local": {"epochs": 1},
    "federation": {"clients": 4, "participants": 2},
    "progress": False,
}
FLAGS = ["--dataset=digits", "--model=mlp", "--rounds=3", "--data.limit=300", "--local.epochs=1"]
FLAGS += ["--federation.clients=4", "--federation.participants=2"]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """What the command leaves of FedProx, two seeds."""
    out = tmp_path_factory.mktemp("command")
    argv = ["--method=fedprox", "--hp.mu=0.1", *FLAGS, "--seeds", "0", "1"]
    train(out, argv)
    return [directory_of(out, argv, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def in_memory():
    return fnc.run("fedprox", hp={"mu": 0.1}, seeds=(0, 1), **SMALL)


def test_in_memory_is_the_command_bit_for_bit(command, in_memory, tmp_path, monkeypatch):
    assert in_memory.directories == (None, None)
    for i, directory in enumerate(command):
        stored = state_of(directory)["weights"]["params"]
        for path, leaf in jax.tree_util.tree_leaves_with_path(in_memory.weights.params):
            there = dict(jax.tree_util.tree_leaves_with_path(stored))[path]
            np.testing.assert_array_equal(leaf[i], there, str(path))
        timed = ("seconds", "compiled")
        rows = [{k: v for k, v in row.items() if k not in timed} for row in in_memory.rows[i]]
        assert rows == rows_of(directory)
        summary = json.loads((directory / "summary.json").read_text())
        for name in ("global_accuracy", "personal_accuracy", "bytes_up", "method"):
            assert in_memory.summaries[i][name] == summary[name]


def test_nothing_is_written_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fnc.run("fedavg", **SMALL)
    assert not list(tmp_path.iterdir())


def test_with_out_it_is_the_commands_directory(command, tmp_path):
    result = fnc.run("fedprox", hp={"mu": 0.1}, out=tmp_path, **SMALL)
    relative = command[0].relative_to(command[0].parents[3])
    assert result.directory == tmp_path / relative
    assert rows_of(result.directory) == rows_of(command[0])
    again = fnc.run("fedprox(mu=0.1)", out=tmp_path, **SMALL)  # finished: read, not trained
    assert again.outcomes[0].state is None
    np.testing.assert_array_equal(again.curves["loss"], result.curves["loss"])
    for a, b in zip(*(jax.tree.leaves(r.weights) for r in (again, result)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.analyse("cost")["cost"]["parameters"] > 0


def test_result(in_memory):
    r = in_memory
    assert r.seeds == (0, 1) and list(r.rounds) == [1, 2, 3]
    assert r.curves["global_accuracy"].shape == r.curves["client_accuracy_worst"].shape == (2, 3)
    mean = np.mean([s["global_accuracy"] for s in r.summaries])
    assert r.summary["global_accuracy"] == mean and r.summary["seeds"] == [0, 1]
    assert r.config.method == "fedprox(mu=0.1)" and "fedprox" in repr(r)
    markdown, latex, csv = (r.table(form) for form in ("markdown", "latex", "csv"))
    values = [100 * s["global_accuracy"] for s in r.summaries]
    cell = f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
    assert cell in markdown and cell in csv and r"$\pm$" in latex and r"\toprule" in latex
    shares = [s["global_class_accuracy"] for s in r.summaries]
    np.testing.assert_allclose(r.summary["global_class_accuracy"], np.mean(shares, 0))
    assert r.curves["global_macro_f1"].shape == (2, 3)
    header = r.table(columns=["personal_accuracy", "global_macro_f1", "global_loss"])
    assert header.startswith("| method | personal | global_macro_f1 | global_loss | lr |")
    with pytest.raises(fnc.UserError, match="form of a table 'html'"):
        r.table("html")
    found = r.analyse("spectrum", seed=1, examples=50)
    assert set(found) == {"spectrum"}
    with pytest.raises(fnc.UserError, match="seed 7 was not run"):
        r.analyse("spectrum", seed=7)


def test_plot_leaves_the_backend_alone(in_memory, tmp_path):
    import matplotlib

    matplotlib.use("svg")
    before = matplotlib.rcParams.copy()
    figure = fnc.plot(in_memory, in_memory)
    figure.savefig(tmp_path / "plot.png")
    assert matplotlib.rcParams == before
    assert (tmp_path / "plot.png").stat().st_size > 5000
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == 2 and labels[0] != labels[1]


def test_a_method_object_is_its_name_where_its_name_builds_it():
    composed = fnc.methods.fd(beta=0.8)(fnc.methods.fedavg())
    by_object = fnc.run(composed, **SMALL)
    by_name = fnc.run("fedavg | fd(beta=0.8)", **SMALL)
    assert by_object.config == by_name.config
    np.testing.assert_array_equal(by_object.curves["loss"], by_name.curves["loss"])


def test_a_method_made_by_hand(tmp_path):
    def small_weights(context):
        return sum(jax.numpy.sum(x**2) for x in jax.tree.leaves(context.weights.params))

    def ridge(strength):
        return fnc.add(fnc.methods.fedavg(), fnc.Term("ridge", small_weights, strength))

    first = fnc.run(ridge(1e-3), out=tmp_path, **SMALL)
    name, mark = first.config.method.split("@")
    assert name == "fedavg" and len(mark) == 8 and "ridge" in first.curves
    assert fnc.run(ridge(1e-3), out=tmp_path, **SMALL).outcomes[0].state is None
    other = fnc.run(ridge(2e-3), out=tmp_path, **SMALL)
    assert other.directory != first.directory
    with pytest.raises(fnc.UserError, match="cannot read method"):
        fnc.run(first.config.method, **SMALL)


class Net(nn.Module):
    """A network with BatchNorm, whose features are 16."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = x.reshape(len(x), -1)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(16)(x))
        return nn.relu(x)


def halves(labels, clients, seed):
    """Every client has every so many examples."""
    order = np.random.RandomState(seed).permutation(len(labels))
    return [order[i::clients] for i in range(clients)]


def some_arrays():
    rng = np.random.RandomState(0)
    y = rng.randint(0, 3, 150)
    x = (rng.randint(0, 60, (150, 6, 6, 1)) + 60 * y[:, None, None, None]).astype(np.uint8)
    return x[:120], y[:120], x[120:], y[120:]


def test_own_arrays_network_and_partition(tmp_path):
    words = SMALL | {"dataset": some_arrays(), "model": Net(), "data": {"partition": halves}}
    words |= {"rounds": 5, "local": {"lr": 0.1, "epochs": 2}}
    found = fnc.run("fedavg", out=tmp_path, **words)
    cfg = found.config
    for label in (cfg.dataset, cfg.model, cfg.data.partition):
        assert len(label.split("@")[1]) == 8, label
    assert found.weights.stats and found.summary["final_accuracy"] > 0.8
    assert fnc.run("fedavg", out=tmp_path, **words).outcomes[0].state is None
    assert found.analyse("collapse", examples=30)["collapse"]
    x, *rest = some_arrays()
    changed = fnc.run("fedavg", **words | {"dataset": (255 - x, *rest)})
    assert changed.config.dataset != cfg.dataset
    np.savez(tmp_path / "own.npz", **dict(zip(ARRAYS, some_arrays(), strict=True)))
    by_file = fnc.run("fedavg", **words | {"dataset": tmp_path / "own.npz"})
    np.testing.assert_array_equal(by_file.curves["loss"], found.curves["loss"])


ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@pytest.mark.parametrize(
    "words, said",
    [
        ({"local": {"lrr": 0.1}}, "unknown setting of local 'lrr': did you mean 'lr'?"),
        ({"local": {"lr": "0.1"}}, "local.lr is float, '0.1' was given"),
        ({"local": {"lr": -1.0}}, "--local.lr=-1.0"),
        ({"data": {"partition": "dirichlett"}}, "did you mean 'dirichlet'?"),
        ({"data": {"rule": "ldaa"}}, "unknown data.rule 'ldaa': did you mean 'lda'?"),
        ({"data": {"alpha": 0.3}}, "--data.alpha has no effect with --data.partition=classes"),
        ({"hp": {"mu": 0.1}}, "hyperparameter"),
        ({"dataset": "digit"}, "unknown dataset 'digit': did you mean 'digits'?"),
        ({"dataset": (1, 2)}, "2 arrays: give train_x"),
        ({"model": 3}, "model: given a int"),
        ({"seeds": ()}, "give one or more different numbers"),
        ({"seeds": (0, 0)}, "give one or more different numbers"),
        ({"track": ("loss",)}, "unknown name in track 'loss'"),
        ({"protocol": "fedeft"}, "did you mean 'fedetf'?"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_bad_words_are_refused_in_one_line(words, said):
    with pytest.raises(fnc.UserError) as error:
        fnc.run("fedavg", **SMALL | words)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_every_public_name_is_there_with_types_and_a_docstring():
    assert set(fnc.__all__) >= set(fnc.PUBLIC) and set(dir(fnc)) == set(fnc.__all__)
    for name in fnc.PUBLIC:
        thing = getattr(fnc, name)
        assert (thing.__doc__ or "").strip(), name
        if isinstance(thing, types.FunctionType):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not signature.empty, name
            unknown = [p for p in signature.parameters.values() if p.annotation is p.empty]
            assert not unknown, (name, unknown)
    assert (Path(fnc.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        fnc.runn  # noqa: B018


def test_importing_needs_no_jax():
    code = "import sys, fedjax_nc; dir(fedjax_nc); fedjax_nc.UserError\n"
    code += "print(sorted({'jax', 'numpy', 'flax', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_jax_that_has_started_keeps_its_device():
    """It works, and says once how to use all cores."""
    code = "import jax; jax.devices()\nimport fedjax_nc as fnc\n"
    code += "words = dict(dataset='digits', rounds=1, data={'limit': 100}, progress=False)\n"
    code += "for _ in range(2): print(fnc.run('fedavg', **words).summary['rounds'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
    assert done.stderr.count("fedjax_nc.start()") == 1


def test_own_loop_is_the_run(in_memory):
    words = {k: v for k, v in SMALL.items() if k != "progress"}
    job = fnc.prepare("fedprox", hp={"mu": 0.1}, seed=1, **words)
    round_fn, state = fnc.make_round(job.task, job.executor), fnc.first_state(job)
    tested = []
    for n in range(job.config.rounds):
        state, _ = round_fn(state, fnc.make_hyper(job.task, n), job.data)
        tested.append(fnc.evaluate(job, state)["global_accuracy"])
    np.testing.assert_allclose(tested, in_memory.curves["global_accuracy"][1], atol=0.02)
    with pytest.raises(fnc.UserError, match="unknown word 'datset'"):
        fnc.prepare("fedavg", datset="digits")


def test_settings_follow_hyperparameters():
    """FedDr+ trains by dot regression at its own learning rate, also alone."""
    words = {k: v for k, v in SMALL.items() if k != "progress"} | {"protocol": "feddr_plus/lda"}
    jobs = [fnc.prepare("local", hp={"loss": loss}, **words) for loss in ("ce", "dr")]
    assert [job.config.local.lr for job in jobs] == [0.01, 0.35]


def test_a_notebook_sees_progress(monkeypatch):
    """A line that is rewritten, without ipywidgets."""
    shown = []

    class Handle:
        def update(self, thing):
            shown.append(thing.data)

    fake = types.ModuleType("IPython.display")
    fake.HTML = lambda data: types.SimpleNamespace(data=data)

    def display(thing, display_id=False):  # rich displays its own things without an id
        shown.append(getattr(thing, "data", ""))
        return Handle() if display_id else None

    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    fnc.run("fedavg", **SMALL | {"progress": True})
    assert any("round 3/3" in text for text in shown)


def test_outcomes_of_seeds_at_once_equal_separate_ones(in_memory):
    at_once = fnc.run("fedprox", hp={"mu": 0.1}, seeds=(0, 1), seeds_parallel=True, **SMALL)
    assert isinstance(at_once.outcomes[0], session.Outcome)
    np.testing.assert_allclose(
        at_once.curves["loss"], in_memory.curves["loss"], rtol=1e-4, atol=1e-5
    )
