"""The command line: every kind of bad input is one line and exit code 2, and nothing is written."""

import dataclasses
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import jax
import jaxtyping
import numpy as np
import pytest

from fedjax_nc import cli, config, flags, protocols
from fedjax_nc.config import RunConfig
from fedjax_nc.data import prepared
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError
from fedjax_nc.io import rundir
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import MODELS

ROOT = Path(__file__).parents[1]
RUN = [sys.executable, str(ROOT / "experiments" / "run.py")]
SMALL = ["--dataset=digits", "--model=mlp", "--federation.clients=3", "--federation.participants=3"]


@pytest.fixture(autouse=True, scope="module")
def _keep_devices():
    """Take up conftest's devices, so that no command sets up others for the tests that follow."""
    jax.devices()


@pytest.fixture
def refused(capfd, tmp_path):
    """Run a command that must be refused; its only line, without `error: `."""

    def run(*argv):
        out = tmp_path / "out"
        before = out.exists()
        assert cli.train([*argv, f"--out={out}"]) == 2
        printed = capfd.readouterr()
        lines = printed.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), printed.err
        assert printed.out == ""
        assert out.exists() == before
        return lines[0].removeprefix("error: ")

    return run


# --- names


@pytest.mark.parametrize(
    "argv, near",
    [
        (["--method=fedeft"], "'fedetf'"),
        (["--method", "fedpros"], "'fedprox'"),
        (["--method=fedavg | fdd"], "'fd'"),
        (["--model=resnet9"], "'resnet8'"),
        (["--dataset=mnist5"], "'mnist5k'"),
        (["--dataset=cifar-10"], "'cifar10'"),
        (["--protocol=fedalgin"], "'fedalign'"),
        (["--method=fedprox(mo=0.1)"], "'mu'"),
        (["--method=fedprox", "--hp.mo=0.1"], "'mu'"),
        (["--method=fedbabu | fd", "--hp.bta=0.5"], "'beta'"),
        (["--roundz=3"], "--rounds"),
        (["--data.alhpa=3"], "--data.alpha"),
        (["--local.batchsize", "3"], "--local.batch_size"),
    ],
)
def test_unknown_name_is_answered_with_the_nearest(refused, argv, near):
    assert f"did you mean {near}?" in refused(*argv)


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--method=fedavg", "--hp.mu=0.1"], "'fedavg' has no hyperparameters"),
        (["--method=fedavg(mu=0.1)"], "'fedavg' has no hyperparameters"),
        (["--method=moon", "--hp.gamma=1"], "unknown hyperparameter of moon 'gamma'"),
        (["--method=fedetf(cycles=1.5)"], "cycles of fedetf is int"),
        (["--method=fedprox(mu='a')"], "mu of fedprox is float"),
        (["--method=fedavg("], "cannot read method"),
        (["--method="], "cannot read method"),
        (["--method=fedavg |"], "cannot read method"),
        (["--method=fd"], "unknown method 'fd'"),
        (["--method=fedbabu | fd(beta=2.0)"], "between 0 and 1"),
        (["stray"], "unknown argument stray"),
        (["--data.augment", "flop"], "unknown augmentation 'flop'"),
        (["--model=cnn"], "model 'cnn' takes images of at least 16x16"),
    ],
)
def test_what_cannot_be_built_is_refused(refused, argv, said):
    assert said in refused("--dataset=digits", *argv)


# --- values


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--rounds=abc"], "--rounds: invalid literal for int() with base 10: 'abc'"),
        (["--rounds"], "missing value for argument '--rounds'"),
        (["--data.limit=1.5"], "--data.limit: invalid literal"),
        (["--seeds", "a", "b"], "--seeds: "),
        (["--local.lr=fast"], "--local.lr: could not convert"),
        (["--hp.gamma=x"], "--hp.gamma: could not convert"),
        (["--data.partition=foo"], "'foo' for argument '--data.partition'"),
        (["--local.optimizer=sdg"], "('sgd', 'adam')"),
    ],
)
def test_value_of_another_type_is_one_line_too(refused, argv, said):
    assert said in refused(*argv)


COUNTS = ["rounds", "data.per_client", "local.epochs", "local.batch_size", "federation.clients",
          "federation.participants", "evaluation.every", "evaluation.last",
          "evaluation.batch_size", "execution.chunk", "execution.checkpoint_every"]  # fmt: skip
ZERO_OR_MORE = ["seed", "data.limit", "local.steps", "execution.devices",
                "execution.client_state_mb"]  # fmt: skip
