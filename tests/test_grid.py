"""Grids of runs: which cells flags and files mean, and what is refused on one line."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_nc import plugins
from fedjax_nc.cli import flags, main, sweep, sweep_flags
from fedjax_nc.errors import UserError
from fedjax_nc.sweep import cells, expect, file, grid, report
from fedjax_nc.sweep.cells import Cell

ROOT = Path(__file__).parents[1]


def points(*argv):
    return sweep_flags.parse(list(argv)).points


def labels(*argv):
    return [point.labels for point in points(*argv)]


def test_several_values_make_an_axis_and_one_is_common():
    found = points("--method", "fedavg", "fedetf", "--rounds=3", "--local.lr", "0.1", "0.2")
    assert [list(point.labels.values()) for point in found] == [
        ["fedavg", "0.1"],
        ["fedavg", "0.2"],
        ["fedetf", "0.1"],
        ["fedetf", "0.2"],
    ]
    assert found[1].argv == ("--method=fedavg", "--rounds=3", "--local.lr=0.2")
    assert labels("--method=fedavg", "--seeds", "0", "1") == [{}]  # seeds are no axis


def test_every_value_reaches_the_run():
    (one, two) = points(
        *(
            "--method=fedavg | fd",
            "--model=resnet8",
            "--federation.mapping",
            "64",
            "32",
            "--evaluation.no-personal",
        ),
        *("--local.nesterov", "True", "false", "--local.momentum=0.5", "--seeds", "3", "1"),
    )
    made = [flags.parse(list(point.argv)).configs for point in (one, two)]
    assert [cfg.seed for cfg in made[0]] == [3, 1]
    assert made[0][0].federation.mapping == (64, 32) and made[0][0].method == "fedavg | fd"
    assert [cfgs[0].local.nesterov for cfgs in made] == [True, False]
    assert not made[0][0].evaluation.personal
    quoted = points("--federation.mapping", "64 32", "16", "--model=resnet8")
    made = [flags.parse(list(point.argv)).configs[0] for point in quoted]
    assert [cfg.federation.mapping for cfg in made] == [(64, 32), (16,)]


def test_hyperparameters_go_to_the_methods_that_have_them():
    found = labels("--method", "fedavg", "fedprox", "fedavg | fd", "--hp.mu", "0.1", "0.5")
    assert found == [
        {"method": "fedavg"},
        {"method": "fedprox", "hp.mu": "0.1"},
        {"method": "fedprox", "hp.mu": "0.5"},
        {"method": "fedavg | fd"},
    ]
    one = points("--method", "fedavg", "fedprox", "--hp.mu=0.5")
    assert [point.argv[1:] for point in one] == [(), ("--hp.mu=0.5",)]


def test_axes_walked_together():
    found = labels(
        "--data.alpha", "0.1", "1", "--rounds", "5", "9", "--zip", "data.alpha", "rounds"
    )
    assert found == [{"data.alpha": "0.1", "rounds": "5"}, {"data.alpha": "1", "rounds": "9"}]
    pairs = ["--local.lr", "1", "2", "--local.momentum", "3", "4"]
    groups = ["--zip=data.alpha,rounds", "local.lr,local.momentum"]
    found = labels("--data.alpha", "0.1", "1", "--rounds", "5", "9", *pairs, *groups)
    assert len(found) == 4 and found[1]["local.lr"] == "2" and found[1]["local.momentum"] == "4"


def test_cells_left_out():
    argv = ["--method", "fedavg", "fedprox(mu=0.1, plain=True)", "--local.lr", "0.10", "0.2"]
    assert len(labels(*argv, "--without", "method=fedavg,local.lr=0.1")) == 3
    found = labels(*argv, "--without", "method=fedprox(mu=0.1,plain=True)", "local.lr=0.2")
    assert found == [{"method": "fedavg", "local.lr": "0.10"}]
    spared = ["--method", "fedavg", "fedprox", "--hp.mu", "0.1", "0.5", "--without", "hp.mu=0.1"]
    assert [one["method"] for one in labels(*spared)] == ["fedavg", "fedprox"]


GRID = """
method: [fedavg, fedprox]
rounds: 3
hp: {mu: [0.1, 0.5]}
evaluation.personal: false
federation: {mapping: [64, 32]}
data.alpha: [0.1, 1]
local.lr: [0.1, 0.2]
zip: [data.alpha, local.lr]
without: [{method: fedavg, data.alpha: 1}]
seeds: [0, 1]
"""


def test_a_file_gives_the_same(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    typed = points(
        *("--method", "fedavg", "fedprox", "--rounds=3", "--hp.mu", "0.1", "0.5"),
        *("--evaluation.no-personal", "--federation.mapping", "64", "32"),
        *("--data.alpha", "0.1", "1", "--local.lr", "0.1", "0.2", "--zip", "data.alpha,local.lr"),
        *("--without", "method=fedavg,data.alpha=1", "--seeds", "0", "1"),
    )
    assert points("--grid", str(path)) == typed and len(typed) == 5
    beside = points(f"--grid={path}", "--rounds=9", "--method=fedprox", "--without=data.alpha=1")
    assert len(beside) == 2 and "--rounds=9" in beside[0].argv


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "no flag was given, so there are no cells"),
        (["fedavg"], "unknown argument 'fedavg': a sweep takes flags"),
        (["--method", "fedavg", "--method=fedetf"], "--method was given twice"),
        (["--seed=1", "--seeds", "0", "1"], "--seed has no effect with --seeds"),
        (["--seed", "0", "1"], "--seed takes one number"),
        (["--seeds"], "--seeds without a number"),
        (["--rounds", "3", "3"], "--rounds has a value twice"),
        (["--out", "a", "b"], "--out is no axis"),
        (["--list"], "--list is no flag of a sweep"),
        (["--rounds=2", "--distributed"], "--distributed is no flag of a sweep"),
        (["--rounds=2", "--distributed.process_id=0"], "--distributed is no flag of a sweep"),
        (["--method=fedavg", "--hp.mu", "1", "2"], "fedavg has no hyperparameters"),
        (["--method=fedprox", "--hp.nu", "1", "2"], "did you mean 'mu'?"),
        (["--method", "fedavg", "fedeft"], "did you mean 'fedetf'?"),
        (["--rounds", "1", "2", "--zip", "rounds"], "--zip rounds: name two axes"),
        (["--rounds", "1", "2", "--zip", "rounds", "lr"], "unknown axis in --zip 'lr'"),
        (["--rounds=1", "--zip=rounds,local.lr"], "there is no axis"),
        (
            ["--rounds", "1", "2", "--local.lr", "1", "2", "3", "--zip=rounds,local.lr"],
            "rounds has 2, local.lr has 3 values: give as many of each",
        ),
        (["--rounds", "1", "2", "--zip=rounds,rounds"], "--zip names rounds twice"),
        (["--rounds", "1", "2", "--without", "round=1"], "did you mean 'rounds'?"),
        (["--rounds", "1", "2", "--without", "rounds=3"], "unknown value of rounds in --without"),
        (["--rounds", "1", "2", "--without", "rounds"], "give axis=value"),
        (["--rounds", "1", "2", "--without", "rounds=1", "rounds=2"], "--without leaves no cell"),
        (["--rounds=1", "--launcher=slrum"], "unknown launcher 'slrum': did you mean 'slurm'?"),
        (["--rounds=1", "--workers=0"], "--workers=0: give a number above zero"),
        (["--rounds=1", "--address=auto"], "--address is of a Ray cluster"),
        (["--rounds=1", "--gpus=1"], "--gpus has no effect with --launcher=local"),
        (["--rounds=1", "--slurm.cpus=2"], "--slurm. flags have no effect without"),
        (["--rounds=1", "--name=../x"], "--name=../x: give letters"),
        (["--rounds=1", "--columns=acc"], "unknown column 'acc'"),
        (["--rounds=1", "--grid=/nowhere.yaml"], "there is no such file"),
        (["--rounds", *map(str, range(200)), "--local.lr", *map(str, range(200))], "40,000 cells"),
        (["--local.no-nesterov", "True", "False"], "takes no value: write --local.nesterov"),
        (["--rounds", "1", "two"], "rounds two: "),
        (["--lr", "1", "2"], "did you mean --local.lr?"),
        (["--rounds", "1", "2", "--data.alpha=0.5"], "rounds 1: --data.alpha has no effect"),
    ],
)
def test_bad_input_is_one_line(capfd, tmp_path, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    assert main.main(["sweep", *argv]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1, printed.err
    assert printed.err.startswith("error: ") and said in printed.err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("launcher, name", [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_that_is_not_installed(capfd, monkeypatch, launcher, name):
    monkeypatch.setitem(sys.modules, name, None)
    assert main.main(["sweep", "--rounds=1", f"--launcher={launcher}"]) == 2
    told = f"needs {name}, which is not installed: pip install 'fedjax_nc[{launcher}]'\n"
    assert capfd.readouterr().err == f"error: --launcher={launcher} {told}"


ODD = [
    ("", "write flags of run with their values"),
    ("- rounds", "write flags of run with their values"),
    ("rounds: [", "cannot be read"),
    ("rounds: []", "rounds has no values, so there are no cells"),
    ("rounds: null", "rounds is None"),
    ("a: {b: {c: 1}}", "a table within a table"),
    ("workers: 2", "workers is no part of a grid: give it as --workers"),
    ("rounds: [1, 2]\nzip: rounds", "give names of axes in a list"),
    ("rounds: [1, 2]\nwithout: 3", "give a list of tables"),
    ("1: 2", "1 is no name of a flag"),
    ("x: &x [1]\ny: *x", "references with * are not read"),
    ("rounds: 2024-01-01", "give numbers, words"),
    ("rounds: !!python/object:os.system {}", "cannot be read"),
]


@pytest.mark.parametrize("text, said", ODD)
def test_odd_files_are_refused(tmp_path, text, said):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        sweep_flags.parse([f"--grid={path}"])
    assert said in str(refused.value)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.dates()
)
names = st.one_of(st.sampled_from(["rounds", "hp", "zip", "without", "seeds", "method"]), scalars)
contents = st.recursive(
    scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(names, x, max_size=3), max_leaves=9
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.differing_executors])
@given(st.one_of(contents.map(yaml.safe_dump), st.text(max_size=50), st.binary(max_size=50)))
def test_a_file_of_anything_is_a_grid_or_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("grid") / "grid.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf8", "replace"))
    try:
        written = file.read(path)
        made = grid.by_name(written.flags)
        grid.points(grid.make(made, together=written.together, without=written.without))
    except UserError as refused:
        assert "\n" not in str(refused)


def test_cells_that_are_the_same_run_are_trained_once(capsys, tmp_path):
    argv = [f"--out={tmp_path}", "--dataset=digits", "--method=fedprox", "--seeds", "0", "1"]
    asked = points(*argv, "--hp.mu", "0.01", "0.5")  # the first is the default
    tasks = sweep.tasks_of([Cell(point.labels, point.argv) for point in asked])
    assert [task.seeds for task in tasks] == [(0,), (1,), (0,), (1,)]
    assert all(flags.parse(list(task.argv)).configs == task.configs for task in tasks)
    saving = points(*argv, "--execution.checkpoint_every", "1", "2")
    tasks = sweep.tasks_of([Cell(point.labels, point.argv) for point in saving])
    assert len(tasks) == 2
    assert "2 of 4 cells are the same run as another one" in capsys.readouterr().err
    (both,) = sweep.tasks_of([Cell({}, (*argv, "--seeds_parallel"))])
    assert both.seeds == (0, 1) and len(both.directories) == 2


def test_a_plugin_s_method_is_an_axis(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from fedjax_nc.methods.averaging import fedavg\n"
        "from fedjax_nc.methods.registry import base\n\n\n"
        "@base\ndef mine(*, shifts: tuple[float, ...] = (0.5,)):\n    return fedavg()\n"
    )
    try:
        argv = ["--plugin", str(path), "--method", "mine", "fedavg", "--hp.shifts", "1", "2"]
        found = points(*argv)
        assert [point.labels for point in found] == [{"method": "mine"}, {"method": "fedavg"}]
        assert flags.parse(list(found[0].argv)).configs[0].method == "mine(shifts=(1.0, 2.0))"
    finally:
        plugins.forget()


def test_times_are_those_of_cells_alike():
    argv = ["--dataset=digits", "--method", "fedavg", "fedetf", "--local.lr", "0.1", "0.2"]
    tasks = sweep.tasks_of([Cell(p.labels, p.argv) for p in points(*argv, "--rounds", "3", "9")])
    few, many, other, _, etf, *_ = tasks
    works = {expect.kind(few.configs[0]): expect.Work(flops=1.0)}
    works |= {expect.kind(etf.configs[0]): expect.Work(flops=2.0)}
    known = expect.Expected(works)
    assert known.seconds(few) is None
    assert known.order(many) > known.order(etf) > known.order(few)
    known.learn(few, 6.0)
    assert known.seconds(other) == 6.0  # another learning rate
    assert known.seconds(many) == 18.0  # three times as many rounds
    assert known.seconds(etf) == 12.0  # twice the operations
    measured = expect.Expected({expect.kind(few.configs[0]): expect.Work(1.0, 0.5)})
    assert measured.seconds(many) == 4.5


def test_table_has_a_row_for_each_place_and_names_what_failed(tmp_path):
    argv = ["--dataset=digits", "--method", "fedavg", "fedprox", "--rounds", "3", "9"]
    asked = points(*argv, "--hp.mu", "0.1", "0.5", "--seeds", "0", "1", f"--out={tmp_path}")
    tasks = sweep.tasks_of([Cell(point.labels, point.argv) for point in asked])
    results = []
    for i, task in enumerate(tasks):
        summary = dict.fromkeys(("global_accuracy", "bytes_up_per_client"), 0.5 + 0.1 * i)
        summary |= {"method": task.configs[0].method, "seed": task.seeds[0]}
        summary |= {"seeds_in_parallel": 1, "seconds_per_round": 1.0, "bytes_down_per_client": 1}
        state = cells.State(cells.FINISHED, summaries=(summary,))
        results.append(cells.result_of(task, state))
    results[-1] = cells.result_of(tasks[-1], cells.State(cells.FAILED), reason="it burns", code=3)
    text = report.write_table(tmp_path, results)
    lines = text.splitlines()
    assert lines[0].startswith("| method | rounds | global |") and lines[0].endswith("| seeds |")
    assert lines[2].startswith("| `fedavg` | 3 | 55.0 ± 7.1 |")
    assert len([line for line in lines if line.startswith("| `")]) == 6
    assert lines[-1] == "- fedprox, rounds 9, hp.mu 0.5, seed 1: failed: it burns"
    assert (tmp_path / "table.md").read_text() == text
    folder = report.folder_of(str(tmp_path), tasks)
    assert folder == report.folder_of(str(tmp_path), tasks[::-1]) != tmp_path


def test_parsing_a_grid_needs_no_jax(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    code = f"""
import sys
from fedjax_nc.cli import sweep, sweep_flags
asked = sweep_flags.parse(["--grid={path}", "--data.partition=dirichlet", "--model=resnet8"])
sweep.tasks_of([sweep.Cell(p.labels, p.argv) for p in asked.points])
print(sorted({{"jax", "numpy", "ray", "submitit"}} & set(sys.modules)))
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_readers_of_files_know_the_own_flags():
    assert {"grid", "workers", "launcher", "name"} <= set(file._HERE)
