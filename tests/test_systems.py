"""The five systems as methods: identities, ablations, what they upload, and that they train."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import DATA, FEW, SMALL, train
from test_composition import SYNERGY
from trees import after, differ, identical, only, same

from fedjax_nc import losses, tree
from fedjax_nc.cli import flags
from fedjax_nc.data import datasets
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import first_state
from fedjax_nc.methods import forward, registry
from fedjax_nc.methods.base import Context
from fedjax_nc.models.base import from_body
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.testing import contract
from fedjax_nc.testing.rounds import PROPERTIES
from fedjax_nc.testing.trial import Trial
from fedjax_nc.train import seeds
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import Batch, ClientInfo, HeadSpec, narrow

LARGEST = 3  # client of the tiny federation, which misses classes


# ---- identities ----------------------------------------------------------------------------

EQUAL = [
    ("fedblade(decorr='none', gamma=0.0)", "fedetf"),
    ("fedblade(feature_alignment=False, projector_alignment=False, decorr='none')", "fedetf"),
    ("fedblade(beta=0.0, gamma=0.0, absent='remove')", "fedetf(absent='remove')"),
    ("fedetf(balanced=False)", "fedetf(gamma=0.0)"),
    ("feddr_plus(beta=0.7)", "dot_regression | fd(beta=0.7)"),
    ("feddr_plus(beta=1.0)", "dot_regression"),
    ("feddw(mu=0.0, bias=True)", "fedavg"),
    ("feddw(bias=True)", "fedavg | dw"),
    ("feddistill(gamma=0.0)", "fedavg"),
    ("feddistill(gamma=0.0, rule='paper') | dw", "fedavg | dw"),
    ("feddistill(gamma=0.0, rule='fedgen') | dw", "fedavg | dw"),  # its logits are no soft labels
    ("feddecorr(beta=0.0)", "fedavg"),
    ("mixup(gamma=0.0)", "fedavg"),
    ("stochdepth(last=1.0)", "fedalign(mu=0.0, clip=0.0)"),
    ("gradaug(mu=0.0)", "fedalign(mu=0.0, clip=0.0)"),
    ("fedavg | stochdepth", "stochdepth"),
]


@pytest.mark.parametrize("one, other", EQUAL)
def test_these_train_alike(x64, one, other):
    a, b = (after(spec, 2, norm="none", widths=(6,)) for spec in (one, other))
    same(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "spec",
    [
        "fedetf(projector=False)",
        "fedetf(learn_scale=False)",
        "fedetf(dim=3)",
        "fedetf(dim=9)",
        "fedblade(decorr='feddecorr')",
        "fedblade(feature_alignment=False)",
        "fedblade(distribution_factor=False)",
        "fedblade(projector_alignment=False)",
        "feddw(form='linear')",
        "fedalign(cut=False)",
        "fedalign(relative=False)",
        "stochdepth(last=0.2, rule='paper')",
    ],
)
def test_variants_differ_and_stay_finite(spec):
    """Three rounds with an empty client, one of a single example, and classes nobody shows."""
    one, other = (after(s, 3, widths=(6,)) for s in (spec, spec.split("(")[0]))
    if jax.tree.structure(one) == jax.tree.structure(other):
        assert differ(one, other)


# ---- what travels --------------------------------------------------------------------------


def outputs_of(t, weights, client):
    """Features, logits and labels of a client's data under these weights."""
    index, size = tree.take(t.data.train, client)
    batch = t.task.trainer.make_batch(t.data.pool, index[:size], index[:size] >= 0, None)
    out, _ = t.task.trainer.model.apply(weights, batch.x, train=False)
    return out, np.asarray(batch.y)


@pytest.mark.parametrize(
    "spec, name, of",
    [
        ("fedblade", "prototypes", lambda out: out.features),
        ("feddw", "soft_labels", lambda out: jax.nn.softmax(out.logits)),
    ],
)
def test_class_means_are_those_of_the_new_local_model(x64, tiny, spec, name, of):
    t = only(tiny(spec, norm="none"), LARGEST)
    state, _ = t.run(1)
    out, labels = outputs_of(t, state.weights, 0)  # a lone client's model is the global one
    shared = state.shared[name]
    means = shared.mean if name == "prototypes" else shared.matrix
    assert 0 < len(set(labels)) < 4
    for c in range(4):
        assert bool(shared.seen[c]) == (c in labels)
        if c in labels:
            expected = np.asarray(of(out))[labels == c].mean(0)
            np.testing.assert_allclose(means[c], expected, rtol=1e-9)


