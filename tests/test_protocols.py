"""What every protocol gives to every dataset, method and regime."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fedjax_nc import config, protocols
from fedjax_nc.cli import flags, main
from fedjax_nc.data.catalogue import DATASETS, sized
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import make_task
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.models.catalogue import MODELS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "protocols.json").read_text())


def settings(protocol, dataset, method="fedavg"):
    """The settings that depend on the dataset, flat."""
    made = config.to_dict(protocols.resolve(protocol, dataset, method))
    nested = {f"{k}.{name}": v[name] for k, v in made.items() if isinstance(v, dict) for name in v}
    return {k: v for k, v in (made | nested).items() if not isinstance(v, dict)}


@pytest.mark.parametrize("pair", GOLDEN)
def test_settings_of_a_dataset(pair):
    made = settings(*pair.split())
    assert {name: made[name] for name in GOLDEN[pair]} == GOLDEN[pair]


OWN = {
    "digits": ((28, 28, 1), ("cnn", "cnn", "cnn")),
    "images": ((32, 32, 3), ("cnn", "resnet20_b", "mobilenet")),
    "photographs": ((224, 224, 3), ("resnet18",) * 3),
    "text": ((50,), ("bilstm",) * 3),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_dataset_of_ones_own(kind):
    """A record that no paper names gets what its kind asks for."""
    shape, networks = OWN[kind]
    spec = DatasetSpec(name="mine", classes=7, shape=shape, train=70, test=7, kind=kind)
    for protocol, network in zip(("quick", "fedetf", "feddr_plus"), networks, strict=True):
        made = protocols.resolve(protocol, spec, "fedavg")
        assert (made.dataset, made.model) == ("mine", network)
    crop = {"photographs": ("rrc", "flip"), "text": ()}.get(kind, ("crop4", "flip"))
    assert protocols.resolve("fedalign", spec, "fedavg").data.augment == crop
    assert made.data.per_client == 2  # FedDr+'s of few classes


@pytest.mark.parametrize("protocol", [*protocols.PROTOCOLS, "feddr_plus/lda"])
def test_centralised_training(protocol):
    """One client that has everything, and otherwise what FedAvg has."""
    made, fedavg = (
        protocols.resolve(protocol, "cifar10", method) for method in ("centralised", "fedavg")
    )
    alone = [
        f"--protocol={protocol}",
        "--dataset=cifar10",
        "--method=fedavg",
        "--data.partition=iid",
        "--federation.clients=1",
        "--federation.participants=1",
        "--evaluation.no-personal",
        "--evaluation.no-finetune",
        "--local.steps=0",
    ]
    (by_flags,) = flags.parse(alone).configs
    assert dataclasses.replace(made, method="fedavg") == by_flags
    assert made.local.epochs == fedavg.local.epochs and made.rounds == fedavg.rounds


# ---- regimes -------------------------------------------------------------------------------

PEOPLE = ("data.alpha", "federation.clients", "federation.participants", "rounds")
REGIMES = [
    ("feddw/practical cifar10", PEOPLE, (0.5, 10, 10, 50)),
    ("feddw/pathological cifar10", PEOPLE, (0.1, 10, 5, 50)),
    ("feddw/pathological imdb_reviews", PEOPLE, (0.1, 10, 5, 10)),
    ("fedetf/full cifar10", PEOPLE, (0.1, 20, 20, 200)),
    ("fedetf/extreme tiny_imagenet", PEOPLE, (0.05, 20, 20, 50)),
    ("fedetf/partial cifar10", PEOPLE, (0.1, 50, 20, 200)),
    ("fedalign/full cifar100", PEOPLE, (0.5, 16, 16, 25)),
    ("fedalign/sampled cifar100", PEOPLE, (0.5, 64, 16, 100)),
    ("fedalign/sampled imagenet200", PEOPLE, (0.5, 32, 4, 50)),
    ("fedblade/partial cifar100", PEOPLE, (0.1, 100, 20, 200)),
    ("fedblade/full cifar100", PEOPLE, (0.1, 20, 20, 100)),
    ("feddr_plus/lda cifar10", PEOPLE, (0.1, 100, 10, 320)),
]
WORK = ("data.partition", "local.steps", "federation.weights")
BATCH = ("federation.norm", "evaluation.batch_size")
REGIMES += [
    # as its code counts: E epochs of a client of mean size, whatever the client's own
    ("feddr_plus/lda cifar10", WORK, ("dirichlet", 100, "size")),
    ("feddr_plus/lda cifar100", WORK, ("dirichlet", 30, "size")),
    ("feddr_plus/lda imagenet100", WORK, ("dirichlet", 130, "size")),
    ("feddr_plus/shards cifar100", WORK, ("shards", 0, "equal")),
    # normalised by the batch of the test: its loaders' sizes
    ("feddr_plus cifar100", BATCH, ("batch", 100)),
    ("feddr_plus/lda cifar100", BATCH, ("batch", 50)),
    ("feddr_plus/lda cifar10", BATCH, ("default", 200)),
    # the mapping layers of FedDW's code, which `cnn` and `bilstm` have
    ("feddw cifar100", ("federation.mapping",), ([256, 128],)),
    ("feddw cifar10", ("federation.mapping",), ([],)),
    ("feddw imdb_reviews", ("federation.mapping",), ([],)),
]
ALL = [f"{name}/{regime}" for name, p in protocols.PROTOCOLS.items() for regime in p.regimes]


@pytest.mark.parametrize("pair, names, values", REGIMES)
def test_settings_of_a_regime(pair, names, values):
    made = settings(*pair.split())
    assert tuple(made[name] for name in names) == values


@pytest.mark.parametrize(
    "dataset, model, mapping",
    [
        ("cifar10", "resnet18", (256, 128)),
        ("cifar100", "shufflenet", (256, 128)),
        ("cifar100", "cnn", ()),  # ends with them
    ],
)
def test_mapping_layers_belong_to_the_network_that_is_asked_for(dataset, model, mapping):
    argv = ["--protocol=feddw", f"--dataset={dataset}", f"--model={model}"]
    assert flags.parse(argv).configs[0].federation.mapping == mapping
    prepared = protocols.resolve("feddw", dataset, "fedavg", model=model)
    assert (prepared.model, prepared.federation.mapping) == (model, mapping)
    without = [*argv, "--federation.mapping"]
    if mapping:
        assert flags.parse(without).configs[0].federation.mapping == ()


@pytest.mark.parametrize("regime, batch", [("shards", 100), ("lda", 50)])
@pytest.mark.parametrize(
    "dataset, model, norm",
    [("cifar10", "mobilenet", "batch"), ("cifar100", "resnet18", "default")],
)
def test_batch_statistics_belong_to_the_network_that_is_asked_for(
    regime, batch, dataset, model, norm
):
    """As does the size of the tests' batches, where answers depend on it."""
    name, expected = f"feddr_plus/{regime}", (norm, batch if norm == "batch" else 200)
    argv = [f"--protocol={name}", f"--dataset={dataset}", f"--model={model}"]
    resolved = protocols.resolve(name, dataset, "fedavg", model=model)
    for made in (flags.parse(argv).configs[0], resolved):
        assert (made.federation.norm, made.evaluation.batch_size) == expected
    made = flags.parse([*argv, "--federation.norm=group"]).configs[0]
    assert (made.federation.norm, made.evaluation.batch_size) == ("group", expected[1])


