"""One of several processes that compute the runs of a test, or the only one.

    python tests/together.py '{"count": 2, "me": 0, "port": 4000, "devices": 1, "out": "...",
        "stop": 2, "runs": [["fedavg", {...}], ...]}'

A run stops after round `stop`, if that is given, as if the first process had got a signal. A third
entry of a run says what is odd about process 1 alone, which then ends it:

    words    other words
    refused  what it says when it reads the data
    labels   another label of the first example
    out      another place of the run directory
    signal   a signal after this round

How such a run ended is a line on stdout: the exception, and whether the first process tells it.
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
from fedjax_nc.data import datasets  # noqa: E402
from fedjax_nc.errors import UserError  # noqa: E402
from fedjax_nc.host import alike, loop, session  # noqa: E402

own = (datasets.read, session.assemble, loop.Seed.record)


def be(odd):
    """Makes this process as a test wants it."""
    datasets.read, session.assemble, loop.Seed.record = own

    def relabelled(*args):
        spec, arrays = own[0](*args)
        y = arrays.train_y.copy()
        y[0] = (y[0] + 1) % spec.classes
        return spec, arrays._replace(train_y=y)

    def refused(*args, **words):
        raise UserError(odd["refused"])

    def signalled(seed, row):
        own[2](seed, row)
        if row["round"] == odd["signal"]:
            os.kill(os.getpid(), signal.SIGTERM)

    if "labels" in odd:
        datasets.read = relabelled
    if "refused" in odd:
        session.assemble = refused
    if "signal" in odd:
        loop.Seed.record = signalled


for method, words, *rest in asked["runs"]:
    odd = rest[0] if rest and asked["me"] == 1 else {}
    be({"signal": asked["stop"]} if "stop" in asked and processes.is_first() else odd)
    alike._PATIENCE = 1.0 if rest else 60.0
    words = words | odd.get("words", {})
    try:
        fnc.run(method, out=odd.get("out", asked["out"]), progress=False, **words)
        ended = None
    except (KeyboardInterrupt, UserError) as stop:
        assert rest or stop.code == 75, stop
        ended = stop
    if rest:
        told = processes.TOLD in getattr(ended, "__notes__", ())
        print(json.dumps({"said": str(ended), "told": told, "code": getattr(ended, "code", 2)}))
