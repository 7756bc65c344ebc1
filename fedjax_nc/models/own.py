"""Networks from outside the package: any flax module that maps inputs to features.

Inside such a network BatchNorm leaves padding rows out, as the package's own normalisation does,
and its running statistics are kept, sent and averaged with the parameters.
"""

import inspect
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import InvalidRngError
from jaxtyping import Array, Bool

from fedjax_nc.errors import UserError
from fedjax_nc.models.catalogue import OWN, ModelSpec
from fedjax_nc.models.norm import Norm

ARGUMENTS = ("train", "training", "deterministic", "mask")  # what `__call__` may take besides x


def model(
    module: Any, *, name: str = "", summary: str = "", min_size: int = 1, text: bool = False
) -> ModelSpec:
    """Describes a flax module of one's own, to be used in place of a model's name.

    The module maps a batch of images [b, height, width, channels] in float32 to features [b, d].
    The layer that makes logits of them is the method's and comes on top: leave yours out. Its
    `__call__` takes x and, if it wants them, `train` (or `training`, or flax's `deterministic`) and
    `mask` [b], which is False on padding rows and may be None. It may also return (maps of each
    stage, vectors of each level, features), since some methods read those.

    BatchNorm works as it is. Its default momentum 0.99 averages over hundreds of batches; PyTorch's
    is 0.9. Dropout draws from the key named `dropout`. `nn.Conv` works too, but on a CPU
    `fedjax_nc.models.conv.Conv` is ten times as fast and more, since local training is a loop. A
    field `norm` or `conv` that holds a word is set from the configuration.

    Args:
      module: a `flax.linen` module, or its class.
      name: by default the name of the class.
      summary: a few words on what it is.
      min_size: the least side of an image it takes.
      text: whether it takes rows of word ids instead of images.

    Returns:
      The record that `models.build` takes in place of a name.
    """
    if isinstance(module, ModelSpec):
        return module
    kind = module if isinstance(module, type) else type(module)
    if not issubclass(kind, nn.Module):
        raise UserError(
            f"model: given a {kind.__name__}, wanted a name or a flax.linen module that maps "
            "images to features"
        )
    norm = getattr(module, "norm", OWN)
    return ModelSpec(
        name=name or kind.__name__,
        summary=summary,
        module=module,
        norm=norm if isinstance(norm, str) else OWN,
        min_size=min_size,
        text=text,
    )


class Own(nn.Module):
    """A module from outside, which takes and gives what the package's own modules do.

    Its parameters and statistics are the module's, without a level between.
    """

    module: nn.Module
    label: str  # the model's name, for errors

    def setup(self):
        """Shares the module's variables."""
        nn.share_scope(self, self.module)

    def __call__(self, x, *, train, mask):
        """Returns the module's features, also as its only map and level if it gives no others."""
        given = {"train": train, "training": train, "deterministic": not train, "mask": mask}
        given = {name: given[name] for name in _arguments(self.module, self.label)}
        with nn.intercept_methods(partial(_tell, train=train, mask=mask, label=self.label)):
            out = self.module(x, **given)
        if not isinstance(out, tuple):
            out = (out,), (out,), out
        if len(out) != 3 or not _is_features(out[2], len(x)):
            found = _described(out[2] if len(out) == 3 else out)
            raise UserError(
                f"model '{self.label}' gives {found} for a batch of {len(x)}: wanted features "
                "[batch, d] in float32, such as x.reshape(len(x), -1) or x.mean((1, 2))"
            )
        blocks, levels, features = out
        return tuple(blocks), tuple(levels), features