def test_class_means_weigh_clients_by_their_examples(x64, tiny):
    """With learning rate zero all clients have one model, so the means are those of all data."""
    t = tiny("fedblade", norm="none")
    t = t._replace(hyper=t.hyper._replace(lr=jnp.zeros(())))
    before = t.state().weights
    state, _ = t.run(1)
    pairs = [outputs_of(t, before, k) for k in range(6) if t.data.train.size[k]]
    features = np.concatenate([np.asarray(out.features) for out, _ in pairs])
    labels = np.concatenate([y for _, y in pairs])
    expected = np.stack([features[labels == c].mean(0) for c in range(4)])
    np.testing.assert_allclose(state.shared["prototypes"].mean, expected, rtol=1e-9)


def test_a_class_nobody_has_keeps_its_prototype(x64, tiny):
    t = only(tiny("fedblade", norm="none"), LARGEST)
    state, _ = t.run(1)
    old = state.shared["prototypes"]
    known = old._replace(mean=old.mean + 1.0, seen=jnp.ones(4, bool))
    missing = ~np.asarray(old.seen)
    state = state.__class__(state.round, state.key, state.weights, {"prototypes": known}, {})
    after = t.run(1, state=state)[0].shared["prototypes"]
    identical(after.mean[missing], np.ones_like(after.mean[missing]))
    assert np.all(after.seen)


def test_local_shares_nothing(x64, tiny):
    t = tiny("local")
    start, (state, _) = t.state(), t.run(2)
    same(state.weights, start.weights, rtol=0.0, atol=0.0)
    alone, _ = only(tiny("fedavg"), LARGEST).run(1)
    mine, _ = only(t, LARGEST).run(1)
    personal = jax.tree.map(lambda x: x[0], mine.clients["personal"])
    same(personal.params, alone.weights.params)
    same(personal.stats, alone.weights.stats)  # its statistics are its own, too


def test_teacher_is_asked_once_per_batch(tiny):
    """Three distillation terms, one frozen forward pass."""
    t = tiny("fedavg | kd | ld | fd", norm="none")
    calls = []
    model = t.task.trainer.model

    def apply(weights, x, *, train, **options):
        calls.append(train)
        return model.apply(weights, x, train=train, **options)

    trainer = t.task.trainer._replace(model=model._replace(apply=apply))
    t = t._replace(task=t.task._replace(trainer=trainer))
    with jax.disable_jit():
        only(t, 5)._replace(hyper=t.hyper).run(1, "debug")  # one batch of three examples
    assert calls == [True, False]


# ---- widths, depth, mixing -----------------------------------------------------------------


@pytest.mark.parametrize("projection", [False, True])
def test_narrow_network_is_the_wide_one_with_channels_off(x64, projection):
    body = ResNet((1, 1, 1), "batch", "native", projection)
    model = from_body(body, (8, 8, 3), 4, HeadSpec())
    weights = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 8, 8, 3))
    half, _ = model.apply(weights, x, train=True, width=0.5)
    shapes = model.channels
    assert [b.shape[-1] for b in half.blocks] == [narrow(c, 0.5) for c in shapes]

    def off(path, p):
        """Zeros beyond the first channels, in and out."""
        keep = np.ones(p.shape)
        for axis in range(p.ndim):
            n = p.shape[axis]
            if n in (16, 32, 64):
                side = [slice(None)] * p.ndim
                side[axis] = slice(narrow(n, 0.5), None)
                keep[tuple(side)] = 0
        return p * keep

    zeroed = jax.tree_util.tree_map_with_path(off, weights.params["body"])
    wide, _ = model.apply(
        weights._replace(params={**weights.params, "body": zeroed}), x, train=True
    )
    np.testing.assert_allclose(half.logits, wide.logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        half.blocks[-1], wide.blocks[-1][..., : half.blocks[-1].shape[-1]], atol=1e-12
    )
    stage = model.last_stage(weights, half.blocks[-2], width=0.5)
    np.testing.assert_allclose(stage, half.blocks[-1], atol=1e-12)


