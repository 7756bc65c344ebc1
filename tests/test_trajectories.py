"""Whole rounds of authors' own code end in the same parameters; see trajectories/README.md."""

import re
import runpy
from pathlib import Path

import pytest
from replay import NAMES, VARIANTS, load, replay

from fedjax_nc import protocols
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import SGD

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
    named = " ".join(re.findall(r"^\| `(.*?)` \|", fresh, re.MULTILINE))
    for method in (*catalogue.bases(), *catalogue.regularisers()):
        assert re.search(rf"\b{method}\b", named), method
    goldens = re.findall(r"golden `(\w+)`", fresh)
    assert goldens and all((ROOT / f"tests/golden/{g}.npz").exists() for g in goldens)


def test_files_that_differ_have_a_variant():
    """Code that is not its file's specification is computed by another one, or that is mended."""
    mended = {"ditto_fedetf_repo_full", "fedexp_feddr_repo_eps_shard_mini"}
    assert {name for name in NAMES if "differs" in load(name).config} == mended | set(VARIANTS)


def test_protocols_run_what_the_code_does():
    """What the recordings showed about baselines reaches the papers' protocols."""
    ditto = registry.build(protocols.resolve("fedetf", "cifar10", "ditto").method)
    shared, own = ditto.phases
    assert shared.optimizer is None and own.optimizer == SGD()
    etf = registry.build(protocols.resolve("feddr_plus", "cifar10", "fedetf").method)
    assert not etf.head.projector_bias


def test_only_the_recorded_participants_train(x64):
    """With two of four clients the others keep their first heads; those two have the recorded."""
    recorded = load("fedrep_fedetf_repo_mini")
    recorded.config["participants"] = [[2, 0]] * recorded.rounds
    away = replay(recorded)
    trained = {k for k in range(4) if away[f"round1/client{k}/head.weight"] < 1e-8}
    assert trained == {0, 2} and away["round1/fc1.weight"] > 1e-3
