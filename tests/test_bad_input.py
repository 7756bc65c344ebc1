"""Bad input: one line, exit code 2, nothing written."""

import dataclasses
import json
import re

import pytest
from runs import GROUPS, SMALL, deal

from fedjax_nc.cli import main
from fedjax_nc.config import RunConfig
from fedjax_nc.data.catalogue import release_of

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
        # a bare word stands for the flag that ends in it
        (["--lr=0.1"], "--local.lr"),
        (["--alpha", "0.1"], "--data.alpha"),
        (["--clients=10"], "--federation.clients"),
        (["--participants=10"], "--federation.participants"),
        (["--epochs=1"], "--local.epochs"),
        (["--momentum=0"], "--local.momentum"),
        (["--weight-decay=0"], "--local.weight_decay"),
        (["--federation.lr=0.1"], "--local.lr"),
        (["--batch_size=1"], "--local.batch_size or --evaluation.batch_size"),
        (["--batchsize=1"], "--local.batch_size"),
        (["--cycles=3"], "--hp.cycles"),
        (["--method=feddyn", "--alpha=3"], "--data.alpha or --hp.alpha"),
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
        (["--method=feddr_plus", "--hp.beta=1.5"], "beta = 1.5 must be between 0 and 1"),
        (
            ["--method=fedetf(dim=8)"],
            "10 classes do not fit an etf head on 8 features: use a model "
            "or a projector with at least 9",
        ),
        (["--method=fedblade", "--local.batch_size=1"], "give --local.batch_size of 2 or more"),
        (["--method=fedalign", "--model=mlp"], "choose a residual network, e.g. --model=resnet8"),
        (["--method=gradaug", "--model=mlp"], "choose a residual network, e.g. --model=resnet8"),
        (["--method=stochdepth", "--model=mlp"], "choose resnet8, resnet20, resnet20_b"),
        (["--method=stochdepth(last=1.5)"], "give a probability above 0, at most 1"),
        (["--method=dot_regression | dw"], "keeps them fixed: use a method that trains a linear"),
        (["--method=fedetf | moon(dim=64)"], "fixed class vectors or its own projector: use dim=0"),
        (
            ["--method=local", "--evaluation.finetune"],
            "'local' defines no fine-tuning: leave it out with --evaluation.no-finetune",
        ),
        (
            ["--method=fedetf(finetune='papr')"],
            "unknown finetune of fedetf 'papr': did you mean 'paper'? choose from",
        ),
        (["--method=fedetf", "--hp.finetune=papr"], "paper"),
        (["stray"], "unknown argument stray"),
        (["--data.augment", "flop"], "unknown augmentation 'flop'"),
        (["--data.augment", "crop1to11"], "images of 8x8 have no crop of 11x11: give a smaller"),
        (
            ["--data.augment", "crop1to6"],
            "training sees images of 6x6, tests 8x8, and the weights of model 'mlp' depend on that",
        ),
        (["--data.normalise=cinic10"], "is for colour images, and those of digits have 1 channel"),
        (["--model=cnn"], "model 'cnn' takes images of at least 16x16, not images of 8x8: choose"),
        (["--model=bilstm"], "model 'bilstm' takes text, not images of 8x8: choose mlp, vgg11"),
        (
            ["--execution.pool_mb=0", "--seeds", "0", "1", "--seeds_parallel"],
            "--seeds_parallel: the examples, 0 MB, are above --execution.pool_mb=0: raise it",
        ),
        (["--dataset=imdb_reviews", "--model=resnet20"], "not text: choose bilstm"),
    ],
)
def test_what_cannot_be_built_is_refused(refused, argv, said):
    assert said in refused("--dataset=digits", *argv)


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--model=cnn"], "model 'cnn' takes images of at least 16x16, not text: choose bilstm"),
        (["--method=mixup"], "'mixup' mixes images, and imdb_reviews is text"),
        (["--data.augment", "flip"], "--data.augment flip changes images"),
        (["--method=fedalign"], "choose a residual network, e.g. --model=resnet8, and images"),
        (["--method=gradaug"], "choose a residual network, e.g. --model=resnet8, and images"),
        (["--method=stochdepth"], "model 'bilstm' has no residual blocks to leave out"),
    ],
)
def test_what_words_cannot_do_is_refused_before_they_are_read(refused, argv, said):
    assert said in refused("--dataset=imdb_reviews", "--data.dir=/nowhere", *argv)


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
        (["--data.partition=foo"], "unknown --data.partition 'foo'"),
        (["--local.optimizer=sdg"], "('sgd', 'adam')"),
    ],
)
def test_value_of_another_type_is_one_line_too(refused, argv, said):
    assert said in refused(*argv)