AMOUNTS = ["data.alpha", "local.lr", "local.decay", "data.test_fraction"]


def test_every_number_is_covered():
    numbers = {
        f"{group}{f.name}"
        for group, cls in [("", RunConfig), *((f"{g}.", c) for g, c in GROUPS.items())]
        for f in dataclasses.fields(cls)
        if f.type is int
    }
    assert numbers == {*COUNTS, *ZERO_OR_MORE, "data.seed"}


@pytest.mark.parametrize("flag", COUNTS)
@pytest.mark.parametrize("value", [0, -1])
def test_count_of_zero_or_less_is_refused(refused, flag, value):
    assert f"--{flag}={value}" in refused(f"--{flag}={value}")


@pytest.mark.parametrize("flag", ZERO_OR_MORE)
def test_negative_count_is_refused(refused, flag):
    assert f"--{flag}=-1" in refused(f"--{flag}=-1")


@pytest.mark.parametrize("flag", AMOUNTS)
@pytest.mark.parametrize("value", ["0", "-0.5", "nan", "inf", "-inf"])
def test_amount_must_be_positive_and_finite(refused, flag, value):
    assert f"--{flag}={float(value)}" in refused(f"--{flag}={value}")


@pytest.mark.parametrize(
    "argv",
    [
        ["--local.momentum=1"],
        ["--local.momentum=-0.1"],
        ["--local.weight_decay=-1"],
        ["--local.weight_decay=nan"],
        ["--local.clip=-1"],
        ["--local.milestones", "3", "-1"],
        ["--data.test_fraction=1"],
    ],
)
def test_senseless_value_names_its_flag(refused, argv):
    assert refused(*argv).startswith(argv[0].split("=")[0])


def test_more_participants_than_clients(refused):
    said = refused("--federation.clients=5", "--federation.participants=6")
    assert "--federation.participants=6" in said and "--federation.clients=5" in said


@pytest.mark.parametrize(
    "argv",
    [["--seeds", "0", "0"], ["--seeds", "0", "-1"], ["--seed=4294967296"], ["--data.seed=-2"],
     ["--seeds", "1", "99999999999"]],
)  # fmt: skip
def test_bad_seeds(refused, argv):
    assert refused(*argv).startswith(argv[0].split("=")[0])


# --- what only the data can tell

SEVEN = ["--federation.clients=7", "--federation.participants=7"]


@pytest.mark.parametrize(
    "argv, said",
    [
        (
            [*SEVEN, "--data.partition=shards", "--data.per_client=3"],
            "3 shards per client x 7 clients do not divide among 10 classes",
        ),
        (["--data.per_client=11"], "choose from 1 to 10"),
        (["--federation.clients=2000"], "2000 clients for 1437 samples"),
        (["--method=fedetf(dim=5)"], "10 classes do not fit an etf head on 5 features"),
        (["--method=fedetf", "--hp.dim=9"], "10 classes do not fit an etf head on 9 features"),
        (["--execution.devices=99"], "--execution.devices=99: this machine has"),
    ],
)
def test_refused_before_anything_is_written(refused, argv, said):
    assert said in refused("--dataset=digits", *argv)


def deal(tmp_path, change):
    """A partition of `digits` over three clients, changed by the test."""
    parts = {str(k): list(range(k, 1437, 3)) for k in range(3)}
    change(parts)
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(parts))
    return f"--data.partition_file={path}"


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda p: p["0"].append(1), "index 1 is repeated"),
        (lambda p: p["2"].append(2), "index 2 is repeated"),
        (lambda p: p["1"].append(1437), "client 1: index 1437 is not in 0..1436"),
        (lambda p: p["1"].append(-1), "client 1: index -1 is not in 0..1436"),
        (lambda p: p["0"].pop(0), "1 of 1437 samples belong to no client, first 0"),
        (lambda p: p.pop("1"), "client 1 is missing"),
        (lambda p: p.update({"3": []}), "has 4 clients, the run 3"),
        (lambda p: p["0"].append("x"), "index 'x' is not an integer"),
        (lambda p: p.update({"name": []}), "key 'name' is no client"),
    ],
)
def test_bad_partition_file(refused, tmp_path, change, said):
    assert said in refused(*SMALL, deal(tmp_path, change))


def test_partition_file_that_is_absent_or_damaged(refused, tmp_path):
    path = tmp_path / "parts.npz"
    assert "does not exist" in refused(*SMALL, f"--data.partition_file={path}")
    path.write_bytes(b"PK\x03\x04 not quite")
    assert "cannot read" in refused(*SMALL, f"--data.partition_file={path}")