@pytest.mark.parametrize("method", ["ditto", "fedper", "fedrep", "per_fedavg"])
def test_personal_methods_of_feddr_plus_make_epochs(method):
    """FedBABU's code, which runs them, has no fixed steps and no weights under `lda` either."""
    names = ("local.epochs", "local.steps", "federation.weights", *BATCH)
    for dataset, expected in (
        ("cifar10", (10, 0, "equal", "default", 200)),
        ("cifar100", (3, 0, "equal", "batch", 100)),
    ):
        made = settings("feddr_plus/lda", dataset, method)
        assert tuple(made[name] for name in names) == expected


def test_every_regime_has_a_name_that_resolves():
    for name in ALL:
        made = {d: protocols.resolve(name, d, "fedavg") for d in DATASETS}
        assert len({m.protocol for m in made.values()}) == 1
        for cfg in made.values():
            config.validate(cfg)
            assert cfg.protocol in (name, name.split("/")[0])


@pytest.mark.parametrize("name", [name for name, p in protocols.PROTOCOLS.items() if p.regimes])
def test_name_alone_is_the_first_regime(name):
    """Also in the run's directory, so that either way of writing resumes the other's runs."""
    first, *others = protocols.PROTOCOLS[name].regimes
    plain = protocols.resolve(name, "cifar10", "fedprox")
    assert protocols.resolve(f"{name}/{first}", "cifar10", "fedprox") == plain
    assert plain.protocol == name
    for other in others:
        made = protocols.resolve(f"{name}/{other}", "cifar10", "fedprox")
        assert made.protocol == f"{name}/{other}" and made.rounds > 0
        assert (made.data, made.local, made.federation, made.rounds) != (
            *(plain.data, plain.local, plain.federation, plain.rounds),
        )