COUNTS = [
    "rounds",
    "data.per_client",
    "data.words",
    "data.length",
    "data.side",
    "local.epochs",
    "local.batch_size",
    "federation.clients",
    "federation.participants",
    "evaluation.every",
    "evaluation.last",
    "evaluation.batch_size",
    "execution.chunk",
    "execution.checkpoint_every",
]
ZERO_OR_MORE = [
    "seed",
    "data.limit",
    "local.steps",
    "execution.devices",
    "execution.client_state_mb",
    "execution.pool_mb",
]
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
        ["--federation.mapping", "0"],
        ["--data.test_fraction=1"],
        ["--execution.save_seconds=-1"],
        ["--execution.chunk=1000000000"],
        ["--execution.devices=9999"],
        ["--rounds=2147483648"],
        ["--local.batch_size=1000000000"],
        ["--evaluation.batch_size=1000000000"],
    ],
)
def test_senseless_value_names_its_flag(refused, argv):
    assert refused(*argv).startswith(argv[0].split("=")[0])


def test_more_participants_than_clients(refused):
    said = refused("--federation.clients=5", "--federation.participants=6")
    assert "--federation.participants=6" in said and "--federation.clients=5" in said


@pytest.mark.parametrize(
    "argv",
    [
        ["--seeds", "0", "0"],
        ["--seeds", "0", "-1"],
        ["--seed=4294967296"],
        ["--data.seed=-2"],
        ["--seeds", "1", "99999999999"],
    ],
)
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
        (["--federation.clients=2000"], "class 0 has 142 samples for 400 clients that hold it"),
        (["--federation.clients=1000000000"], "1000000000 clients for 1437 samples: choose 1 to"),
        (["--method=fedetf(dim=5)"], "10 classes do not fit an etf head on 5 features"),
        (["--method=fedetf", "--hp.dim=8"], "10 classes do not fit an etf head on 8 features"),
        (["--execution.devices=60"], "--execution.devices=60: this machine has"),
    ],
)
def test_refused_before_anything_is_written(refused, argv, said):
    assert said in refused("--dataset=digits", *argv)


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
    path = root / release_of(name).layout
    path.mkdir(parents=True)
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path


def test_data_directory_that_is_absent(refused, tmp_path, monkeypatch):
    absent = tmp_path / "absent"
    said = refused("--dataset=cifar10", f"--data.dir={absent}")
    assert f"{absent} does not exist" in said and "fedjax-nc prepare cifar10" in said
    monkeypatch.setenv("TFDS_DATA_DIR", str(absent))
    assert f"{absent} does not exist" in refused("--dataset=cifar10")
    assert not absent.exists()


def test_data_directory_that_is_half_prepared(refused, tmp_path):
    (tmp_path / "cifar10" / "incomplete.3.0.2").mkdir(parents=True)
    said = refused("--dataset=cifar10", f"--data.dir={tmp_path}")
    assert "half-prepared" in said and "fedjax-nc prepare cifar10" in said


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
    assert main.train([*SMALL, f"--out={out}"]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: cannot make") and printed.count("\n") == 1
    assert out.read_text() == "mine"


def test_clients_without_data_are_refused_under_strict(refused):
    argv = ["--dataset=digits", "--data.partition=dirichlet", "--data.alpha=0.001"]
    assert re.search(r"\d+ of 20 clients have no training data", refused(*argv, "--strict"))


def test_tracking(refused):
    assert "unknown name in --track 'colapse': did you mean 'collapse'?" in refused(
        "--track=colapse"
    )
    assert "name each once" in refused("--track=collapse,collapse")
    said = refused("--track=collapse", "--track_every=0")
    assert "--track_every=0: give a number above zero" in said
    said = refused("--track=collapse", "--track_examples=0")
    assert "--track_examples=0: give a number above zero" in said


@pytest.mark.parametrize("given", ["60", "1", "0", "-0.5"])
def test_a_target_is_a_share(refused, given):
    said = refused(f"--stop_at={given}")
    assert said.startswith(f"--evaluation.stop_at={given}: give a share between 0 and 1, as 0.6")