def test_fedaligns_gradient_reaches_the_first_channels_of_the_last_stage_only(x64, tiny):
    t = tiny("fedalign(clip=0.0)", norm="batch")
    ce, lip = t.task.method.phases[0].terms
    weights, model = t.state().weights, t.task.trainer.model
    batch = t.task.trainer.make_batch(t.data.pool, jnp.arange(4), jnp.ones(4, bool), None)

    def value(params, term):
        mine = weights._replace(params=params)
        out, _ = model.apply(mine, batch.x, train=True, mask=batch.mask)
        info = ClientInfo(4, jnp.ones(4), 1, 0.1, 0.0)
        return term.fn(Context(model, mine, weights, batch, out, {}, {}, info, jax.random.key(0)))

    np.testing.assert_allclose(value(weights.params, lip), value(weights.params, ce), rtol=1e-9)
    grads = jax.grad(value)(weights.params, lip)
    body = grads["body"]
    assert not any(np.any(g) for k in body if k != "stage1" for g in jax.tree.leaves(body[k]))
    kernel = body["stage1"]["BasicBlock_0"]["Conv_1"]["kernel"]
    first = narrow(32, 0.25)
    assert np.any(kernel[..., :first]) and not np.any(kernel[..., first:])


def test_fedalign_without_relative_sums_over_positions(x64, tiny):
    t = tiny("fedalign(relative=False, width=1.0)", norm="batch")
    weights, model = t.state().weights, t.task.trainer.model
    batch = t.task.trainer.make_batch(t.data.pool, jnp.arange(4), jnp.ones(4, bool), None)
    out, _ = model.apply(weights, batch.x, train=True, mask=batch.mask)
    maps = (out.blocks[-2], 2 * out.blocks[-1])  # the whole stage's constants are twice its copy's
    out = out._replace(blocks=maps)
    info = ClientInfo(4, jnp.ones(4), 1, 0.1, 0.0)
    context = Context(model, weights, weights, batch, out, {}, {}, info, jax.random.key(0))
    positions = maps[1].shape[1] * maps[1].shape[2]
    assert positions > 1
    constants = losses.spectral_norm(positions * losses.transmitting_matrix(*maps))
    lip = t.task.method.phases[0].terms[1]
    np.testing.assert_allclose(lip.fn(context), jnp.mean((constants / 2) ** 2), rtol=1e-6)


def test_left_out_blocks_pass_the_shortcut_and_keep_their_statistics(x64):
    def model(keep):
        return from_body(
            ResNet((1, 1, 1), "running", "native", survival=keep), (8, 8, 3), 4, HeadSpec()
        )

    whole, never = model(()), model((1.0, 1e-9, 1.0))
    weights = whole.init(jax.random.key(0))
    x, key = jax.random.normal(jax.random.key(1), (5, 8, 8, 3)), jax.random.key(2)
    out, stats = never.apply(weights, x, train=True, key=key)
    _, usual = whole.apply(weights, x, train=True, key=key)
    same(stats["stage1"], weights.stats["stage1"])
    assert differ(stats["stage2"], weights.stats["stage2"])
    assert differ(usual["stage1"], weights.stats["stage1"])
    shortcut = jnp.pad(out.blocks[0][:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (8, 8)))
    np.testing.assert_allclose(out.blocks[1], jax.nn.relu(shortcut), atol=1e-12)


def test_tests_expect_the_mean_block(x64):
    half = from_body(
        ResNet((1, 1, 1), "running", "native", survival=(0.5, 1.0, 1.0)), (8, 8, 3), 4, HeadSpec()
    )
    whole = from_body(ResNet((1, 1, 1), "running", "native"), (8, 8, 3), 4, HeadSpec())
    weights = whole.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 8, 8, 3))
    a, b = (m.apply(weights, x, train=False)[0].blocks[0] for m in (half, whole))
    seen = [
        half.apply(weights, x, train=True, key=jax.random.key(i))[0].blocks[0] for i in range(8)
    ]
    assert differ(a, b) and len({float(jnp.sum(s)) for s in seen}) == 2  # dropped or not


