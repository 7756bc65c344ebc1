"""The command line: every kind of bad input is one line and exit code 2, and nothing is written."""

import dataclasses
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from runs import GROUPS, SMALL, deal

from fedjax_nc import config, devices, protocols
from fedjax_nc.cli import flags, main
from fedjax_nc.config import RunConfig
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError
from fedjax_nc.host import dry_run
from fedjax_nc.io import rundir
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import MODELS

ROOT = Path(__file__).parents[1]
RUN = [sys.executable, str(ROOT / "experiments" / "run.py")]


# --- what the flags mean


def parse(*argv):
    return flags.parse(list(argv)).configs[0]


def test_protocol_dataset_and_method_set_the_defaults():
    assert parse() == protocols.resolve("quick", "mnist5k", "fedetf")
    assert parse("--protocol", "fedetf", "--dataset=cifar10").local.batch_size == 128
    assert parse("--dataset=digits").model == "mlp"
    papers = {
        "fedetf": ("resnet20_b", "resnet20_b", "resnet18"),
        "feddw": ("cnn", "resnet18", "cnn"),
        "feddr_plus": ("vgg11", "mobilenet", "mobilenet"),
        "fedalign": ("resnet56_bottleneck",) * 3,
        "fedblade": ("mobilenet_v2",) * 3,
    }
    for protocol, models in papers.items():
        for dataset, model in zip(("cifar10", "cifar100", "tiny_imagenet"), models, strict=True):
            made = parse(f"--protocol={protocol}", f"--dataset={dataset}")
            assert made.model == model
            assert (made.federation.norm == "batch") == (model == "mobilenet")


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_protocol_resolves_for_every_dataset_and_method(protocol):
    for dataset in DATASETS:
        for method in [*catalogue.bases(), "fedbabu | fd(beta=0.5)"]:
            made = protocols.resolve(protocol, dataset, method)
            assert (made.protocol, made.dataset) == (protocol, dataset)
            assert made.model in MODELS
            first = catalogue.parse(made.method)[0].entry.name
            assert first == catalogue.parse(method)[0].entry.name
            config.validate(made)


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_any_flag_overrides_the_protocol(protocol):
    made = parse(
        f"--protocol={protocol}",
        "--method=fedprox",
        "--rounds=7",
        "--local.lr=0.5",
        "--data.partition=iid",
        "--federation.clients=31",
        "--federation.participants=3",
        "--hp.mu=0.25",
        "--model=resnet8",
        "--evaluation.last=2",
    )
    assert (made.rounds, made.local.lr, made.data.partition) == (7, 0.5, "iid")
    assert (made.federation.clients, made.federation.participants) == (31, 3)
    plain = ", plain=True" if protocol == "fedetf" else ""  # as that paper's code
    assert made.method == f"fedprox(mu=0.25{plain})"
    assert (made.model, made.evaluation.last) == ("resnet8", 2)


def test_protocol_sets_hyperparameters_unless_given():
    assert parse("--protocol=fedalign", "--method=fedprox").method == "fedprox(mu=0.0001)"
    assert parse("--protocol=fedalign", "--method=fedprox(mu=0.5)").method == "fedprox(mu=0.5)"


@pytest.mark.parametrize(
    "argv, method",
    [
        (["--method=fedprox", "--hp.mu=0.1"], "fedprox(mu=0.1)"),
        (["--method=fedprox", "--hp.mu", "0.01"], "fedprox"),  # the default is not written
        (["--method=fedprox( mu = 1 )"], "fedprox(mu=1.0)"),
        (["--method=scaffold", "--hp.no-adaptive"], "scaffold(adaptive=False)"),
        (["--method=fedbabu|fd", "--hp.beta=0.5"], "fedbabu | fd(beta=0.5)"),
    ],
)
def test_hyperparameters_become_part_of_the_method(argv, method):
    assert parse(*argv).method == method


def test_seeds_give_a_configuration_each():
    made = flags.parse(["--seeds", "3", "1"]).configs
    assert [c.seed for c in made] == [3, 1]
    assert len({config.config_hash(c) for c in made}) == 1


# --- the name of a configuration

FIELDS = [f.name for f in dataclasses.fields(RunConfig) if f.name not in GROUPS]
FIELDS += [f"{g}.{f.name}" for g, c in GROUPS.items() for f in dataclasses.fields(c)]
WITHOUT_EFFECT = {"seed", "data.dir", "data.partition_order"}
FREE = ("checkpoint_every", "save_seconds", "pool_mb", "devices", "shard")
WITHOUT_EFFECT |= {f"execution.{name}" for name in FREE}


def change(made, name):
    """The configuration with another value in one field."""
    group, _, field = name.rpartition(".")
    holder = getattr(made, group) if group else made
    value = getattr(holder, field)
    choices = typing.get_args(typing.get_type_hints(type(holder))[field])
    if choices and str in map(type, choices):
        other = next(c for c in choices if c != value)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, tuple):
        other = (*value, "flip" if field == "augment" else 3)
    else:
        other = f"{value}x" if isinstance(value, str | None) else value + 1
    if not group:
        return dataclasses.replace(made, **{field: other})
    return dataclasses.replace(made, **{group: dataclasses.replace(holder, **{field: other})})


