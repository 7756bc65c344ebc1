"""The contract that the project's own methods, networks and datasets keep, for anybody's.

In a script or notebook, in about a minute:

    from fedjax_nc import testing

    print(testing.check_method("mine", plugin="my_file.py"))
    print(testing.check_model(MyNet(), shape=(28, 28, 1), classes=10))
    print(testing.check_dataset((train_x, train_y, test_x, test_y)))

The first property that does not hold raises an AssertionError of one sentence: whose, which, in
which array and by how much. What is returned prints as a table of properties.

As tests of pytest, one for each property (`test_mine[resumes]` and so on), in any test file:

    from fedjax_nc.testing import method_tests

    test_mine = method_tests("mine", plugin="my_file.py")

All is computed in float64 on a federation of six clients with 7, 0, 1, 12, 5 and 3 examples, most
of which miss most classes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_nc import config, devices, plugins
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Method
from fedjax_nc.testing import after, contract, datasets, models, rounds
from fedjax_nc.testing.contract import Report
from fedjax_nc.testing.federation import CLASSES, Tiny, tiny
from fedjax_nc.testing.trial import Trial

__all__ = [
    "Report",
    "Tiny",
    "check_dataset",
    "check_method",
    "check_model",
    "dataset_tests",
    "method_tests",
    "model_tests",
    "tiny",
]

METHOD = {**rounds.PROPERTIES, **after.PROPERTIES}  # name -> property
MODEL = models.PROPERTIES
DATASET = datasets.PROPERTIES


def check_method(method: Any, *, model: Any = None, plugin: str | Sequence[str] = ()) -> Report:
    """Checks that a method keeps the contract; a regulariser is checked on FedAvg.

    Args:
      method: a specification, a `Method`, the name of a method or regulariser, or a function: a
        factory of either, or a regulariser itself.
      model: a flax module, by default a small network that the method accepts.
      plugin: files or modules that add methods.

    Returns:
      What was seen of every property, and how long it took.
    """
    return contract.check(METHOD, _on_trial(method, model=model, plugin=plugin))


def method_tests(method: Any, *, model: Any = None, plugin: str | Sequence[str] = ()) -> Any:
    """Makes a pytest function of `check_method`'s properties, one test for each."""
    return contract.as_tests(METHOD, _on_trial(method, model=model, plugin=plugin))


def check_model(
    model: Any,
    *,
    shape: tuple[int, ...] | None = None,
    classes: int = CLASSES,
    plugin: str | Sequence[str] = (),
) -> Report:
    """Checks that a network keeps the contract, by itself and in rounds of FedAvg.

    Args:
      model: a name, or a flax.linen module that maps inputs to features.
      shape: of an image [h, w, c], or [length] of a row of word ids; by default the smallest that
        the model takes.
      classes: number of classes.
      plugin: files or modules that add models.

    Returns:
      What was seen of every property, and how long it took.
    """
    return contract.check(MODEL, _network(model, shape=shape, classes=classes, plugin=plugin))


def model_tests(
    model: Any,
    *,
    shape: tuple[int, ...] | None = None,
    classes: int = CLASSES,
    plugin: str | Sequence[str] = (),
) -> Any:
    """Makes a pytest function of `check_model`'s properties, one test for each."""
    return contract.as_tests(MODEL, _network(model, shape=shape, classes=classes, plugin=plugin))


def check_dataset(
    dataset: Any, *, data: Mapping[str, Any] | None = None, plugin: str | Sequence[str] = ()
) -> Report:
    """Checks that a dataset keeps the contract.

    Args:
      dataset: a name, a path to an .npz file, hf:owner/name, or the arrays (train_x, train_y,
        test_x, test_y).
      data: settings such as `dir`, as of `fedjax_nc.run`.
      plugin: files or modules that add datasets.

    Returns:
      What was seen of every property, and how long it took.
    """
    return contract.check(DATASET, _dataset(dataset, data=data, plugin=plugin))


def dataset_tests(
    dataset: Any, *, data: Mapping[str, Any] | None = None, plugin: str | Sequence[str] = ()
) -> Any:
    """Makes a pytest function of `check_dataset`'s properties, one test for each."""
    return contract.as_tests(DATASET, _dataset(dataset, data=data, plugin=plugin))


def _on_trial(given: Any, *, model: Any, plugin: str | Sequence[str]) -> Callable[[], Trial]:
    def make() -> Trial:
        _start(plugin)
        method, on = _resolved(given)
        return Trial(method, on=on, model=model)

    return make


def _network(given: Any, *, plugin: str | Sequence[str], **options: Any) -> Callable[[], Any]:
    def make() -> models.Network:
        _start(plugin)
        return models.Network(given, **options)

    return make


def _dataset(
    given: Any, *, data: Mapping[str, Any] | None, plugin: str | Sequence[str]
) -> Callable[[], Any]:
    def make() -> datasets.Dataset:
        _start(plugin)
        return datasets.Dataset(given, data=config.Data(**(data or {})))

    return make


def _start(plugin: str | Sequence[str]) -> None:
    plugins.read([plugin] if isinstance(plugin, str) else plugin)
    _start_devices()
    plugins.load()


@functools.cache
def _start_devices() -> None:
    devices.start()


def _resolved(given: Any) -> tuple[Method, Callable[[str], Method] | None]:
    """Returns a method and, of a regulariser, how it is put on another one."""
    if isinstance(given, str):
        name = given.split("(")[0].strip()
        if name in catalogue.bases() or name not in catalogue.regularisers():
            return registry.build(given), None
        return registry.build(f"fedavg | {given}"), lambda base: registry.build(f"{base} | {given}")
    made: Any = given
    if not isinstance(made, Method) and not _takes_a_method(made):
        made = given()
    if isinstance(made, Method):
        return made, None
    return made(registry.build("fedavg")), lambda base: made(registry.build(base))


def _takes_a_method(function: Callable[..., Any]) -> bool:
    """Whether a function is a regulariser rather than a factory, whose arguments have defaults."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)
