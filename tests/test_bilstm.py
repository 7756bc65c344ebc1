"""The LSTM against a plain one, and text through the rounds that images go through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import PLAIN, directory_of, rows_of
from test_datasets import SUBSETS, needs_subsets
from trees import same

from fedjax_nc.cli import main
from fedjax_nc.data import prepare
from fedjax_nc.models.base import from_body
from fedjax_nc.models.bilstm import BiLSTM, BothWays
from fedjax_nc.testing import contract, models, rounds
from fedjax_nc.types import HeadSpec

CLASSES, WORDS, LENGTH = 4, 11, 5


def one_way(x, kernel, recurrent, bias):
    """An LSTM as it is defined, word by word."""
    units = recurrent.shape[0]
    hidden = cell = jnp.zeros((x.shape[1], units))
    seen = []
    for word in x:
        z = word @ kernel + hidden @ recurrent + bias
        i, f, g, o = (z[:, k * units : (k + 1) * units] for k in range(4))
        cell = cell / (1 + jnp.exp(-f)) + jnp.tanh(g) / (1 + jnp.exp(-i))
        hidden = jnp.tanh(cell) / (1 + jnp.exp(-o))
        seen.append(hidden)
    return jnp.stack(seen)


def test_both_ways_is_two_plain_lstms(x64):
    key = jax.random.key(0)
    x = jax.random.normal(key, (LENGTH, 3, 2))
    net = BothWays(4)
    params = net.init(key, x)["params"]

    def plain(p, x):
        names = ("kernel", "recurrent", "bias")
        there = one_way(x, *(p[f"forward_{n}"] for n in names))
        back = one_way(x[::-1], *(p[f"backward_{n}"] for n in names))
        return jnp.concatenate([there, back[::-1]], -1)

    def ours(p, x):
        return net.apply({"params": p}, x)

    def loss(fn):
        weight = jax.random.normal(jax.random.key(1), (LENGTH, 3, 8))
        return lambda *a: jnp.sum(weight * jnp.sin(fn(*a)))

    np.testing.assert_allclose(ours(params, x), plain(params, x), rtol=1e-12)
    same(*(jax.grad(loss(fn), (0, 1))(params, x) for fn in (ours, plain)))
    # what a curvature needs: forward mode through the gradient
    push = [jax.jvp(jax.grad(loss(fn)), (params, x), (params, x))[1] for fn in (ours, plain)]
    same(*push)


def test_outputs_and_dropout(x64):
    model = from_body(BiLSTM(words=WORDS - 2, units=4), (LENGTH,), CLASSES, HeadSpec())
    weights, words = model.init(jax.random.key(0)), jnp.arange(10).reshape(2, LENGTH)
    out, _ = model.apply(weights, words, train=False)
    assert [b.shape for b in out.blocks] == [(2, LENGTH, 8), (2, LENGTH, 4)]
    assert [v.shape for v in out.levels] == [(2, 8), (2, 4)] and out.features.shape == (2, 4)
    body = weights.params["body"]
    pooled = np.asarray(out.blocks[-1]).mean(1)
    by_hand = pooled @ body["Dense_1"]["kernel"] + body["Dense_1"]["bias"]
    np.testing.assert_allclose(out.features, by_hand, rtol=1e-12)
    draws = [model.apply(weights, words, train=True, key=jax.random.key(k))[0] for k in (0, 0, 1)]
    assert (draws[0].features == draws[1].features).all()
    assert (draws[0].features != draws[2].features).any()


def network():
    return models.Network(BiLSTM(units=4), shape=(LENGTH,))


def test_contract():
    contract.check(models.BY_ITSELF, network)


@pytest.mark.slow
def test_contract_in_rounds():
    contract.check(models.IN_ROUNDS, network)
    others = ("agrees under chunked", "agrees under debug")
    contract.check({what: rounds.PROPERTIES[what] for what in others}, lambda: network().trial)


def write_reviews(folder, count):
    """Good ones and bad ones have words of their own."""
    rng = np.random.RandomState(0)
    for split in ("train", "test"):
        for mood, own in (("neg", "bad"), ("pos", "fine")):
            (folder / split / mood).mkdir(parents=True)
            for i in range(count):
                words = rng.choice([own, "film", "plot", f"w{i}"], 12)
                (folder / split / mood / f"{i}_1.txt").write_text(" ".join(words))
    return folder


FEW = [
    "--dataset=imdb_reviews",
    "--data.words=50",
    "--rounds=2",
    "--federation.clients=3",
    "--federation.participants=2",
    "--local.epochs=1",
    "--local.batch_size=8",
    "--data.partition=iid",
    *PLAIN,
]


@pytest.mark.parametrize(
    "method",
    ["fedetf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedblade"))],
)
def test_two_rounds_on_reviews(method, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    prepare.prepare(
        "imdb_reviews",
        str(write_reviews(tmp_path / "aclImdb", 12)),
        directory=str(data),
        official=False,
    )
    argv = [f"--method={method}", *FEW, "--data.length=6", f"--data.dir={data}"]
    assert main.train([*argv, f"--out={tmp_path}"]) == 0
    rows = rows_of(directory_of(tmp_path, argv))
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)
    names = [p.name for p in (data / ".fedjax_nc_cache").iterdir()]
    assert len(names) == 1 and names[0].endswith("-50x6-official")
    other = [f"--method={method}", *FEW, "--data.length=7", f"--data.dir={data}"]
    assert directory_of(tmp_path, other) != directory_of(tmp_path, argv)


@pytest.mark.slow
@needs_subsets
def test_real_reviews_are_learned(tmp_path, monkeypatch, optimised):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    argv = [
        "--method=fedavg",
        "--protocol=feddw",
        *FEW,
        "--data.words=2000",
        "--data.length=40",
        "--rounds=3",
        "--local.epochs=2",
        "--local.batch_size=50",
        "--evaluation.every=3",
        "--local.lr=0.003",
        "--data.limit=2000",
        f"--data.dir={SUBSETS}",
        "--data.order=stored",  # which is all that the subsets' TFDS directory tells
    ]
    assert main.train([*argv, f"--out={tmp_path}"]) == 0
    assert rows_of(directory_of(tmp_path, argv))[-1]["global_accuracy"] > 0.6


@pytest.mark.slow
@needs_subsets
@pytest.mark.parametrize("method", ["fedetf", "fedblade"])
def test_two_rounds_on_real_reviews(method, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    argv = [
        f"--method={method}",
        *FEW,
        "--data.length=20",
        "--data.limit=48",
        "--evaluation.every=2",
        f"--data.dir={SUBSETS}",
        "--data.order=stored",  # which is all that the subsets' TFDS directory tells
    ]
    assert main.train([*argv, f"--out={tmp_path}"]) == 0
    rows = rows_of(directory_of(tmp_path, argv))
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)
    assert rows[0]["loss"] != rows[1]["loss"]