def check(body: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuses a module from outside that cannot be trained, before anything is computed."""
    if not isinstance(body, Own):
        return
    x = jnp.zeros((2, *shape), int if len(shape) == 1 else float)
    key = jax.random.key(0)

    def init():
        return body.init({"params": key, "dropout": key}, x, train=False, mask=None)

    def train(variables):
        rngs, mask = {"dropout": key}, jnp.ones(2, bool)
        return body.apply(variables, x, train=True, mask=mask, rngs=rngs, mutable=["batch_stats"])

    variables = jax.eval_shape(init)
    others = sorted(set(variables) - {"params", "batch_stats"})
    if others:
        raise UserError(
            f"model '{body.label}' keeps variables in '{others[0]}': only 'params' and "
            "'batch_stats' are trained and averaged"
        )
    try:
        jax.eval_shape(train, variables)
    except InvalidRngError as error:
        raise UserError(
            f"model '{body.label}' draws from a key that is not there: use the one named 'dropout'"
        ) from error


def _arguments(module: nn.Module, label: str) -> list[str]:
    """Lists which of the arguments we can give a module's `__call__` takes."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    _, *taken = inspect.signature(module.__call__).parameters.values()
    for parameter in taken:
        unknown = parameter.name not in ARGUMENTS and parameter.kind not in several
        if unknown and parameter.default is inspect.Parameter.empty:
            raise UserError(
                f"model '{label}' takes '{parameter.name}': besides x its __call__ may take "
                f"{', '.join(ARGUMENTS)}, and others that have a default"
            )
    return [parameter.name for parameter in taken if parameter.name in ARGUMENTS]


def _tell(call, args, kwargs, context, *, train: bool, mask, label: str):
    """Calls a layer of a module from outside; normalisation is told which rows are padding."""
    layer = context.module
    if context.method_name != "__call__":
        return call(*args, **kwargs)
    if isinstance(layer, nn.BatchNorm):
        average = _flag(layer, "use_running_average", args=args, kwargs=kwargs)
        if average is None or bool(average) == train:
            raise _astray(label, layer, flag="use_running_average", value=average, train=train)
        if mask is not None and kwargs.get("mask") is None:
            kwargs = {**kwargs, "mask": _rows(mask, args[0], label=label)}
    elif isinstance(layer, Norm) and kwargs.get("mask") is None:
        kwargs = {**kwargs, "mask": mask}
    elif isinstance(layer, nn.Dropout):
        fixed = _flag(layer, "deterministic", args=args, kwargs=kwargs)
        if fixed is None or not (fixed or train):
            raise _astray(label, layer, flag="deterministic", value=fixed, train=train)
    return call(*args, **kwargs)


def _flag(layer: nn.Module, name: str, *, args: tuple, kwargs: dict) -> bool | None:
    """Returns a flag that flax takes when a layer is made or when it is called."""
    called = args[1] if len(args) > 1 else kwargs.get(name)
    return getattr(layer, name) if called is None else called


def _astray(
    label: str, layer: nn.Module, *, flag: str, value: bool | None, train: bool
) -> UserError:
    """Returns the error for a layer that does not know whether the network is trained."""
    kind, when = type(layer).__name__, "training" if train else "tests"
    return UserError(
        f"model '{label}': {kind} has {flag}={value} in {when}: write "
        f"nn.{kind}(..., {flag}=not train) and let __call__(self, x, train) take train"
    )


def _rows(mask: Bool[Array, " b"], x: Array, *, label: str) -> Array:
    """Returns the mask of the rows to take statistics of, with as many axes as x.

    In a batch of nothing but padding these are all rows: no rows have no mean.
    """
    if len(x) != len(mask):
        raise UserError(
            f"model '{label}': BatchNorm is given {len(x)} rows in a batch of {len(mask)}: keep "
            "the batch as the first axis"
        )
    return (mask | ~jnp.any(mask)).reshape(-1, *[1] * (x.ndim - 1))


def _is_features(x: Any, rows: int) -> bool:
    floats = (jnp.float32, jnp.float64)
    return isinstance(x, jax.Array) and x.ndim == 2 and len(x) == rows and x.dtype in floats


def _described(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, jax.Array) else f"a {type(x).__name__}"
