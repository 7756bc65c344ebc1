"""Variants of published code, each beside a plain program of what that code computes."""

from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay import as_recorded
from trees import after, differ, identical, only, personal_of, plain, same

from fedjax_nc import losses, tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import distillation, registry
from fedjax_nc.methods.base import Context, Phase, Repeat
from fedjax_nc.methods.fingerprint import fingerprint
from fedjax_nc.models.heads import apply_head, init_head
from fedjax_nc.testing.federation import LARGEST, SIZES
from fedjax_nc.train import executors, local
from fedjax_nc.types import Batch, HeadSpec, Model, Outputs

LR, MOMENTUM, DECAY, BATCH, EPOCHS, ROUNDS = 0.1, 0.9, 0.01, 5, 2, 2
BATCHES = -(-SIZES[LARGEST] // BATCH)


class Problem:
    """The largest client of the tiny federation alone, its batches always in the same order."""

    def __init__(self, tiny, spec):
        settings = {"batch_size": BATCH, "epochs": EPOCHS, "momentum": MOMENTUM}
        self.t = only(
            tiny(spec, norm="none", local_cfg=settings | {"weight_decay": DECAY}), LARGEST
        )
        self.weights = self.t.state().weights
        self.start = plain(self.weights).params
        rows = np.asarray(self.t.data.train.index[0, : SIZES[LARGEST]])
        pool, self.model = self.t.data.pool, self.t.task.trainer.model
        self.batches = [
            (pool.x[part] / 255.0 - 0.5, pool.y[part])
            for part in np.split(rows, range(BATCH, len(rows), BATCH))
        ]
        self.slope = jax.jit(jax.grad(self._loss))

    def _loss(self, params, x, y):
        out, _ = self.model.apply(self.weights._replace(params=params), x, train=True)
        return jnp.mean(losses.cross_entropy(out.logits, y))

    def gradient(self, params, number):
        """The gradient of cross-entropy on a batch."""
        return self.slope(params, *self.batches[number])

    def run(self):
        """The state that the package computes."""
        with mock.patch.object(local, "shuffled", as_recorded):
            return self.t.run(ROUNDS)[0]


def minus(w, length, direction):
    return jax.tree.map(lambda a, b: a - length * b, w, direction)


def gathered(buffer, gradient):
    return jax.tree.map(lambda b, g: MOMENTUM * b + g, buffer, gradient)


def decayed(gradient, w):
    return jax.tree.map(lambda g, a: g + DECAY * a, gradient, w)


def test_fedrep_in_fedbabus_code(x64, tiny):
    """One SGD of two groups: the one with learning rate zero gathers momentum and decay."""
    problem = Problem(tiny, "fedrep(epochs='fedbabu', optimizer='one')")
    w = problem.start
    for _ in range(ROUNDS):
        buffer = tree.zeros_like(w)
        for epoch in range(EPOCHS + 1):
            moving = "head" if epoch < EPOCHS else "body"
            for number in range(BATCHES):
                buffer = gathered(buffer, decayed(problem.gradient(w, number), w))
                w = w | {moving: minus(w[moving], LR, buffer[moving])}
    state = problem.run()
    same(state.weights.params["body"], w["body"])
    same(tree.take(state.clients["personal"].params["head"], 0), w["head"])


def test_one_optimiser_without_momentum_is_two(x64):
    whole = {
        "local_cfg": {"batch_size": 12, "epochs": 3, "momentum": 0.0}
    }  # the two shuffle differently
    specs = [f"fedrep(epochs='feddw', optimizer='{one}')" for one in ("one", "each")]
    same(*(after(spec, 2, norm="none", **whole) for spec in specs))


def test_ditto_in_fedbabus_code(x64, tiny):
    """A copy is trained, then the model with a pull towards it; there is no decay."""
    lam = 0.75
    problem = Problem(tiny, f"ditto(lam={lam}, rule='fedbabu')")
    w = problem.start
    for _ in range(ROUNDS):
        copy, buffer = w, tree.zeros_like(w)
        for number in [*range(BATCHES)] * EPOCHS:
            buffer = gathered(buffer, problem.gradient(copy, number))
            copy = minus(copy, LR, buffer)
        buffer = tree.zeros_like(w)
        for number in [*range(BATCHES)] * EPOCHS:
            before, buffer = w, gathered(buffer, problem.gradient(w, number))
            w = minus(minus(w, LR, buffer), LR * lam, tree.sub(before, copy))
    state = problem.run()
    same(state.weights.params, w)
    assert not state.clients  # all begin a round with the global model


def test_ditto_of_fedbabu_without_pull_is_fedavg(x64):
    options = {"norm": "none", "local_cfg": {"momentum": 0.9}}
    same(*(after(spec, 2, **options) for spec in ("ditto(lam=0.0, rule='fedbabu')", "fedavg")))


def test_per_fedavg_in_fedbabus_code(x64, tiny):
    """Floor(L / E) + 1 pairs in each epoch, which begins again where its batches run out."""
    alpha, beta = 0.05, 0.2
    problem = Problem(tiny, f"per_fedavg(alpha={alpha}, beta={beta}, batches='pairs')")
    w = problem.start
    for _ in range(ROUNDS):
        buffer = tree.zeros_like(w)
        for _ in range(EPOCHS):
            seen = 0
            for _ in range(BATCHES // EPOCHS + 1):
                buffer = gathered(buffer, problem.gradient(w, seen % BATCHES))
                inner = minus(w, alpha, buffer)
                buffer = gathered(buffer, problem.gradient(inner, (seen + 1) % BATCHES))
                w, seen = minus(w, beta, buffer), seen + 2
            assert seen > BATCHES  # one batch is seen twice
    same(problem.run().weights.params, w)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_by_hand(x64, tiny, adaptive):
    problem = Problem(tiny, f"apfl(alpha=0.7, adaptive={adaptive})")
    w = v = problem.start
    share = 0.7
    for _ in range(ROUNDS):
        of_w = of_v = tree.zeros_like(w)
        for step, number in enumerate([*range(BATCHES)] * EPOCHS):
            of_w = gathered(of_w, decayed(problem.gradient(w, number), w))
            w = minus(w, LR, of_w)
            mixture = jax.tree.map(lambda a, b, s=share: s * a + (1 - s) * b, v, w)
            slope = problem.gradient(mixture, number)
            of_v = gathered(of_v, decayed(tree.scale(share, slope), v))
            apart = tree.dot(tree.sub(v, w), slope)
            v = minus(v, LR, of_v)
            if adaptive and step == 0:
                share = min(max(float(share - LR * (apart + 0.02 * share)), 0.0), 1.0)
    state = problem.run()
    own = tree.take(state.clients["own"], 0)
    same(state.weights.params, w)
    same(own.model.params, v)
    np.testing.assert_allclose(own.share, share, rtol=1e-10)
    assert (share != 0.7) == adaptive


def test_apfl_of_own_models_alone_is_local(x64, tiny):
    """With nothing shared in the mixture, which is what is tested."""
    how = executors.make_executor("scan")
    mine, his = (tiny(spec, norm="none") for spec in ("apfl(alpha=1.0)", "local"))
    state, expected = (t.run(2)[0] for t in (mine, his))
    same(state.clients["own"].model, expected.clients["personal"])
    scores = [
        tree.take(personal_of(t, how, t.task.method.phases, state=s), -1)
        for t, s in ((mine, state), (his, expected))
    ]
    same(*scores)


@pytest.mark.parametrize("buffer", [2, 3])
@pytest.mark.parametrize(
    "present",
    [[[0, 1, 2, 3]] * 5, [[0, 2], [1, 3], [0, 1], [0, 3], [0, 1]]],
    ids=["everybody", "two of four"],
)
def test_moons_pool_is_what_everybody_had_after_the_last_rounds(buffer, present):
    """Also for who was absent then; only participants' state is ever written."""
    method = registry.build(f"moon(buffer={buffer})")
    setup, parts = SimpleNamespace(weights="first"), method.parts
    (count,) = (part for part in parts if part.name == "pool")
    rounds, models = count.init_shared(setup), [part.name for part in parts if part != count]
    clients = [{part.name: part.init_client(setup) for part in parts} for _ in range(4)]
    nets, pool = ["first"] * 4, []
    for number, ids in enumerate(present):
        for k, state in enumerate(clients):
            times = distillation.times_in_pool(state["pool"], rounds=rounds).tolist()
            found = [
                state[name] for name, often in zip(models, times, strict=True) for _ in range(often)
            ]
            assert sorted(found) == sorted(old[k] for old in pool[-buffer:])
        for k in ids:
            nets[k] = f"client {k} after {number}"
            finished = SimpleNamespace(weights=nets[k], client=clients[k], shared={"pool": rounds})
            clients[k] = {part.name: part.keep(finished) for part in parts}
        pool.append([*nets])
        rounds = count.reduce(rounds, None, None)


def test_moon_reads_all_it_keeps():
    method, seen = registry.build("moon(buffer=3, mu=2.0)"), []

    def ref(name):
        seen.append(name)
        return SimpleNamespace(projected=jnp.ones((1, 2)))

    out, batch = ref("own"), SimpleNamespace(mask=jnp.ones(1, bool))
    stored = {"pool": jnp.array([4, 2, -1])}
    context = SimpleNamespace(out=out, ref=ref, batch=batch, client=stored)
    for rounds, models in ((0, 1), (5, 4), (9, 4)):
        context.shared = {"pool": jnp.asarray(rounds)}
        value = method.phases[0].terms[1].fn(context)
        np.testing.assert_allclose(value, np.log(models), rtol=1e-6)  # all alike
    assert seen == ["own", *["global", "previous", "previous2", "previous3"] * 3]


# ---- hyperparameters of losses and heads ---------------------------------------------------


def test_gradaug_draws_all_widths_or_all_but_the_first():
    batch = Batch(jnp.ones((1, 8, 8, 1)), jnp.zeros(1, jnp.int32), mask=jnp.ones(1, bool))

    def outputs(width):
        return Outputs((), (), jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.array([[width, -width]]))

    def apply(weights, x, *, width, **_):
        return outputs(width), {}

    model = Model(lambda key: None, apply, head=lambda *_: None, channels=(16,))
    nothing = {key: {} for key in ("weights", "received", "shared", "client", "info")}

    def values(rule):
        spec = f"gradaug(subnets=1, min_width=0.5, rule='{rule}')"
        (_, term) = registry.build(spec).phases[0].terms

        def of(key):
            return term.fn(Context(model, batch=batch, out=outputs(0.0), key=key, **nothing))

        return jax.jit(jax.vmap(of))(jax.random.split(jax.random.key(0), 8)).round(5).tolist()

    always, drawn = values("code"), values("paper")
    assert len(set(always)) == 1 and always[0] == min(drawn) and len(set(drawn)) > 1


def test_feddws_reference_moves_at_intervals(x64, tiny):
    t = tiny("feddw(mu=5.0, form='linear', refresh=2)", norm="none")
    state, kernels, kept = t.state(), [], []
    for _ in range(4):
        kernels.append(np.asarray(state.weights.params["head"]["kernel"]))
        state, _ = t.run(1, state=state)
        kept.append(np.asarray(state.shared["reference"].kernel))
    identical(kept, [kernels[0], kernels[0], kernels[2], kernels[2]])
    each = [after("feddw(mu=5.0, form='linear')", n, norm="none").params for n in (1, 2)]
    same(each[0]["head"]["kernel"], kernels[1])  # until then both have the first one
    assert differ(each[1]["head"]["kernel"], kernels[2])


def test_fedetfs_temperature():
    fixed, learned = (
        registry.build(f"fedetf({words}scale=5.0)").head for words in ("learn_scale=False, ", "")
    )
    params = init_head(jax.random.key(0), fixed, features=6, classes=4)
    features = jnp.ones((2, 6))
    one, five = (
        apply_head(params, features, spec=spec)[1] for spec in (fixed._replace(scale=1.0), fixed)
    )
    same(5.0 * one, five)
    assert "scale" not in params
    assert float(init_head(jax.random.key(0), learned, features=6, classes=4)["scale"]) == 5.0


def written(phases):
    return [
        written(p.phases) if isinstance(p, Repeat) else [(t.name, t.weight) for t in p.terms]
        for p in phases
    ]


def test_fine_tuning_of_feddr_plus_table_14():
    regression, distilled = [("dot_regression", 1.0)], [("dot_regression", 0.9), ("fd", 1 - 0.9)]
    for spec, rounds, finetune in (
        ("dot_regression", regression, regression),
        ("dot_regression(finetune='dr_plus')", regression, distilled),
        ("feddr_plus(finetune='dr')", distilled, regression),
        ("feddr_plus", distilled, distilled),
        ("dot_regression | fd", distilled, regression),
        ("dot_regression | fd(finetune=True)", distilled, distilled),
    ):
        method = registry.build(spec)
        assert (written(method.phases), written(method.finetune)) == ([rounds], [finetune]), spec
        assert method.finetune[0].epochs == 5
    _, cycles = written(registry.build("fedetf | fd(beta=0.5, finetune=True)").finetune)
    assert cycles == 2 * [[("cross_entropy", 0.5), ("fd", 0.5)]]
    with pytest.raises(UserError, match="'local' defines no fine-tuning: leave finetune out"):
        registry.build("local | fd(finetune=True)")


# ---- what would silently be something else -------------------------------------------------


@pytest.mark.parametrize(
    "spec, said",
    [
        ("fedbn", "fedbn keeps normalising layers, and this network has none"),
        ("fedetf(finetune='code', resume=True)", "add --local.keep_optimizer"),
    ],
)
def test_refused_where_it_would_be_another_method(tiny, spec, said):
    with pytest.raises(UserError, match=said) as caught:
        tiny(spec, norm="none")
    assert "\n" not in str(caught.value)


def test_epochs_that_are_dealt_are_no_steps(tiny):
    """A fixed number of steps was ignored, or taken by the head alone."""
    options = {"norm": "none", "local_cfg": {"steps": 3}}
    for words in ("", "epochs='fedbabu'", "epochs='feddw'", "epochs='fedetf', optimizer='one'"):
        with pytest.raises(UserError, match="deals a client's epochs, and --local"):
            tiny(f"fedrep({words})", **options)
    t = tiny("fedrep(epochs='fedetf')", **options)
    assert [p.epochs for p in t.task.method.phases] == [None, None]


def test_later_fields_change_no_fingerprint_until_used():
    phase, head = Phase(()), HeadSpec()
    old = [phase[: -len(("start", "moves", "visits"))], head[:-1]]
    for record, before in zip((phase, head), old, strict=True):
        made = fingerprint([type(record), *before])
        assert fingerprint(record) != made  # a list is no record, which
        assert fingerprint(record) == fingerprint(type(record)(*before))  # has what it had
    assert fingerprint(phase) != fingerprint(phase._replace(visits=lambda n, e: n))
    assert fingerprint(head) != fingerprint(head._replace(scale=2.0))