def test_hash_tells_configurations_apart():
    made = parse()
    hashes = {name: config.config_hash(change(made, name)) for name in FIELDS}
    same = {name for name, value in hashes.items() if value == config.config_hash(made)}
    assert same == WITHOUT_EFFECT
    others = [value for name, value in hashes.items() if name not in same]
    assert len(set(others)) == len(others)


def test_two_configurations_never_share_a_directory():
    made = parse()
    assert rundir.path_of("runs", made) == rundir.path_of("runs", change(made, "data.dir"))
    variants = [made, *(change(made, n) for n in FIELDS if n not in WITHOUT_EFFECT - {"seed"})]
    variants += [parse("--method=fedbabu | fd"), parse("--method=fedbabu|fd(beta=0.8)")]
    paths = [rundir.path_of("runs", v) for v in variants]
    assert len(set(paths)) == len(paths)
    assert all(re.fullmatch(r"runs(/[\w.=,-]+){3}/seed\d+", str(p)) for p in paths)


def test_another_partition_in_the_same_file_is_another_configuration(tmp_path):
    flag = deal(tmp_path, lambda p: None)
    first = config.config_hash(parse(flag))
    assert config.config_hash(parse(flag)) == first
    deal(tmp_path, lambda p: p["0"].reverse())
    assert config.config_hash(parse(flag)) != first


def test_directory_of_another_configuration_is_refused(refused, tmp_path):
    cfg = parse(*SMALL)
    directory = rundir.path_of(str(tmp_path / "out"), cfg)
    rundir.describe(directory, cfg, command=["command"], overwrite=False)
    text = (directory / "config.yaml").read_text().replace(f"rounds: {cfg.rounds}", "rounds: 1")
    (directory / "config.yaml").write_text(text)
    before = {p: p.stat().st_mtime_ns for p in directory.rglob("*")}
    assert "another configuration" in refused(*SMALL)
    assert {p: p.stat().st_mtime_ns for p in directory.rglob("*.txt")}.items() <= before.items()


def test_same_configuration_may_change_where_data_lies(tmp_path):
    cfg = parse(*SMALL)
    rundir.describe(tmp_path / "run", cfg, command=["command"], overwrite=False)
    moved = change(change(cfg, "data.dir"), "execution.checkpoint_every")
    rundir.check(tmp_path / "run", moved, overwrite=False)
    with pytest.raises(UserError):
        rundir.check(tmp_path / "run", change(cfg, "seed"), overwrite=False)
    rundir.check(tmp_path / "run", change(cfg, "seed"), overwrite=True)


# --- what can be asked without training


def test_help_is_quick_grouped_and_needs_no_jax():
    code = "import sys, time; start = time.perf_counter()\nfrom fedjax_nc.cli import main\n"
    code += "try: main.train(['--help'])\nexcept SystemExit as stop: assert stop.code == 0\n"
    code += "assert not {'jax', 'numpy'} & set(sys.modules)\n"
    code += "print('took', time.process_time())"  # processor time: the machine may be busy
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert float(text.split()[-1]) < 1
    for group in (*GROUPS, "hp"):
        assert f"{group} options" in text
    for name in ("method", "dataset", "model", "protocol", "rounds", "seed", "seeds", "out"):
        assert re.search(rf"--{name}\b", text)
    for default in ("fedetf", "mnist5k", "cnn", "quick", str(parse().rounds), "runs"):
        assert f"(default: {default})" in " ".join(text.replace("│", " ").split())