@pytest.mark.parametrize(
    "protocol, said",
    [
        (
            "feddw/patological",
            "unknown regime of feddw 'patological': did you mean 'pathological'? choose from "
            "pathological, practical",
        ),
        ("feddr_plus/", "unknown regime of feddr_plus '': choose from lda, shards"),
        ("quick/full", "protocol 'quick' has no regimes, 'full' was given: write quick"),
        ("fedwd/practical", "unknown protocol 'fedwd': did you mean 'feddw'? choose from "),
    ],
)
def test_unknown_regime(protocol, said):
    with pytest.raises(UserError) as error:
        flags.parse([f"--protocol={protocol}"])
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


# ---- seeds of the papers -------------------------------------------------------------------


def seeds(*argv):
    return [c.seed for c in flags.parse([*argv]).configs]


def test_seeds_of_the_paper():
    assert seeds("--protocol=fedetf", "--seeds", "paper", "--rounds=3") == [7, 8, 9, 10]
    assert seeds("--protocol=fedblade/full", "--seeds=paper") == [1024, 2025, 4096]
    for name in protocols.PROTOCOLS:  # only who asks for them
        assert seeds(f"--protocol={name}") == [0]
    for name in ("quick", "feddw", "feddr_plus/lda", "fedalign"):
        with pytest.raises(UserError, match=r"^seeds 'paper' with protocol '.*; give numbers, as"):
            seeds(f"--protocol={name}", "--seeds", "paper")


# ---- methods and regularisers --------------------------------------------------------------

PIECES = [
    ("fedetf", "fedavg | ccvr", "fedavg | ccvr(samples=10, epochs=100, rule='fedetf')"),
    ("fedetf", "fedavg | ccvr(samples=7)", "ccvr(samples=7, epochs=100, rule='fedetf')"),
    ("fedetf/extreme", "fedprox | ccvr", "fedprox(mu=0.001, plain=True) | ccvr(samples=10"),
    ("fedetf", "fedprox | dw", "fedprox(mu=0.001, plain=True) | dw"),  # both have a mu
    ("feddw/pathological", "feduv | dw", "feduv | dw(mu=10.0)"),
    ("feddw", "feddw | dw(mu=2.0)", "feddw(mu=10.0) | dw(mu=2.0)"),
    ("feddw", "moon | moon", "moon(mu=5.0, dim=0) | moon"),  # two of one name
    ("feddr_plus", "per_fedavg", "per_fedavg(alpha=0.1, beta=0.1)"),
    ("feddr_plus/lda", "ditto", "ditto(lam=0.75)"),
    ("feddr_plus", "fedgela", "fedgela(form='feddr', projector_bias=False)"),
]


@pytest.mark.parametrize("protocol, spec, made", PIECES)
def test_settings_reach_every_piece(protocol, spec, made):
    assert made in protocols.resolve(protocol, "cifar100", spec).method


def test_inner_step_of_per_fedavg_is_the_learning_rate():
    made = protocols.resolve("feddr_plus", "cifar10", "per_fedavg")
    (piece,) = catalogue.parse(made.method)
    assert made.local.lr == 0.01 == (piece.entry.hyper | piece.kwargs)["alpha"]
    assert piece.kwargs["beta"] == 0.1


def test_protocols_name_what_exists():
    known = catalogue.bases() | {f"| {k}": v for k, v in catalogue.regularisers().items()}
    for protocol in protocols.PROTOCOLS.values():
        for dataset in map(DATASETS.get, protocol.datasets):
            (method,) = catalogue.parse("fedavg")
            for name, values in protocol.make(dataset, method, "").hyper.items():
                for key, value in values.items():
                    assert catalogue.checked(known[name], key, value=value) == value


LOCAL = ("local.lr", "rounds", "federation.participants", "local.epochs", "local.steps")


@pytest.mark.parametrize("regime", ["shards", "lda"])
@pytest.mark.parametrize(
    "dataset, loss, lr",
    [
        ("cifar10", "dr", 0.35),
        ("cifar100", "dr", 5.0),
        ("imagenet100", "dr", 1.0),
        ("cifar10", "ce", 0.01),
        ("cifar100", "ce_etf", 0.1),
    ],
)
def test_local_training_of_feddr_plus(regime, dataset, loss, lr):
    """160 epochs of every client, with milestones of its own and its loss's learning rate."""
    made = settings(f"feddr_plus/{regime}", dataset, f"local(loss={loss!r})")
    assert tuple(made[name] for name in LOCAL) == (lr, 160, 100, 1, 0)
    assert made["local.milestones"] == [80, 120] and made["local.keep_optimizer"]


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_no_protocol_asks_for_fine_tuning_that_a_method_lacks(protocol):
    """Local training and prototypes alone were refused unless a flag left it out."""
    for spec in [*catalogue.bases(), "fedproto(average=False)", "local(loss='dr')", "local | ft"]:
        made = protocols.resolve(protocol, "cifar100", spec)
        wanted = protocol != "quick" and bool(registry.build(made.method).finetune)
        assert made.evaluation.finetune == wanted, spec


