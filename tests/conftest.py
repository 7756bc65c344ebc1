"""Two CPU devices, quick compilation, and a tiny federation that every corner case lives in."""

import gc
import os
import tempfile

import jax
from jax._src import lru_cache

given = os.environ.get("XLA_FLAGS")
# the emitters of fusions take two thirds of a round's compilation, cutting it for threads a quarter
QUICK = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # later ones have no other emitters, and stop at the flag
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK}"

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
# Compilation, not arithmetic, is what tests wait for. (jax_numpy_rank_promotion stays at its
# default: the package adds vectors to matrices on purpose, and so do optax and flax.)
jax.config.update("jax_disable_most_optimizations", True)

jax.devices()  # reads the flags, which commands that tests start should not inherit
os.environ.pop("XLA_FLAGS") if given is None else os.environ.update(XLA_FLAGS=given)

gc.freeze()
gc.set_threshold(100_000, 20, 100)  # as `devices.start`

from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

# The package is imported inside the fixtures only: the jaxtyping plugin must come before it.

SHAPE, CLASSES = (2, 3, 1), 4
STAGES = ("lipschitz", "gradaug")  # terms that need a network of stages
SIZES = (7, 0, 1, 12, 5, 3)  # ragged, one empty client, one with a single example


def pytest_configure(config):
    """Keep compiled functions for the other worker and the next session."""
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    lru_cache.LRUCache.put = put_whole


def put_whole(cache, key, value):
    """As jax's own, but no other worker reads half of a file."""
    with tempfile.NamedTemporaryFile(dir=cache.path, delete=False) as file:
        file.write(value)
    os.replace(file.name, cache.path / f"{key}-cache")


class Tiny(NamedTuple):
    """A task, its data, and how to start and run it."""

    task: Any
    data: Any
    hyper: Any

    def state(self, seed=0):
        from fedjax_nc.train.round import init_state

        return init_state(self.task, jax.random.key(seed))

    def run(self, rounds=1, executor="scan", state=None, **options):
        """The state and metrics after some rounds."""
        from fedjax_nc.train.executors import make_executor
        from fedjax_nc.train.round import make_round

        executor = make_executor(executor, chunk=2)
        round_fn = make_round(self.task, executor, **options)
        state = executor.place(self.state() if state is None else state)
        metrics = None
        for _ in range(rounds):
            state, metrics = round_fn(state, self.hyper, self.data)
        return state, metrics


@pytest.fixture
def x64():
    """Double precision inside this test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def tiny_split():
    """Images, labels and clients: classes are sorted, so most clients miss most of them."""
    rng = np.random.RandomState(0)
    ends = np.cumsum(SIZES)
    x = rng.randint(0, 256, (ends[-1] + 9, *SHAPE)).astype(np.uint8)
    y = np.concatenate([np.sort(rng.randint(0, CLASSES, ends[-1])), rng.randint(0, CLASSES, 9)])
    return x, y.astype(np.int32), np.split(np.arange(ends[-1]), ends[:-1])


@pytest.fixture
def tiny(tiny_split):
    """Factory of tiny tasks: tiny("fedavg", norm=..., local={...}, federation={...})."""
    from fedjax_nc import config
    from fedjax_nc.data.arrays import Arrays
    from fedjax_nc.data.federated import Split
    from fedjax_nc.data.spec import DatasetSpec
    from fedjax_nc.host.assemble import Given, assemble
    from fedjax_nc.methods import registry
    from fedjax_nc.models.mlp import MLP
    from fedjax_nc.models.resnet import ResNet
    from fedjax_nc.train.schedule import make_hyper
    from fedjax_nc.types import Batch

    x, y, parts = tiny_split
    ends = sum(SIZES)
    spec = DatasetSpec(name="tiny", classes=CLASSES, shape=SHAPE, train=ends, test=len(y) - ends)
    arrays = Arrays(x[:ends], y[:ends], test_x=x[ends:], test_y=y[ends:])
    split = Split(parts, [p[::2] for p in parts], pool="train")

    def make_batch(pool, indices, mask, key):  # in the working precision, unlike images'
        return Batch(pool.x[indices] / 255.0 - 0.5, pool.y[indices], mask)

    def make(method="fedavg", *, widths=(5,), norm="running", local_cfg=None, federation=None):
        method = registry.build(method) if isinstance(method, str) else method
        cfg = config.RunConfig(
            method=method.name,
            dataset=spec.name,
            data=config.Data(normalise="half"),
            local=config.Local(**{"batch_size": 4, "lr": 0.1} | (local_cfg or {})),
            federation=config.Federation(
                **{"clients": len(SIZES), "participants": len(SIZES)} | (federation or {})
            ),
            evaluation=config.Evaluation(finetune=False),
            execution=config.Execution(executor="scan"),
        )
        body = MLP(norm=norm, widths=widths)
        if method.survival or any(t.name in STAGES for p in method.phases for t in p.terms):
            keep = method.survival(3) if method.survival else ()
            body = ResNet((1, 1, 1), norm, "native", survival=keep, channels=(8, 16, 32))
        job = assemble(
            cfg, given=Given(method=method, model=body, dataset=(spec, arrays), split=split)
        )
        task = job.task._replace(trainer=job.task.trainer._replace(make_batch=make_batch))
        return Tiny(task, job.data, make_hyper(task, 0))

    return make


@pytest.fixture(autouse=True, scope="session")
def _keep_devices():
    """Take up the two devices, so that no command sets up others for the tests that follow."""
    jax.devices()


@pytest.fixture(autouse=True, scope="session")
def _patient():
    """Name nothing that is only waited for: whether a line comes would depend on the machine."""
    from fedjax_nc.cli import console

    console.PATIENCE = 1e6


@pytest.fixture
def refused(capfd, tmp_path):
    """Run a command that must be refused; its only line, without `error: `."""
    from fedjax_nc.cli import main

    def run(*argv):
        out = tmp_path / "out"
        before = out.exists()
        assert main.train([*argv, f"--out={out}"]) == 2
        printed = capfd.readouterr()
        lines = printed.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), printed.err
        assert printed.out == ""
        assert out.exists() == before
        return lines[0].removeprefix("error: ")

    return run


@pytest.fixture
def optimised():
    """As a user compiles; the rounding depends on it."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