def fake(root, name, info):
    """A directory that looks like a prepared dataset as far as its dataset_info.json."""
    path = root / prepared.LAYOUT[name]
    path.mkdir(parents=True)
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path


def test_data_directory_that_is_absent(refused, tmp_path, monkeypatch):
    absent = tmp_path / "absent"
    said = refused("--dataset=cifar10", f"--data.dir={absent}")
    assert f"{absent} does not exist" in said and "prepare_data.py cifar10" in said
    monkeypatch.setenv("TFDS_DATA_DIR", str(absent))
    assert f"{absent} does not exist" in refused("--dataset=cifar10")
    assert not absent.exists()


def test_data_directory_that_is_half_prepared(refused, tmp_path):
    (tmp_path / "cifar10" / "incomplete.3.0.2").mkdir(parents=True)
    said = refused("--dataset=cifar10", f"--data.dir={tmp_path}")
    assert "half-prepared" in said and "prepare_data.py cifar10" in said


def test_data_directory_without_its_shards(refused, tmp_path):
    splits = [{"name": split, "shardLengths": ["10"]} for split in ("train", "test")]
    info = {"name": "cifar10", "fileFormat": "array_record", "splits": splits}
    path = fake(tmp_path, "cifar10", info)
    shape = {"dimensions": ["32", "32", "3"]}
    named = {"image": {"image": {"shape": shape}}, "label": {"classLabel": {"numClasses": "10"}}}
    (path / "features.json").write_text(json.dumps({"featuresDict": {"features": named}}))
    said = refused("--dataset=cifar10", f"--data.dir={tmp_path}")
    assert "half-prepared (cifar10-train.array_record-00000-of-00001 is missing" in said


def test_data_directory_of_another_dataset(refused, tmp_path):
    path = fake(tmp_path, "mnist", {"name": "mnist"})
    assert "it holds mnist" in refused("--dataset=cifar10", f"--data.dir={tmp_path}")
    assert "is the directory of mnist" in refused("--dataset=cifar10", f"--data.dir={path}")


def test_data_directory_whose_content_is_another_dataset(refused, tmp_path):
    path = fake(tmp_path, "cifar10", {"name": "cifar100"})
    (path / "features.json").write_text("{}")
    said = refused("--dataset=cifar10", f"--data.dir={tmp_path}")
    assert "is not cifar10 (dataset_info.json says 'cifar100')" in said


