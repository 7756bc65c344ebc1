"""What a network must do; each property says in a few words what it saw, or raises."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, models
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.models import catalogue, own
from fedjax_nc.testing import programs, rounds
from fedjax_nc.testing.compare import identical, not_finite, same
from fedjax_nc.testing.contract import Absent, Property
from fedjax_nc.testing.federation import CLASSES, WORDS
from fedjax_nc.testing.trial import Trial
from fedjax_nc.types import Model, Weights

REAL, PADDED = 5, 8  # rows of a batch
HEADS = ("fedavg", "fedetf", "fedgela")  # linear; projector, simplex and scale; encoder
CLOSE = {"rtol": 1e-7, "atol": 1e-9}  # of deep networks
LENGTH = 7  # of a text


class Network:
    """A network on trial."""

    def __init__(
        self, given: Any, *, shape: tuple[int, ...] | None = None, classes: int = CLASSES
    ) -> None:
        """Finds the network; it is built when the first property needs it.

        Args:
          given: a name, a flax module or a record of `own.model`.
          shape: of an input, by default the smallest it takes.
          classes: number of classes.
        """
        text = shape is not None and len(shape) == 1
        if isinstance(given, str):
            self.spec = catalogue.find(given)
        else:
            self.spec = own.model(given, text=text)
        side = max(self.spec.min_size, 2)
        self.shape = shape or ((LENGTH,) if self.spec.text else (side, side, 3))
        self.name, self.classes = self.spec.name, classes

    def build(self, method: str = "fedavg") -> Model:
        """Builds it with the head of a method."""
        head = registry.build(method).head
        return models.build(self.spec, self.shape, classes=self.classes, head=head, words=WORDS)

    @cached_property
    def model(self) -> Model:
        """The network with a linear head."""
        return self.build()

    @cached_property
    def weights(self) -> Weights:
        """Initial parameters, and statistics that are not those of the start."""
        weights = jax.jit(self.model.init)(jax.random.key(0))
        return weights._replace(stats=jax.tree.map(lambda s: s + 0.3, weights.stats))

    @cached_property
    def trial(self) -> Trial:
        """Federated averaging of this network."""
        shape, classes = self.shape, self.classes
        return Trial(registry.build("fedavg"), model=self.spec, shape=shape, classes=classes)

    def inputs(self, rows: int, seed: int = 0) -> jax.Array:
        """Draws inputs."""
        key, shape = jax.random.key(seed), (rows, *self.shape)
        if self.spec.text:
            return jax.random.randint(key, shape, 0, WORDS + 2, jnp.int32)
        return jax.random.normal(key, shape)

    def step(self, weights: Weights, x: jax.Array, real: Any) -> Any:
        """Returns loss, outputs of the first rows, new statistics and gradient of a local step."""
        mask, y = jnp.arange(len(x)) < real, jnp.arange(len(x)) % self.classes

        def loss(params: Any) -> Any:
            changed = weights._replace(params=params)
            out, stats = self.model.apply(changed, x, train=True, mask=mask, key=jax.random.key(1))
            value = losses.masked_mean(losses.cross_entropy(out.logits, y), mask)
            return value, (jax.tree.map(lambda o: o[:REAL], out), stats)

        return jax.value_and_grad(loss, has_aux=True)(weights.params)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The same, compiled once for every shape."""
        return jax.jit(self.step)


def is_built(net: Network) -> str:
    """It maps inputs to features that every kind of head fits."""
    try:
        for method in HEADS:
            model = net.build(method)
            apply = jax.eval_shape(
                lambda key, model=model: model.apply(model.init(key), net.inputs(3), train=False),
                jax.random.key(0),
            )
        features = apply[0].features.shape
    except UserError as error:
        raise AssertionError(str(error)) from error
    sizes = sum(np.size(p) for p in jax.tree.leaves(net.weights.params["body"]))
    return f"{list(net.shape)} to {features[1]} features, {sizes:,} parameters"


def keeps_float64(net: Network) -> str:
    """Nothing is computed in a shorter float, so that executors can be compared."""
    program = jax.make_jaxpr(net.step)(net.weights, net.inputs(REAL), REAL)
    shorter = programs.roundings(program)
    assert not shorter, f"numbers in float64 are rounded to {shorter[0]}"
    return "no shorter float anywhere"


