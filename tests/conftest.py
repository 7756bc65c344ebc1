"""Two CPU devices, quick compilation, and fixtures that many tests share."""

import atexit
import contextlib
import functools
import gc
import os
import signal
import tempfile
import time
from pathlib import Path

import jax
from jax._src import api, lru_cache
from jax._src.interpreters import mlir

given = os.environ.get("XLA_FLAGS")
# the emitters of fusions take two thirds of a round's compilation, cutting it for threads a quarter
QUICK = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # later ones have no other emitters, and stop at the flag
    QUICK += " --xla_cpu_use_fusion_emitters=false"
# XLA ends a process whose devices wait 40 seconds for one another, as on a machine that was paused
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=500"
os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK} {PATIENT}"

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
# Compilation, not arithmetic, is what tests wait for. (jax_numpy_rank_promotion stays at its
# default: the package adds vectors to matrices on purpose, and so do optax and flax.)
jax.config.update("jax_disable_most_optimizations", True)
# Programs keep their context alive, half a megabyte each, and take longer to make it than to be
# lowered: they share one. Nobody reads where their operations come from.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)
jax.config.update("jax_traceback_in_locations_limit", 0)
atexit.unregister(api.clean_up)  # seconds, to forget thousands of programs one by one

jax.devices()  # reads the flags, which commands that tests start should not inherit
os.environ.pop("XLA_FLAGS") if given is None else os.environ.update(XLA_FLAGS=given)

# what nohup or a shell's background ignores, commands that tests start would ignore too
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

gc.freeze()
gc.set_threshold(100_000, 20, 100)  # as `devices.start`

import pytest  # noqa: E402

# The package is imported inside the fixtures only: the jaxtyping plugin must come before it.


def pytest_configure(config):
    """Keep compiled functions for the other worker, the next session and other checkouts."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    programs = home / "fedjax_nc" / "tests"
    programs.mkdir(parents=True, exist_ok=True)
    if not hasattr(config, "workerinput"):
        forget(programs, days=30)
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    lru_cache.LRUCache.put = put_whole


def forget(programs, days):
    """Removes programs that were made so long ago."""
    for file in programs.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another session was quicker
            if time.time() - file.stat().st_mtime > days * 86400:
                file.unlink()


def put_whole(cache, key, value):
    """As jax's own, but no other worker reads half of a file."""
    with tempfile.NamedTemporaryFile(dir=cache.path, delete=False) as file:
        file.write(value)
    os.replace(file.name, cache.path / f"{key}-cache")


@pytest.fixture
def x64():
    """Double precision inside this test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def tiny():
    """Factory of tiny tasks: tiny("fedavg", norm=..., local_cfg={...}, federation={...})."""
    from fedjax_nc.testing import federation

    return federation.tiny


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
        capfd.readouterr()  # of what came before
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
