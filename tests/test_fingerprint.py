"""Fingerprints: the same for the same thing in every process, another for anything else."""

import dataclasses
import functools
import importlib.util
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_nc import methods
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Term, add
from fedjax_nc.methods.fingerprint import fingerprint, is_named

ROOT = Path(__file__).parents[1]
BASES = list(catalogue.bases())

# A file of one's own, with what a method, a partitioner and a network are made of.
OWN = """
import dataclasses, enum, functools
import flax.linen as nn
import jax, jax.numpy as jnp, numpy as np
import neighbour
from neighbour import further
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Term, add
from fedjax_nc.methods.registry import base, regulariser

SCALE = 2.0
TABLE = {"a": 1, "b": (2, 3)}
WORDS = {"x", "y", "z", "u", "v", "w"}
OFFSET = np.arange(3.0)
RANDOM = np.random.default_rng(0)

class Rule(enum.Enum):
    FIRST = 1
    SECOND = 2

def helper(x):
    return inner(x) * SCALE

def inner(x, power=2):
    return x**power if x is not None else helper(x)  # in a circle

@jax.jit
def compiled(x):
    return x + 1

@regulariser
def angle(*, mu: float = 0.5):
    def fn(c):
        y = helper(c.out.features).sum() + TABLE["a"] + OFFSET.sum() + neighbour.near()
        return compiled(y) + further() if Rule.FIRST and "x" in WORDS else y
    return lambda method: add(method, Term("angle", fn, weight=mu))

def partition(labels, clients, *, alpha=0.5):
    order = RANDOM.permutation(len(labels))
    return [order[i::clients] for i in range(clients) if i not in {"p", "q", "r"}]

class Block(nn.Module):
    width: int = 4
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(self.width)(x)) * SCALE

class Net(nn.Module):
    block: nn.Module = Block()
    norm: str = "batch"
    @nn.compact
    def __call__(self, x, train=True):
        return nn.BatchNorm(use_running_average=not train)(self.block(x))

@dataclasses.dataclass(frozen=True)
class Options:
    rule: Rule = Rule.FIRST
    def weight(self, x):
        return x * 3

def everything():
    yield angle(mu=0.25)(fedavg())
    yield functools.partial(partition, alpha=0.1)
    yield Net(block=Block(width=8))
    yield Options().weight
"""
NEIGHBOUR = "def near():\n    return 1\n\ndef further():\n    return 2\n"