def reads_no_padding(net: Network) -> str:
    """In training, rows that fill up a batch may hold anything."""
    x = net.inputs(PADDED)
    other = net.inputs(PADDED, seed=1) if net.spec.text else jnp.full_like(x, 100.0)
    steps = [net.compiled(net.weights, jnp.where(_rows(x) < REAL, x, f), REAL) for f in (x, other)]
    gap = same(
        steps[1], steps[0], when="with other values in the rows that fill up a batch", **CLOSE
    )
    return f"at most {gap:.0e} apart, whatever it holds"


def counts_no_padding(net: Network) -> str:
    """In training, a batch that is filled up with more rows is the same batch."""
    x = net.inputs(PADDED)
    program = jax.make_jaxpr(net.step)(net.weights, x, REAL)
    if programs.draws_for_rows(program, PADDED):
        raise Absent("it draws random numbers for every row of a batch")
    alone, padded = (net.compiled(net.weights, rows, REAL) for rows in (x[:REAL], x))
    when = f"with {REAL} rows filled up to {PADDED}"
    return f"at most {same(padded, alone, when=when, **CLOSE):.0e} apart"


def tests_row_by_row(net: Network) -> str:
    """In tests, a row's outputs depend on that row alone, and statistics stay."""
    x, apply = net.inputs(PADDED), jax.jit(net.model.apply, static_argnames="train")
    alone, _ = apply(net.weights, x[:REAL], train=False)
    for mask in (None, jnp.arange(PADDED) < REAL):
        out, stats = apply(net.weights, x, train=False, mask=mask)
        real = jax.tree.map(lambda o: o[:REAL], out)
        same(real, alone, when="in tests with other rows in the batch", **CLOSE)
        identical(stats, net.weights.stats, when="in tests, the statistics")
    return "the same in any batch, without a key"


def updates_statistics(net: Network) -> str:
    """In training, every running statistic moves."""
    if not jax.tree.leaves(net.weights.stats):
        raise Absent("it has no running statistics")
    (_, (_, stats)), _ = net.compiled(net.weights, net.inputs(PADDED), REAL)
    pairs = zip(jax.tree.leaves(stats), jax.tree.leaves(net.weights.stats), strict=True)
    still = sum(bool(np.all(new == old)) for new, old in pairs)
    assert not still, f"in training, {still} running statistics do not move"
    return f"{len(jax.tree.leaves(stats))} statistics move"


def stays_finite(net: Network) -> str:
    """No NaN on constant inputs, in a batch of one row, or of none."""
    for value in (0, 3):
        x = jnp.full_like(net.inputs(PADDED), value)
        for real in (0, 1, PADDED):
            bad = not_finite(net.compiled(net.weights, x, real))
            when = f"with every input {value} and {real} rows in a batch of {PADDED}"
            assert not bad, f"{when}, {bad[0]} is NaN or infinite"
    return "constant inputs, no row and one row"


def repeats(net: Network) -> str:
    """Bit for bit with the same key."""
    arguments = net.weights, net.inputs(PADDED), REAL
    identical(net.compiled(*arguments), net.compiled(*arguments), when="run again")
    one, other = (jax.make_jaxpr(lambda *a: net.step(*a))(*arguments) for _ in range(2))
    difference = programs.first_difference(one, other)
    assert not difference, f"traced again, it is another program: {difference}"
    return "bit for bit, the same program"


def _rows(x: jax.Array) -> jax.Array:
    return jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))


def _in_rounds(fn: Property) -> Property:
    return lambda net: fn(net.trial)


BY_ITSELF: dict[str, Property] = {
    "is built": is_built,
    "keeps float64": keeps_float64,
    "reads no padding": reads_no_padding,
    "counts no padding": counts_no_padding,
    "tests row by row": tests_row_by_row,
    "updates statistics": updates_statistics,
    "stays finite": stays_finite,
    "repeats": repeats,
}
IN_ROUNDS: dict[str, Property] = {
    f"in rounds {name}": _in_rounds(rounds.PROPERTIES[name])
    for name in (
        *("stays finite", "trains", "resumes", "compiles once", "needs data"),
        *("agrees under vmap", "agrees under chunked"),
    )
}
PROPERTIES = {**BY_ITSELF, **IN_ROUNDS}
