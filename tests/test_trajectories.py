"""Whole rounds of authors' own code end in the same parameters; see trajectories/README.md."""

import re
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from replay import NAMES, VARIANTS, flat, from_torch, load, replay

from fedjax_nc import protocols, tree
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import SGD
from fedjax_nc.models.heads import init_head
from fedjax_nc.types import Weights

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/fidelity.md"


@pytest.mark.parametrize("name", NAMES)
def test_rounds_of_authors_code(x64, name):
    recorded = load(name)
    away = replay(recorded)
    assert len(away) >= 4 * recorded.rounds
    far = {key: value for key, value in away.items() if not value <= recorded.tolerance}
    assert not far


def test_page_of_fidelity_lists_everything():
    """Every trajectory and every method; the numbers are those of whoever ran `make docs`."""
    namespace = runpy.run_path(str(ROOT / "docs/fidelity.py"))
    shown, fresh = (
        re.sub(r"\d(\.\d)?e[+-]\d+", "", text)
        for text in (PAGE.read_text(), namespace["page"](dict.fromkeys(NAMES, 0.0)))
    )
    assert shown == fresh, "run: make docs"
    above, rest = fresh.split("## Methods without a recorded run")
    whole = re.findall(r"^\| `(.*?)` \|", above, re.MULTILINE)
    pieces = [piece for spec in whole for piece in catalogue.parse(spec.replace("\\|", "|"))]
    plain = {p.entry.name for p in pieces if all(p.entry.hyper[k] == p.kwargs[k] for k in p.kwargs)}
    assert {"fedavg", "fedetf", "fd"} <= plain and not {"feddw", "fedala", "fedgela"} & plain
    for method in catalogue.bases():
        assert method in plain or f"\n| `{method}` | " in rest, method
    for regulariser in catalogue.regularisers().keys() - {"fd"}:
        assert f"\n| `\\| {regulariser}` | " in rest, regulariser
    goldens = re.findall(r"golden `(\w+)`", fresh)
    assert goldens and all((ROOT / f"tests/golden/{g}.npz").exists() for g in goldens)


@pytest.mark.parametrize(
    "where, name, said",
    [
        ("OTHERWISE", "apfl", "apfl"),
        ("OTHERWISE", "| decorr", r"\| decorr"),
        ("DEFAULTS", "feddw", "feddw"),
        ("VARIANTS", ("fedrod(form='joint')",), "fedrod with form='joint'"),
    ],
)
def test_page_of_fidelity_needs_something_for_every_form(where, name, said, monkeypatch):
    page = runpy.run_path(str(ROOT / "docs/fidelity.py"))["page"]
    monkeypatch.delitem(page.__globals__[where], name)
    with pytest.raises(SystemExit, match=f"nothing stands for {said}: record a run .* in {where}"):
        page(dict.fromkeys(NAMES, 0.0))


def test_files_that_differ_have_a_variant():
    """Code that is not its file's specification is computed by another one, or that is mended."""
    mended = {"ditto_fedetf_repo_full", "fedexp_feddr_repo_eps_shard_mini"}
    assert {name for name in NAMES if "differs" in load(name).config} == mended | set(VARIANTS)


def test_protocols_run_what_the_code_does():
    """What the recordings showed about baselines reaches the papers' protocols."""
    ditto = registry.build(protocols.resolve("fedetf", "cifar10", "ditto").method)
    shared, own = ditto.phases
    assert shared.optimizer is None and own.optimizer == SGD()
    for name in ("fedetf", "fedgela"):
        head = registry.build(protocols.resolve("feddr_plus", "cifar10", name).method).head
        params = init_head(jax.random.key(0), head, features=6, classes=4)
        assert set(params["projector"]["0"]) == {"kernel"}


def test_dittos_default_is_somebodys(x64):
    """Personal steps without momentum, as FedETF's code and the official one."""
    recorded = load("ditto_fedetf_repo_full")
    recorded.config["method"] = "ditto(lam=0.3)"
    assert max(replay(recorded).values()) <= recorded.tolerance


def test_only_the_recorded_participants_train(x64):
    """With two of four clients the others keep their first heads; those two have the recorded."""
    recorded = load("fedrep_fedetf_repo_mini")
    recorded.config["participants"] = [[2, 0]] * recorded.rounds
    away = replay(recorded)
    trained = {k for k in range(4) if away[f"round1/client{k}/head.weight"] < 1e-8}
    assert trained == {0, 2} and away["round1/fc1.weight"] > 1e-3


# ---- two of four clients in a round, by hand -------------------------------------------------

PRESENT = [[0, 2], [1, 3], [0, 1]]  # clients 0 and 1 come back, 0 after a round without it
ALPHA = 0.1