def write(folder, own=OWN, neighbour=NEIGHBOUR, name="own"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.py").write_text(own)
    (folder / "neighbour.py").write_text(neighbour)


def prints(folder, **files):
    """Fingerprints of everything in a file of one's own."""
    write(folder, **files)
    modules = {}
    for name in ("neighbour", "own"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        modules[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    try:
        first, second = ([fingerprint(x) for x in modules["own"].everything()] for _ in range(2))
    finally:
        catalogue.forget(str((folder / "own.py").resolve()))
        for name in modules:
            del sys.modules[name]
    assert first == second
    return first


def prints_of_another_process(folder, seed, name, **files):
    write(folder, name=name, **files)
    code = f"import {name} as own; from fedjax_nc.methods.fingerprint import fingerprint as f\n"
    code += "print(*[f(x) for x in own.everything()])"
    env = {"PYTHONPATH": f"{ROOT}:{folder}", "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()


def test_processes_agree(first, tmp_path):
    assert len(set(first)) == 4 and all(re.fullmatch("[0-9a-f]{8}", x) for x in first)
    moved = OWN.replace("SCALE = 2.0", "\n\n# a comment\nSCALE = 2.0")
    assert first == prints_of_another_process(tmp_path / "one", "1", name="own")
    assert first == prints_of_another_process(tmp_path / "two", "2", name="another", own=moved)


METHOD, PARTITION, NETWORK, BOUND = range(4)


@pytest.mark.parametrize(
    "old, new, changed",
    [
        ("SCALE = 2.0", "SCALE = 2.5", {METHOD, NETWORK}),
        ("x**power if", "x * power if", {METHOD}),
        ("power=2", "power=3", {METHOD}),
        ('"b": (2, 3)', '"b": (2, 4)', {METHOD}),
        ("np.arange(3.0)", "np.arange(4.0)", {METHOD}),
        ("return x + 1", "return x + 2", {METHOD}),
        ('{"x", "y"', '{"y"', {METHOD}),
        ("mu=0.25", "mu=0.5", {METHOD}),
        ("alpha=0.1", "alpha=0.2", {PARTITION}),
        ('{"p", "q"', '{"p"', {PARTITION}),
        ("default_rng(0)", "default_rng(1)", set()),  # its state changes with every call
        ("width=8", "width=9", {NETWORK}),
        ("not train", "train", {NETWORK}),
        ("nn.relu", "nn.tanh", {NETWORK}),
        ("rule: Rule = Rule.FIRST", "rule: Rule = Rule.SECOND", {BOUND}),
        ("x * 3", "x * 4", {BOUND}),
        ("FIRST = 1", "FIRST = 3", {METHOD, BOUND}),
    ],
)
def test_a_changed_line_shows(first, tmp_path, old, new, changed):
    assert OWN.count(old) == 1
    now = prints(tmp_path, own=OWN.replace(old, new))
    assert {i for i in range(4) if now[i] != first[i]} == changed


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return prints(tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("old", ["return 1", "return 2"])
def test_a_changed_neighbour_shows(first, tmp_path, old):
    now = prints(tmp_path, neighbour=NEIGHBOUR.replace(old, "return 7"))
    assert [a == b for a, b in zip(now, first, strict=True)] == [False, True, True, True]


# ---- methods -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASES)
def test_methods_are_what_their_names_build(name):
    method = registry.build(name)
    assert is_named(method) and is_named(methods.ft(epochs=2)(method))
    assert not is_named(method._replace(personal=("scale",)))


def test_no_two_methods_are_alike():
    specs = [*BASES, *(f"fedavg | {name}" for name in catalogue.regularisers())]
    specs += [
        "fedprox(mu=0.5)",
        "fedavg | prox(beta=0.5)",
        "moon(dim=0)",
        "fedetf(absent='remove')",
    ]
    assert len({fingerprint(registry.build(spec)) for spec in specs}) == len(specs)


def test_what_is_not_named():
    fedavg = methods.fedavg()
    term = Term("mine", lambda c: jnp.sum(c.out.features))
    assert not is_named(add(fedavg, term))
    assert not is_named(methods.fd()(add(fedavg, term)))
    assert not is_named(fedavg._replace(name="mine"))
    assert not is_named(fedavg._replace(name="fedprox"))
    assert not is_named(fedavg._replace(name="two words"))
    assert is_named(methods.fedprox(mu=1)) and is_named(registry.build("fedprox(mu=1)"))


# ---- what else a closure may hold ----------------------------------------------------------


class Pair(NamedTuple):
    a: object
    b: object = 0


@dataclasses.dataclass
class Box:
    inside: object


class Counter:
    def __init__(self, start):
        self.start = start

    def count(self, x):
        return x + self.start


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def closure(value):
    return lambda x: (x, value)


def default(value):
    def function(x, *, y=value):
        return x, y

    return function


def cyclic(value):
    items = [value]
    items.append(items)
    return items


MAKE = {
    "closure": closure,
    "default": default,
    "partial": lambda v: functools.partial(closure, v),
    "bound": lambda v: Counter(v).count,
    "slots": Slots,
    "dataclass": Box,
    "named": Pair,
    "dict": lambda v: {"a": v, "b": 1},
    "nested": lambda v: closure([default((v,)), {"deep": {v}}]),
    "cycle": cyclic,
    "jitted": lambda v: jax.jit(closure(v)),
    "vmapped": lambda v: jax.vmap(closure(1), in_axes=v),
    "optimiser": lambda v: optax.sgd(0.1 + v, momentum=0.9),
    "array": lambda v: np.full(3, v, np.float32),
    "device array": lambda v: jnp.full(3, v, jnp.float32),
    "objects": lambda v: np.array([v, "text"], dtype=object),
    "scalar": np.float32,
    "key": jax.random.key,
    "pattern": lambda v: re.compile(f"{v}+"),
    "generator": np.random.default_rng,
    "network": lambda v: nn.Dense(v + 1),
    "optional": lambda v: None if v else 0,
    "number": lambda v: 1 if v else True,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_kinds_of_values(make):
    assert fingerprint(make(0)) == fingerprint(make(0)) != fingerprint(make(1))


def test_order_counts_only_where_there_is_one():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({3, 1, 2}) == fingerprint({1, 2, 3}) != fingerprint({1, 2})
    assert fingerprint((1, 2)) != fingerprint((2, 1)) and fingerprint((1, 2)) != fingerprint([1, 2])
    assert fingerprint(Pair(1, 2)) != fingerprint((1, 2))
    assert fingerprint(np.zeros((2, 3))) != fingerprint(np.zeros((3, 2)))
    assert fingerprint(np.zeros(2)) != fingerprint(np.zeros(2, np.int64))
    assert fingerprint(("ab", "c")) != fingerprint(("a", "bc"))


def test_calls_change_nothing():
    function = closure(3)
    before = fingerprint(function)
    for _ in range(100):  # Python specialises the bytecode of what is called often
        function(1)
    assert fingerprint(function) == before
    jitted = jax.jit(lambda x: x + 1)
    before = fingerprint(jitted)
    jitted(1.0)
    assert fingerprint(jitted) == before


def test_what_pickle_refuses_counts_by_its_class():
    assert fingerprint(threading.Lock()) == fingerprint(threading.Lock())
    assert fingerprint(threading.Lock()) != fingerprint(threading.RLock())
