"""What several processes must have alike before they compute together, and how it is compared."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedjax_nc import config, processes
from fedjax_nc.errors import UserError
from fedjax_nc.io import checksums, environment
from fedjax_nc.types import State

if TYPE_CHECKING:
    from fedjax_nc.host.session import Request

_PACKAGE = Path(__file__).parents[1]
_PATIENCE = 60.0  # seconds in which a file server shows one host what another has written


def asked(request: "Request") -> dict[str, Any]:
    """Returns what is asked for, and by which code, under the names of flags."""
    if processes.count() == 1:
        return {}
    told: dict[str, Any] = {"--seeds": [cfg.seed for cfg in request.configs]}
    for name, value in config.to_dict(request.configs[0]).items():
        if isinstance(value, dict):
            told |= {f"--{name}.{inner}": each for inner, each in value.items()}
        elif name != "seed":
            told[f"--{name}"] = value
    del told["--data.dir"]  # each host may have its own
    for name in ("seeds_parallel", "overwrite", "strict"):
        told[f"--{name}"] = getattr(request, name)
    told["--track"] = list(request.track)
    told["whether --out is given"] = request.out is not None
    told["the content of --dataset and --data.partition_file"] = config.config_hash(
        request.configs[0]
    )
    told["plugins"] = [plugin["sha256"] for plugin in request.plugins]
    versions = environment.start(0)
    told |= {name: versions[name] for name in ("jax", "jaxlib")}
    code = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return told | {"the code of fedjax_nc": _short(code)}


def start_of_all(devices: int) -> dict[str, Any]:
    """Returns the record of this start: the first process's, with the processors of all.

    Args:
      devices: how many the run computes on.
    """
    mine = json.dumps(environment.start(devices))
    every = [json.loads(text) for text in processes.texts_of_all(mine)]
    names = dict.fromkeys(str(one["processor"]) for one in every)
    return every[0] | {"processor": " and ".join(names)}


def wait_for(directory: Path, *, start: Mapping[str, Any]) -> None:
    """Waits until this process sees the directory as the first one has described it."""
    who = ("time", "host", "pid")
    until = time.monotonic() + _PATIENCE
    while True:
        last = (environment.history(directory) or [{}])[-1]
        if all(last.get(name) == start[name] for name in who):
            return
        if time.monotonic() > until:
            raise UserError(
                f"{directory}: what the first process has written there is not seen here: give all "
                "processes an --out on one file system"
            )
        time.sleep(0.1)


def begun(
    seed: int, facts: Mapping[str, str], *, rows: Sequence[dict[str, Any]], state: State
) -> dict[str, Any]:
    """Returns what a seed begins with: facts of the run, the round, records and every array."""
    if processes.count() == 1:
        return {}
    arrays = {
        "key": jax.random.key_data(state.key),
        "weights": state.weights,
        "shared": state.shared,
        "clients": state.clients,
    }
    told = {**facts, "round": int(state.round), "records": _short(json.dumps(list(rows)).encode())}
    told |= {name: kind[:-52] for name, kind in checksums.of(arrays).items()}
    return {f"the {name} of seed {seed}": value for name, value in told.items()}


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
