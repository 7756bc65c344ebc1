"""Flags without effect: refused when a person gave them, never when a protocol did."""

import pytest

from fedjax_nc import effects, protocols
from fedjax_nc.cli import flags
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError

STEP, SMALLER = "--local.schedule=step", "--local.decay=0.5"
WITHOUT_EFFECT = [
    # the flag, what makes it useless, where it belongs
    ("--data.alpha=5", [], "--data.partition=dirichlet or quantity"),
    ("--data.alpha=5", ["--data.partition=shards"], "--data.partition=dirichlet or quantity"),
    ("--data.alpha=5", ["--data.partition=iid"], "--data.partition=dirichlet or quantity"),
    ("--data.per_client=3", ["--data.partition=dirichlet"], "--data.partition=shards or classes"),
    ("--data.per_client=3", ["--data.partition=quantity"], "--data.partition=shards or classes"),
    ("--data.rule=lda", [], "--data.partition=dirichlet"),
    ("--data.rule=lda", ["--data.partition=quantity"], "--data.partition=dirichlet"),
    ("--data.test_fraction=0.5", [], "--data.client_test=split"),
    ("--data.test_fraction=0.5", ["--data.client_test=dealt"], "--data.client_test=split"),
    ("--data.partition=iid", ["--data.partition_file=x.npz"], "runs without a partition file"),
    ("--data.order=stored", [], "prepared TFDS datasets, such as cifar10"),
    ("--data.order=official", ["--dataset=imagenet100"], "prepared TFDS datasets, such as cifar10"),
    ("--data.partition_order=stored", ["--dataset=cifar10"], "runs with a partition file"),
    (
        "--data.partition_order=official",
        ["--data.partition_file=x.npz"],
        "prepared TFDS datasets, such as cifar10",
    ),
    ("--data.dir=x", ["--dataset=digits"], "prepared datasets, such as cifar10"),
    ("--data.words=50", [], "text, such as imdb_reviews"),
    ("--data.length=50", ["--dataset=cifar10"], "text, such as imdb_reviews"),
    ("--data.side=50", ["--dataset=imdb_reviews"], "imagenet100 and imagenet200"),
    ("--data.normalise=half", ["--dataset=imdb_reviews"], "images"),
    ("--local.epochs=3", ["--local.steps=4"], "--local.steps=0"),
    (
        "--federation.straggler=0.5",
        ["--local.epochs=1"],
        "runs of several epochs, of which a straggler does fewer",
    ),
    ("--federation.nan=skip", ["--method=centralised"], "methods of several clients"),
    ("--local.momentum=0.5", ["--local.optimizer=adam"], "--local.optimizer=sgd"),
    ("--local.momentum=0.5", ["--protocol=feddw"], "--local.optimizer=sgd"),
    ("--local.nesterov", ["--local.optimizer=adam"], "--local.optimizer=sgd"),
    ("--local.nesterov", ["--local.momentum=0"], "a --local.momentum above zero"),
    ("--local.decay=0.5", [], "--local.schedule=exponential or step"),
    ("--local.milestones=4", ["--protocol=fedetf"], "--local.schedule=step"),
    (STEP, [SMALLER], "runs with --local.milestones"),
    (STEP, ["--local.milestones=4"], "a --local.decay other than 1"),
    ("--evaluation.personal_global", ["--evaluation.no-personal"], "--evaluation.personal"),
    ("--execution.chunk=2", ["--execution.executor=vmap"], "--execution.executor=chunked"),
    ("--execution.conv=native", ["--dataset=digits"], "models with convolutions"),
    ("--federation.clients=4", ["--method=centralised"], "methods of several clients"),
    ("--data.alpha=5", ["--method=centralised | fd"], "methods of several clients"),
    ("--data.partition_file=x.npz", ["--method=centralised"], "methods of several clients"),
]


@pytest.mark.parametrize("flag, others, home", WITHOUT_EFFECT)
def test_flag_without_effect_is_refused(refused, flag, others, home):
    said = refused(flag, *others)
    assert said.startswith(f"{flag.split('=')[0]} has no effect with")
    assert said.endswith(f": leave it out, it belongs to {home}")


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_what_a_protocol_sets_is_never_refused(protocol):
    """Each sets things that another flag makes useless."""
    others = ["--local.optimizer=adam", "--local.schedule=constant", "--data.partition=iid"]
    others += ["--local.steps=3", "--execution.executor=scan", "--data.client_test=matched"]
    assert flags.parse([f"--protocol={protocol}", *others]).configs