def test_clients_models_that_feddw_tests_on_everything():
    for spec in catalogue.bases():
        made = protocols.resolve("feddw/pathological", "cifar10", spec)
        expected = spec in ("fedala", "fedper", "fedproto", "fedrep", "local")
        assert made.evaluation.personal_global == expected, spec


def test_settings_follow_a_hyperparameter_given_as_a_flag():
    argv = ["--protocol=feddr_plus", "--dataset=cifar100", "--method=local"]
    made = flags.parse([*argv, "--hp.loss=dr"]).configs[0]
    assert (made.method, made.local.lr) == ("local(loss='dr')", 5.0)
    made = flags.parse([*argv, "--hp.loss=dr", "--local.lr=2", "--rounds=9"]).configs[0]
    assert (made.local.lr, made.rounds) == (2.0, 9)
    assert flags.parse(argv).configs[0].local.lr == 0.1


def test_networks_of_fedetf_have_projections():
    for name in ("resnet20", "resnet32", "resnet56"):
        plain, projected = MODELS[name], MODELS[f"{name}_b"]
        assert projected.options == {**plain.options, "projection": True}
        assert projected.parameters - plain.parameters == (16 + 2) * 32 + (32 + 2) * 64
        assert projected.mflops - plain.mflops == pytest.approx(2 * 2**17 / 1e6, abs=0.006)
        assert (projected.blocks, projected.min_size) == (plain.blocks, plain.min_size)


# ---- what `list` shows ---------------------------------------------------------------------


@pytest.mark.parametrize("asked", [*protocols.PROTOCOLS, *ALL])
def test_list_shows_a_protocol(asked, capsys, monkeypatch):
    """Settings, a command for each dataset and regime, what else is varied, and deviations."""
    monkeypatch.setenv("COLUMNS", "80")  # where commands stay whole, to be copied
    assert main.main(["list", "protocols", asked]) == 0
    text = capsys.readouterr().out
    name, _, regime = asked.partition("/")
    protocol = protocols.PROTOCOLS[name]
    assert name not in catalogue.bases() or "Deviations: " in text
    for each in [regime] if regime else protocol.regimes or [""]:
        for dataset in protocol.datasets:
            flag = f"--protocol={protocols.full_name(name, each)}"
            assert f" run {flag} --dataset={dataset} --method=" in text
    assert ("--seeds paper" in text) == bool(protocol.seeds)
    assert all(f" run {words}  # {about}" in text for about, words in protocol.varied.items())
    rounds = [str(settings(asked, dataset)["rounds"]) for dataset in protocol.datasets]
    assert re.search(rf"│ rounds +│ {' +│ '.join(rounds)} +│", text)


@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_commands_of_a_page_are_understood(name):
    for words in protocols.PROTOCOLS[name].varied.values():
        made = flags.parse(words.split()).configs[0]
        assert made != protocols.resolve(made.protocol, made.dataset, "fedetf")
        assert made.protocol.split("/")[0] == name
        assert made.dataset in protocols.PROTOCOLS[name].datasets


def test_list_names_every_regime(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["list", "protocols"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^│ {name} +│", text, re.MULTILINE) for name in ALL)
    for argv in (["list", "protocols"], ["list", "protocols", "feddw"]):
        assert main.main(argv) == 0
        assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, said",
    [
        (["protocols", "feddw/pathologcal"], "did you mean 'pathological'?"),
        (["models", "feddw"], "'feddw' has no effect on a list of models: leave it out"),
    ],
)
def test_list_of_what_does_not_exist(argv, said, capsys):
    assert main.main(["list", *argv]) == 2
    assert said in capsys.readouterr().err


def test_list_of_a_protocol_needs_no_jax():
    code = "import sys; from fedjax_nc.cli import main\nmain.main(['list', 'protocols', 'feddw'])\n"
    code += "assert not {'jax', 'numpy'} & set(sys.modules)"
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True)


@pytest.mark.parametrize("name", ["resnet18", "shufflenet"])
def test_mapping_layers_reach_the_network(name):
    cfg = dataclasses.replace(protocols.resolve("feddw", "cifar100", "feddw"), model=name)
    task = make_task(cfg, sized("cifar100", cfg.data), method=registry.build(cfg.method))
    params = jax.eval_shape(task.trainer.model.init, jax.random.key(0)).params
    assert params["head"]["kernel"].shape == (128, 100)
