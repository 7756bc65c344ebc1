"""The laws of composition, and every base with every regulariser."""

import types

import chex
import jax
import numpy as np
import pytest

from fedjax_nc.errors import UserError
from fedjax_nc.methods import base, catalogue, registry
from fedjax_nc.methods.base import Part, Term
from fedjax_nc.testing.after import traces

# ---- laws ----------------------------------------------------------------------------------


def constant(name):
    return Term(name, lambda c: jax.numpy.sum(c.out.features**2), 0.5)


@pytest.mark.parametrize("name", catalogue.bases())
def test_add_laws(name):
    method, a, b = registry.build(name), constant("a"), constant("b")
    assert base.add(method) == method
    assert base.add(base.add(method, a), b) == base.add(method, a, b)
    part = Part("extra")
    assert base.add(method, parts=(part,)).parts == (*method.parts, part)


def test_per_example_averages_real_rows():
    values, mask = jax.numpy.array([1.0, 4.0, np.nan]), jax.numpy.array([True, True, False])
    context = types.SimpleNamespace(batch=types.SimpleNamespace(mask=mask))
    term = base.per_example("mine", lambda c: values, weight=0.5)
    assert (term.name, term.weight, term.check) == ("mine", 0.5, None)
    assert term.fn(context) == 2.5


def test_duplicates_raise():
    method = registry.build("moon")
    with pytest.raises(UserError, match="'a'"):
        base.add(method, constant("a"), constant("a"))
    with pytest.raises(UserError, match="'previous'"):
        base.add(method, parts=(Part("previous"),))


def test_mix_weights():
    method = base.mix(registry.build("fedprox(mu=0.4)"), constant("a"), 0.75)
    assert [(t.name, t.weight) for t in method.phases[0].terms] == [
        ("cross_entropy", 0.75),
        ("prox", pytest.approx(0.3)),
        ("a", 0.25),
    ]
    assert [t.name for t in method.finetune[0].terms] == ["cross_entropy"]  # only rounds are mixed
    again = base.mix(method, constant("b"), 0.5)
    assert [t.weight for t in again.phases[0].terms] == pytest.approx([0.375, 0.15, 0.125, 0.5])


@pytest.mark.parametrize("beta", [-0.01, 1.01, float("nan")])
def test_mix_refuses(beta):
    with pytest.raises(UserError, match="between 0 and 1"):
        base.mix(registry.build("fedavg"), constant("a"), beta)


def test_mix_with_all_of_the_base_trains_alike(x64, tiny):
    method = registry.build("fedavg")
    mixed = base.mix(method, constant("a"), 1.0)
    half = base.mix(method, constant("a"), 0.5)
    states = [tiny(m, widths=(4,), norm="none").run(2)[0] for m in (method, mixed, half)]
    a, b, c = (s.weights for s in states)
    chex.assert_trees_all_close(a, b, rtol=1e-12, atol=1e-14)
    assert not np.allclose(a.params["head"]["kernel"], c.params["head"]["kernel"])


def test_trained_groups():
    groups = ("body", "projector", "head", "scale")
    assert base.trained_groups(registry.build("fedavg"), groups) == groups
    assert base.trained_groups(registry.build("fedbabu"), groups) == ("body",)
    assert base.trained_groups(registry.build("fedetf"), groups) == ("body", "projector", "scale")


# ---- every combination ---------------------------------------------------------------------


COMBINED = ("fedavg", "scaffold", "fedetf", "fedblade")  # with every regulariser
SYNERGY = [
    base if other is None else f"{base} | {other}"
    for base in ("fedavg", "fedbabu", "spherefed", "fedetf", "fedgela", "dot_regression")
    for other in (None, "prox", "moon", "kd", "ntd", "ld", "fd")
]  # FedDr+, table 2


@pytest.mark.parametrize("regulariser", catalogue.regularisers())
@pytest.mark.parametrize("name", catalogue.bases())
def test_every_combination_builds_or_says_why_not(name, regulariser):
    own = {
        "fedprox": "prox",
        "moon": "moon",
        "feddr_plus": "fd",
        "feddw": "dw",
        "feddecorr": "decorr",
        "fedalign": "align",
        "fedntd": "ntd",
    }
    fixed = (
        "fedbabu",
        "spherefed",
        "fedetf",
        "fedgela",
        "dot_regression",
        "feddr_plus",
        "fedblade",
        "fednh",
    )
    twice = own.get(name) == regulariser
    try:
        registry.build(f"{name} | {regulariser}")
    except UserError as error:
        if regulariser == "dw" and name in fixed:
            assert "keeps them fixed: use a method that trains a linear head" in str(error)
        else:
            assert twice and "use the regulariser once" in str(error)
    else:
        assert not twice


@pytest.mark.parametrize(
    "spec",
    dict.fromkeys(
        [
            *catalogue.bases(),
            *SYNERGY,
            *(
                f"{b} | {r}"
                for b in COMBINED
                for r in catalogue.regularisers()
                if r != "dw" or b in ("fedavg", "scaffold")
            ),
        ]
    ),
)
def test_every_combination_traces(tiny, spec):
    norm = "group" if spec == "fedbn" else "none"  # which has nothing to keep without one
    traces(tiny(spec, norm=norm, widths=(4,)))