def test_out_that_is_a_file(capfd, tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    assert cli.train([*SMALL, f"--out={out}"]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: cannot make") and printed.count("\n") == 1
    assert out.read_text() == "mine"


def test_clients_without_data_are_refused_under_strict(refused):
    argv = ["--dataset=digits", "--data.partition=dirichlet", "--data.alpha=0.001"]
    assert re.search(r"\d+ of 10 clients have no training data", refused(*argv, "--strict"))


# --- what the flags mean


def parse(*argv):
    return flags.parse(list(argv)).configs[0]


def test_protocol_dataset_and_method_set_the_defaults():
    assert parse() == protocols.resolve("quick", "mnist5k", "fedetf")
    assert parse("--protocol", "fedetf", "--dataset=cifar10").local.batch_size == 128
    assert parse("--dataset=digits").model == "mlp"


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
    made = parse(f"--protocol={protocol}", "--method=fedprox", "--rounds=7", "--local.lr=0.5",
                 "--data.partition=iid", "--federation.clients=31", "--federation.participants=3",
                 "--hp.mu=0.25", "--model=resnet8", "--evaluation.last=2")  # fmt: skip
    assert (made.rounds, made.local.lr, made.data.partition) == (7, 0.5, "iid")
    assert (made.federation.clients, made.federation.participants) == (31, 3)
    assert (made.method, made.model, made.evaluation.last) == ("fedprox(mu=0.25)", "resnet8", 2)


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
    made = flags.parse(["--seeds", "3", "1", "--seed=7"]).configs
    assert [c.seed for c in made] == [3, 1]
    assert len({config.config_hash(c) for c in made}) == 1


# --- the name of a configuration

GROUPS = {"data": config.Data, "local": config.Local, "federation": config.Federation,
          "evaluation": config.Evaluation, "execution": config.Execution}  # fmt: skip
FIELDS = [f.name for f in dataclasses.fields(RunConfig) if f.name not in GROUPS]
FIELDS += [f"{g}.{f.name}" for g, c in GROUPS.items() for f in dataclasses.fields(c)]
WITHOUT_EFFECT = {"seed", "data.dir", "execution.checkpoint_every"}


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
    rundir.describe(directory, cfg, ["command"], overwrite=False)
    text = (directory / "config.yaml").read_text().replace("rounds: 25", "rounds: 26")
    (directory / "config.yaml").write_text(text)
    before = {p: p.stat().st_mtime_ns for p in directory.rglob("*")}
    assert "another configuration" in refused(*SMALL)
    (directory / "config.yaml").unlink()
    assert "another configuration" in refused(*SMALL)  # somebody else's files
    (directory / "config.yaml").write_text("{")
    assert "another configuration" in refused(*SMALL)
    assert {p: p.stat().st_mtime_ns for p in directory.rglob("*.txt")}.items() <= before.items()


def test_same_configuration_may_change_where_data_lies(tmp_path):
    cfg = parse(*SMALL)
    rundir.describe(tmp_path / "run", cfg, ["command"], overwrite=False)
    moved = change(change(cfg, "data.dir"), "execution.checkpoint_every")
    rundir.check(tmp_path / "run", moved, overwrite=False)
    with pytest.raises(UserError):
        rundir.check(tmp_path / "run", change(cfg, "seed"), overwrite=False)
    rundir.check(tmp_path / "run", change(cfg, "seed"), overwrite=True)


# --- what can be asked without training


def test_help_is_quick_grouped_and_needs_no_jax():
    code = "import sys, time; start = time.perf_counter()\nfrom fedjax_nc import cli\n"
    code += "try: cli.train(['--help'])\nexcept SystemExit as stop: assert stop.code == 0\n"
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
    for default in ("fedetf", "mnist5k", "cnn", "quick", "25", "runs"):
        assert f"(default: {default})" in " ".join(text.replace("│", " ").split())


def test_help_shows_the_chosen_methods_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.train(["--method=fedprox", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--hp.mu FLOAT" in text and "--hp.gamma" not in text


def test_typo_is_answered_without_jax():
    code = "import sys; from fedjax_nc import cli\nassert cli.train(['--method=fedeft']) == 2\n"
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
    assert cli.train(["--list"]) == 0
    text = capsys.readouterr().out
    for entry in catalogue.bases().values():
        paper = entry.sections["Paper"]
        assert re.search(r"(19|20)\d\d", paper), entry.name
        assert re.search(rf"\b{entry.name}\b.*{re.escape(paper)}", text)
    partitions = typing.get_args(typing.get_type_hints(config.Data)["partition"])
    names = [*catalogue.regularisers(), *MODELS, *DATASETS, *protocols.PROTOCOLS, *partitions]
    for name in names:
        assert re.search(rf"^│ {name} ", text, re.MULTILINE), name


def test_dry_run_says_how_much_work_it_is(capsys, monkeypatch, tmp_path):
    # lowering puts ArgInfo where a State has arrays
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    argv = [*SMALL, "--method=fedavg", "--data.partition=iid", "--local.epochs=2", f"--out={out}"]
    assert cli.train([*argv, "--dry-run"]) == 0
    printed = capsys.readouterr()
    facts = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", printed.out))
    # 64 x 200, 200 x 128 and 128 x 10 with biases
    assert "40,018 parameters (body 38,728, head 1,290)" in " ".join(facts["model"].split())
    assert facts["clients"].startswith("3, 3 per round, 479 to 479 examples")
    assert facts["local steps"].startswith("20 to 20 per client, 60 per round")  # 2 x ceil(479/50)
    # forward and weight gradients of all layers, input gradients of all but the first
    step = 2 * 50 * (3 * (64 * 200 + 200 * 128 + 128 * 10) - 64 * 200)
    assert facts["FLOPs per round"].startswith(f"{60 * step / 1e9:.2f} G ({step / 1e6:.1f} M")
    assert re.match(r"about \d+ MB", facts["peak memory"])
    assert not out.exists()


def test_dry_run_refuses_what_a_run_would(refused):
    assert "do not fit" in refused("--dry-run", "--dataset=digits", "--method=fedetf(dim=5)")


def test_mnist5k_partition_file_is_checked_too(refused, tmp_path):
    path = tmp_path / "parts.npz"
    np.savez(path, client0=np.arange(3999), client1=np.arange(3998, 4000))
    argv = ["--federation.clients=2", "--federation.participants=2"]
    assert "index 3998 is repeated" in refused(f"--data.partition_file={path}", *argv)