@pytest.mark.parametrize(
    "argv",
    [
        ["--data.partition=dirichlet", "--data.alpha=5", "--data.rule=lda"],
        ["--data.partition=quantity", "--data.alpha=5"],
        ["--data.partition=shards", "--data.per_client=3"],
        ["--data.client_test=split", "--data.test_fraction=0.5"],
        ["--dataset=imdb_reviews", "--data.words=50", "--data.length=20"],
        ["--dataset=imagenet100", "--data.side=64", "--data.dir=x"],
        ["--dataset=cifar10", "--data.dir=x", "--data.order=stored"],
        ["--dataset=mnist", "--data.partition_file=x.npz", "--data.partition_order=official"],
        ["--local.steps=4", "--local.momentum=0.5", "--local.nesterov"],
        [STEP, SMALLER, "--local.milestones=4"],
        ["--protocol=fedetf", "--local.decay=1"],  # the protocol's own schedule is switched off
        ["--execution.executor=chunked", "--execution.chunk=2"],
        ["--evaluation.personal_global"],
        ["--execution.chunk=2"],  # only jax knows whether `auto` makes chunks
        ["--model=cnn", "--execution.conv=native"],
        ["--track=collapse", "--track_every=3", "--track_examples=9"],
        ["--track=collapse,alignment", "--track_clients=2"],
        ["--track=consistency", "--track_clients=2"],
    ],
)
def test_flag_with_effect_is_taken(argv):
    assert flags.parse(argv).configs


def test_chunk_is_refused_once_the_backend_is_known(refused):
    assert "--execution.chunk has no effect with --execution.executor=auto" in refused(
        "--execution.chunk=2"
    )


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--seeds", "3", "1", "--seed=7"], "--seed has no effect with --seeds"),
        (["--track_every=3"], "--track_every has no effect without --track"),
        (["--track_clients=3"], "--track_clients has no effect without --track"),
        (["--track_examples=3"], "--track_examples has no effect without --track"),
        (
            ["--track=collapse", "--track_clients=3"],
            "--track_clients has no effect with --track=collapse: leave it out, it belongs to",
        ),
    ],
)
def test_flag_of_the_session_without_effect_is_refused(refused, argv, said):
    assert said in refused(*argv)


def test_centralised_training_beside_other_methods():
    """Flags of the federation are those of the others; it has one client under all of them."""
    words = ["--federation.clients=9", "--federation.participants=3", "--data.partition=dirichlet"]
    asked = flags.parse(["--method=centralised", *words, "--data.alpha=5"], beside=True)
    (cfg,) = asked.configs
    people = cfg.federation
    assert (people.clients, people.participants, cfg.data.partition) == (1, 1, "iid")
    assert not asked.given & effects.OF_SEVERAL
    kept = flags.parse(["--method=fedavg", *words], beside=True)
    assert kept.configs[0].federation.clients == 9 and "federation.clients" in kept.given
    with pytest.raises(UserError, match=r"--data.per_client has no effect"):
        flags.parse(["--method=fedavg", *words, "--data.per_client=3"], beside=True)


def test_same_table_serves_keywords():
    cfg = RunConfig()
    effects.check({"data.alpha"}, cfg)
    with pytest.raises(UserError, match=r"--data.per_client has no effect with --data.partition="):
        effects.check({"data.alpha", "data.per_client"}, cfg)
    effects.check({"execution.chunk"}, cfg)
    effects.check({"execution.chunk"}, cfg, backend="gpu")
    with pytest.raises(UserError, match=r"--execution\.chunk has no effect"):
        effects.check({"execution.chunk"}, cfg, backend="cpu")


def test_table_names_settings_that_exist():
    cfg = RunConfig()
    for rule in (*effects.RULES, effects.ON_CPU):
        for name in (*rule.settings.split(), rule.decider):
            group, _, field = name.rpartition(".")
            assert hasattr(getattr(cfg, group) if group else cfg, field), name
