"""How jax is started: one host device per core, and compiled programs kept on disk."""

import contextlib
import functools
import gc
import os
import sys
from pathlib import Path

from fedjax_nc import processes
from fedjax_nc.errors import UserError
from fedjax_nc.processes import Distributed

_MOST = 64  # devices that a CPU is set up as, if it has few cores: each has threads of its own
_PATIENCE = 7 * 24 * 3600  # seconds


def start(
    devices: int = 0,
    *,
    tell: bool = False,
    distributed: Distributed = Distributed(),  # noqa: B008
) -> None:
    """Starts jax with one host device per core, and keeps compiled programs on disk.

    Args:
      devices: how many of this process; 0 is one per core on a CPU, and all there are elsewhere.
      tell: say once if jax has started before with fewer, which cannot be changed any more.
      distributed: the processes that compute together.
    """
    import jax

    # tracing makes many objects and little garbage: looking for it took a fifth of a warm start
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    cores = os.cpu_count() or 1
    most = max(_MOST, 4 * cores)
    # LAPACK's threads: the small solves of a log-determinant would wait for a busy core (2.4 ms
    # instead of 0.05 ms for 64 x 64)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # a device waits for the one with the longest clients; XLA would end the process after 40 s
    options = [
        f"--xla_cpu_collective_call_{name}_timeout_seconds={_PATIENCE}"
        for name in ("warn_stuck", "terminate")
    ]
    if devices in (0, cores) and cores > 1:
        # a core has its own clients: splitting their operations over cores only costs (8 % of the
        # fixed workload's round; nothing on small networks)
        os.environ.setdefault("NPROC", "1")  # threads of XLA's pool
        options.append("--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(options))
    with contextlib.suppress(RuntimeError):  # a program that has used jax keeps its devices
        jax.config.update("jax_num_cpu_devices", min(devices or cores, most))
    # JAX_COMPILATION_CACHE_DIR, or the program we are part of, may have chosen one already
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "fedjax_nc" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # small ones add up
    processes.join(distributed)
    if devices > len(jax.local_devices()):
        there = f"this machine has {len(jax.local_devices())}"
        if jax.default_backend() == "cpu" and devices > most:
            there = f"{cores} cores are set up as at most {most}, more only wait for one another"
        raise UserError(f"--execution.devices={devices}: {there}")
    if tell and jax.default_backend() == "cpu" and len(jax.local_devices()) < (devices or cores):
        _tell(len(jax.local_devices()), cores)


@functools.cache
def _tell(devices: int, cores: int) -> None:
    print(
        f"jax was started before with {devices} CPU device(s), and this machine has {cores} cores: "
        "to use all of them call fedjax_nc.start() before anything else uses jax",
        file=sys.stderr,
    )