def gradient(w, x, y):
    """The gradient of the mean cross-entropy of the recorded perceptron."""
    layers, inputs = ("fc1", "fc2", "head"), [x]
    for name in layers:
        out = inputs[-1] @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        inputs.append(out if name == "head" else np.maximum(out, 0))
    odds = np.exp(inputs.pop())
    error = odds / odds.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error, found = error / len(y), {}
    for name, into in zip(layers[::-1], inputs[::-1], strict=True):
        found |= {f"{name}.weight": error.T @ into, f"{name}.bias": error.sum(0)}
        error = (error @ w[f"{name}.weight"]) * (into > 0)
    return found


def descend(recorded, number, client, start, correction):
    """A client's epochs in the recorded order; the model, the steps and the learning rate."""
    local, w = recorded.config["local"], dict(start)
    lr, size = local["lr"] * local["decay"] ** number, local["batch_size"]
    row, steps, speed = recorded.rows(number)[client], 0, dict.fromkeys(start, 0.0)
    for _ in range(local["epochs"]):
        for first in range(0, len(row), size):
            part = row[first : first + size]
            x, y = recorded.arrays["x"][part].reshape(len(part), -1), recorded.arrays["y"][part]
            g = gradient(w, x, y)
            for k in w:
                d = g[k] + correction(k, w) + local["weight_decay"] * w[k]
                speed[k] = local["momentum"] * speed[k] + d
                w[k] = w[k] - lr * speed[k]
            steps += 1
    return w, steps, lr


def by_hand(recorded, kind):
    """Three rounds of FedAvg, SCAFFOLD or FedDyn: the models, and every client's state after each.

    The server's own state is SCAFFOLD's c, or FedDyn's h; a client's is c_k, or the linear term.
    """
    names = [f"{layer}.{part}" for layer in ("fc1", "fc2", "head") for part in ("weight", "bias")]
    w = {k: recorded.arrays[f"init/{k}"] for k in names}
    server = {k: np.zeros_like(w[k]) for k in names}
    own, models, states = [dict(server) for _ in range(4)], [], []
    for number, ids in enumerate(PRESENT):
        trained, before = [], [dict(state) for state in own]
        for client in ids:

            def correction(k, local, mine=before[client], w=w, server=server):
                if kind == "scaffold":
                    return server[k] - mine[k]
                return ALPHA * (local[k] - w[k]) - mine[k] if kind == "feddyn" else 0.0

            new, steps, lr = descend(
                recorded, number, client=client, start=w, correction=correction
            )
            trained.append(new)
            if kind == "scaffold":
                own[client] = {
                    k: before[client][k] - server[k] + (w[k] - new[k]) / (steps * lr) for k in names
                }
            elif kind == "feddyn":
                own[client] = {k: before[client][k] - ALPHA * (new[k] - w[k]) for k in names}
        sizes = np.array([len(recorded.arrays[f"client{k}"]) for k in ids], float)
        shares = [0.5, 0.5] if kind == "feddyn" else sizes / sizes.sum()
        mean = {k: sum(s * new[k] for s, new in zip(shares, trained, strict=True)) for k in names}
        if kind == "scaffold":
            moved = {k: sum(own[i][k] - before[i][k] for i in ids) for k in names}
            server = {k: server[k] + moved[k] / 4 for k in names}
        elif kind == "feddyn":
            server = {k: server[k] - ALPHA / 4 * sum(n[k] - w[k] for n in trained) for k in names}
            mean = {k: mean[k] - server[k] / ALPHA for k in names}
        w = mean
        models.append(w)
        states.append([dict(state) for state in own])
    return models, states


@pytest.mark.parametrize(
    "kind, part, momentum",
    [("fedavg", None, 0.9), ("scaffold", "control", 0.0), ("feddyn", "gradient", 0.0)],
)  # fmt: skip
def test_rounds_of_two_of_four_clients(x64, kind, part, momentum):
    """The models are those by hand, and who is absent keeps its state bit for bit."""
    recorded = load("fedavg_fedetf_repo_mini")
    recorded.config["method"] = "feddyn(alpha=0.1)" if kind == "feddyn" else kind
    recorded.config["participants"] = PRESENT
    recorded.config["local"] |= {"momentum": momentum, "keep_optimizer": False}
    models, states = by_hand(recorded, kind)
    for name in [name for name in recorded.arrays if name.startswith(("round", "extra/"))]:
        del recorded.arrays[name]
    for number, model in enumerate(models):
        recorded.arrays.update({f"round{number + 1}/{k}": x for k, x in model.items()})
    seen = []

    def watch(state):
        rows = [tree.take(state.clients[part], k) for k in range(4)] if part else []
        seen.append([flat(Weights(row, {})) for row in rows])

    away = replay(recorded, watch)
    assert len(away) == 18 and max(away.values()) < 1e-12
    for number, ids in enumerate(PRESENT if part else []):
        for client, mine in enumerate(seen[number]):
            for k, x in mine.items():
                expected = from_torch(states[number][client][k])
                np.testing.assert_allclose(x, expected, atol=1e-12)
                if client not in ids:
                    old = seen[number - 1][client][k] if number else np.zeros_like(x)
                    np.testing.assert_array_equal(x, old)
