"""One of several processes that compute the runs of a test, or the only one.

    python tests/together.py '{"count": 2, "me": 0, "port": 4000, "devices": 1, "out": "...",
        "stop": 2, "runs": [["fedavg", {...}], ...]}'

A run stops after round `stop`, if that is given, as if the first process had got a signal.
"""

import json
import os
import signal
import sys

import jax

# as conftest.py: the emitters of fusions take two thirds of a round's compilation
QUICK = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)

asked = json.loads(sys.argv[1])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", asked["devices"])
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
if asked["count"] > 1:
    jax.distributed.initialize(
        f"localhost:{asked['port']}",
        num_processes=asked["count"],
        process_id=asked["me"],
        heartbeat_timeout_seconds=20,
    )
jax.devices()  # takes them up, so that no run sets up others

import fedjax_nc as fnc  # noqa: E402
from fedjax_nc import processes  # noqa: E402
from fedjax_nc.host import loop  # noqa: E402

if "stop" in asked:
    record = loop.Seed.record

    def stopping(seed, row):
        record(seed, row)
        if row["round"] == asked["stop"] and processes.is_first():
            os.kill(os.getpid(), signal.SIGTERM)

    loop.Seed.record = stopping

for method, words in asked["runs"]:
    try:
        fnc.run(method, out=asked["out"], progress=False, **words)
    except KeyboardInterrupt as stop:
        assert stop.code == 75, stop