def test_mixup_mixes_real_rows_only():
    x = jnp.arange(6.0)[:, None, None, None] + jnp.zeros((6, 2, 2, 1))
    batch = Batch(x, jnp.arange(6), jnp.arange(6) < 4)
    for seed in range(5):
        (first, share), (second, rest) = forward.mixed(batch, jax.random.key(seed), 0.4)
        np.testing.assert_allclose(share + rest, 1, rtol=1e-6)
        assert sorted(np.asarray(second.y[:4])) == [0, 1, 2, 3]
        expected = share * batch.y[:4] + rest * second.y[:4]
        np.testing.assert_allclose(first.x[:4, 0, 0, 0], expected, rtol=1e-5)
        identical(first.x, second.x)


def test_distinct_widths():
    widths, shares = forward.distinct_widths((16, 32, 64), 0.8)
    assert [[narrow(c, w) for c in (16, 32, 64)] for w in widths] == [
        [16, 24, 48],
        [16, 24, 56],
        [16, 32, 56],
        [16, 32, 64],
    ]
    assert sum(shares) == pytest.approx(1) and min(shares) > 0


# ---- whole commands ------------------------------------------------------------------------


def two_rounds(argv):
    """Train as the command would, without evaluation and files; the mean losses."""
    argv = [*argv, "--rounds=2", "--execution.executor=scan"]  # the quickest to compile
    job = assemble(flags.parse(argv).configs[0])
    state = seeds.take(first_state(job), 0)
    round_fn = make_round(job.task, job.executor)
    found = []
    for _ in range(2):
        state, metrics = round_fn(state, make_hyper(job.task, 0), job.data)
        assert np.all(metrics.finite)
        found.append(float(metrics.sums["loss"] / metrics.sums["examples"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("spec", SYNERGY)
def test_synergy_trains_on_digits(spec):
    """The 42 strings of FedDr+'s table 2."""
    assert np.all(np.isfinite(two_rounds([f"--method={spec}", *DATA, *FEW])))


ON_CIFAR = {
    "cnn": (
        "fedetf",
        "fedetf(finetune='code')",
        "fedetf(projector=False)",
        "fedetf(balanced=False, learn_scale=False)",
        "feddr_plus",
        "feddr_plus(finetune='dr')",
        "feddw",
        "feddw(form='linear')",
        "fedblade",
        "fedblade(decorr='feddecorr')",
        "fedblade(feature_alignment=False)",
    ),
    "resnet8": (
        "fedalign",
        "fedalign(cut=False, relative=False)",
        "stochdepth",
        "mixup",
        "gradaug(subnets=1, min_width=0.9)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("model, spec", [(m, s) for m, specs in ON_CIFAR.items() for s in specs])
def test_systems_train_on_cifar10(model, spec):
    try:
        datasets.load("cifar10", None, order="official")
    except UserError as error:
        pytest.skip(str(error))
    argv = [
        f"--method={spec}",
        "--dataset=cifar10",
        f"--model={model}",
        "--data.limit=2000",
        "--federation.clients=8",
        "--federation.participants=2",
        "--local.epochs=1",
    ]
    assert np.all(np.isfinite(two_rounds(argv)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["fedetf(cycles=2)", "feddr_plus"])
def test_fine_tuning_helps_on_digits(tmp_path, spec):
    argv = [
        f"--method={spec}",
        *SMALL,
        "--rounds=3",
        "--data.partition=dirichlet",
        "--data.alpha=0.1",
        "--evaluation.finetune",
    ]
    summary = json.loads((train(tmp_path, argv) / "summary.json").read_text())
    assert summary["finetuned_accuracy"] > summary["client_accuracy"]


def test_history_survives_a_checkpoint():
    """Soft labels with their history; the table of methods has the others."""
    resumes = {"resumes": PROPERTIES["resumes"]}
    contract.check(resumes, lambda: Trial(registry.build("feddw(rule='code')")))
