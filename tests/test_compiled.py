"""What the compiled round must not contain, read from it: guards speed without timing."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from ours import make_job
from workload import Workload

from fedjax_nc.host.loop import AT_ONCE
from fedjax_nc.host.states import first_state
from fedjax_nc.train.round import make_rounds
from fedjax_nc.train.schedule import make_hyper

CANONICAL = "b01f_01io->b01f"  # the only layout XLA:CPU has a fast kernel for inside a loop
HOST = r'custom_call_target="[^"]*callback| (infeed|outfeed|send|recv)\('


@pytest.fixture(autouse=True)
def _no_shape_checks(monkeypatch):
    """Lowering puts ArgInfo where a State has arrays."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def compiled(model, **how):
    """The text of the program that the host's loop dispatches."""
    work = Workload(model=model, clients=2, participants=2, images=4, batch_size=2, **how)
    job = make_job(work)
    hyper = make_hyper(job.task, 0)
    hyper = hyper._replace(lr=jnp.full(AT_ONCE, hyper.lr))
    program = make_rounds(job.task, job.executor, at_once=AT_ONCE)
    return program.lower(first_state(job), hyper, 1, job.data).compile().as_text()


def slow_convolutions(text):
    """Convolutions in any other layout, or grouped."""
    lines = re.findall(r" convolution\(.*", text)
    return [
        line for line in lines if f"dim_labels={CANONICAL}" not in line or "group_count" in line
    ]


@pytest.mark.parametrize("model", ["cnn", "fedavg_cnn", "resnet8"])
@pytest.mark.parametrize("conv", ["auto", "canonical"])
def test_no_slow_convolution_and_no_host(model, conv):
    text = compiled(model, conv=conv)
    assert ("while(" in text and " dot(" in text) or "__ynn" in text  # it is the training program
    assert (" convolution(" in text) == (conv == "canonical")
    assert not slow_convolutions(text)
    assert not re.search(HOST, text)


@pytest.mark.parametrize("executor", ["sharded", "vmap"])
def test_the_guard_sees_native_convolutions(executor):
    found = slow_convolutions(compiled("cnn", conv="native", executor=executor))
    assert found and any("group_count" in line for line in found) == (executor == "vmap")


def test_clients_at_once_are_batched_products():
    text = compiled("resnet8", executor="vmap")
    assert " convolution(" not in text


def test_the_guard_sees_callbacks():
    def ask(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), "float32"), x)

    text = jax.jit(ask).lower(jnp.ones(())).compile().as_text()
    assert re.search(HOST, text)