def test_help_shows_the_chosen_methods_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        main.train(["--method=fedprox", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--hp.mu FLOAT" in text and "--hp.gamma" not in text


@pytest.mark.parametrize(
    "flag",
    ["--method=fedeft", "--model=resnet9", "--model=bilstm", "--data.alpha=3", "--lr=1"],
)
def test_typo_is_answered_without_jax(flag):
    code = f"import sys; from fedjax_nc.cli import main\nassert main.train(['{flag}']) == 2\n"
    code += "assert not {'jax', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
def test_the_script_itself(tmp_path):
    argv = [*RUN, "--method=fedeft", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown method 'fedeft': did you mean 'fedetf'?")
    assert not list(tmp_path.iterdir())


def test_list_shows_everything(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main.train(["--list"]) == 0
    text = capsys.readouterr().out
    for entry in catalogue.bases().values():
        assert re.search(r"(19|20)\d\d", entry.sections["Paper"]), entry.name
        assert entry.venue in entry.sections["Paper"]
        row = re.search(rf"^│   {entry.name} +│ (.*)$", text, re.MULTILINE)
        assert row and entry.sections["Paper"] in row[1]
        assert re.search(rf"^│ {entry.family} ", text, re.MULTILINE)
    partitions = typing.get_args(typing.get_type_hints(config.Data)["partition"])
    names = [*catalogue.regularisers(), *MODELS, *DATASETS, *protocols.PROTOCOLS, *partitions]
    for name in names:
        assert re.search(rf"^│ {name} ", text, re.MULTILINE), name
    assert main.main(["list"]) == 0
    assert capsys.readouterr().out == text


def test_bytes_are_counted_when_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main.main(["list", "methods", "--bytes"]) == 0
    text = capsys.readouterr().out
    assert "on mnist5k" in text
    for name in catalogue.bases():
        assert re.search(rf"^│   {name} +│ .*│ \d+\.\d\*? +│", text, re.MULTILINE), name


def test_list_needs_no_jax_and_is_quick():
    code = "import sys, time; from fedjax_nc.cli import main\nassert main.main(['list']) == 0\n"
    code += "assert not {'jax', 'numpy'} & set(sys.modules)\nprint('took', time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 2  # 0.6 s alone; it was 9 s


@pytest.mark.parametrize("words", [["--list", "models"], ["--list=models"]])
def test_list_shows_one_kind(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.train(["--dataset=cifar10", *words]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^│ {name} +│", text, re.MULTILINE) for name in MODELS)
    assert "feddw" not in text and "…" not in text  # nothing is cut off at 80 columns
    assert re.search(r"│ resnet56 .*│ 0.85 +│ 125.5 +│", text)


def test_methods_fit_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(dry_run, "messages", lambda dataset, follow: {})
    for argv in (["list", "methods"], ["list", "methods", "--bytes", "--dataset=digits"]):
        assert main.main(argv) == 0
        assert "…" not in capsys.readouterr().out


def test_unknown_list(refused):
    line = "unknown list 'modles': did you mean 'models'? choose from all, datasets, methods"
    assert refused("--list", "modles").startswith(line)


def test_dry_run_says_how_much_work_it_is(capsys, monkeypatch, tmp_path):
    # lowering puts ArgInfo where a State has arrays
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    argv = [*SMALL, "--method=fedavg", "--data.partition=iid", "--local.epochs=2", f"--out={out}"]
    assert main.train([*argv, "--dry-run"]) == 0
    printed = capsys.readouterr()
    facts = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", printed.out))
    # 64 x 200, 200 x 128 and 128 x 10 with biases
    assert "40,018 parameters (body 38,728, head 1,290)" in " ".join(facts["model"].split())
    assert facts["clients"].startswith("3, 3 per round, 479 to 479 examples")
    assert facts["local steps"].startswith("20 to 20 per client, 60 per round")  # 2 x ceil(479/50)
    # forward and weight gradients of all layers, input gradients of all but the first
    step = 2 * 50 * (3 * (64 * 200 + 200 * 128 + 128 * 10) - 64 * 200)
    assert facts["FLOPs per round"].startswith(f"{60 * step / 1e9:.2f} G ({step / 1e6:.1f} M")
    assert facts["forward MFLOPs"].startswith("0.03968 per example")  # 64 x 200 + 200 x 128 + ...
    assert facts["stored parameters"].startswith("40,018 of a client")
    assert "of which model" not in facts  # there is nothing else
    assert re.match(r"about \d+ MB", facts["peak memory"])
    assert re.fullmatch(
        r"about \S+ (ms|s|min|h|days) on this machine, without tests "
        r"\(\S+ (ms|s) a local step, measured\)",
        facts["time"],
    )
    assert "nothing is trained, no run directory is written" in printed.out
    assert "compiled programs" in facts["kept"] and "decoded" in facts["kept"]
    assert not out.exists()


def test_dry_run_shows_bytes_by_part(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(dry_run, "_peak_memory", lambda *_: "")
    monkeypatch.setattr(dry_run, "estimate", lambda job: {})
    assert main.train([*SMALL, "--method=fedblade", "--dry-run", f"--out={tmp_path / 'out'}"]) == 0
    facts = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", capsys.readouterr().out))
    assert facts["of which prototypes"] == "5.2 kB, 5.1 kB"  # ten means of 128, counts or flags


def test_dry_run_refuses_what_a_run_would(refused):
    assert "do not fit" in refused("--dry-run", "--dataset=digits", "--method=fedetf(dim=5)")


def test_mnist5k_partition_file_is_checked_too(refused, tmp_path):
    path = tmp_path / "parts.npz"
    np.savez(path, client0=np.arange(3999), client1=np.arange(3998, 4000))
    argv = ["--federation.clients=2", "--federation.participants=2"]
    assert "index 3998 is repeated" in refused(f"--data.partition_file={path}", *argv)


def test_a_core_for_itself_unless_told_otherwise(monkeypatch):
    for name in ("NPROC", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    devices.start(1)
    assert "NPROC" not in os.environ  # one device may use all cores
    assert "eigen" not in os.environ["XLA_FLAGS"]
    # and one of few waits for the others
    assert "terminate_timeout_seconds=604800" in os.environ["XLA_FLAGS"]
    monkeypatch.setenv("XLA_FLAGS", "mine")
    devices.start(0)
    assert (os.environ["NPROC"], os.environ["XLA_FLAGS"]) == ("1", "mine")
