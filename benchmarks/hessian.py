"""Top eigenvalue and trace of a Hessian as one program: seconds per product beside a gradient's.

python benchmarks/hessian.py                                      # 100 products, 2,000 images
python benchmarks/hessian.py --images 200 --products 10
python benchmarks/hessian.py --against torch --peer_python other/bin/python

A fifth of the products are Lanczos' for the eigenvalue, one vector after another; the others are
Hutchinson's for the trace, several at once. PyTorch's are by double backward, as PyHessian has
them. Gradients and single products take turns, PyTorch's in a process of its own.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args, get_type_hints

import chart
import jax
import jax.numpy as jnp
import machine
import numpy as np
import race
import workload
from jax import lax
from progress import Progressing

from fedjax_nc import config, devices, losses, models, tree
from fedjax_nc.analysis import curvature, hessian, lanczos
from fedjax_nc.data import datasets, federated
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.models.catalogue import MODELS, fitting
from fedjax_nc.train.executors import Executor, make_executor
from fedjax_nc.types import HeadSpec, Model, Pool

RESULTS = machine.UNTRACKED / "hessian.json"
SEED = 0
CONVS = get_args(get_type_hints(config.Execution)["conv"])


class Case(NamedTuple):
    """What is timed."""

    model: Model
    batches: Callable[..., Any]
    executor: Executor
    hessian: hessian.Hessian
    images: str  # where they come from


def make_case(flags: argparse.Namespace) -> Case:
    """A model as it starts, and the first images of CIFAR-10, or random ones."""
    spec = DATASETS["cifar10"]
    try:
        x, y, *_ = datasets.load("cifar10", None, spec=spec)
        x, y, images = x[: flags.images], y[: flags.images], "cifar10"
    except UserError:
        x, y = workload.arrays(_workload(flags))
        images = "random, since cifar10 is not prepared"
    model = models.build(
        flags.model, spec.shape, classes=spec.classes, head=HeadSpec(), conv=flags.conv
    )
    batches, executor = federated.make_batch(spec), make_executor("auto")
    weights = jax.jit(model.init)(jax.random.key(SEED))
    at = hessian.make_hessian(
        model, batches, executor=executor, batch_size=flags.batch_size, groups=tuple(weights.params)
    )
    pool = Pool(jnp.asarray(x), jnp.asarray(y, jnp.int32))
    return Case(
        model,
        batches,
        executor=executor,
        hessian=at(weights, pool, np.arange(flags.images)),
        images=images,
    )


def make_gradient(case: Case) -> Callable[..., Any]:
    """The mean loss's gradient over the same batches, dealt out alike."""

    def one(broadcast, row):
        weights, pool = broadcast
        batch = case.batches(pool, row.indices, row.mask, None)

        def loss(params):
            out, _ = case.model.apply(
                weights._replace(params=params), batch.x, train=False, mask=batch.mask
            )
            return jnp.sum(jnp.where(batch.mask, losses.cross_entropy(out.logits, batch.y), 0.0))

        return {}, jax.grad(loss)(weights.params)

    def gradient(h: hessian.Hessian):
        steps = jnp.ones(len(h.batches.mask), jnp.int32)
        _, total = case.executor.run(one, (h.weights, h.pool), h.batches, steps)
        return tree.scale(1 / jnp.sum(h.batches.mask), total)

    return gradient


def eigenvalue_and_trace(
    h: hessian.Hessian, products: int, probes: int, chunk: int, tell: Callable[[int], None]
) -> tuple[Any, jax.Array]:
    """Lanczos' matrix and all probes' sums; `tell` is called with how many products are done."""
    key = jax.random.key(SEED)
    ritz = lanczos.tridiagonal(h, key, 1, products, lambda done, of: tell(1))
    firsts = jnp.arange(0, probes, chunk)

    def part(first):
        found, _ = curvature.probe_chunk(h, key, jnp.array([first, probes]), chunk)
        jax.debug.callback(lambda _: tell(chunk), found[0, 0])
        return found

    return ritz._replace(Q_tall=None), lax.map(part, firsts)


def timed(program: Callable[..., Any], *args: Any) -> tuple[float, float, Any]:
    """Seconds, CPU seconds of this process, and the result."""
    start, used = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(program(*args))
    return time.perf_counter() - start, time.process_time() - used, result


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    case = make_case(flags)
    alone = max(flags.products // 5, 1)
    probes = flags.products - alone
    chunk = min(flags.chunk, probes)
    h, peers = case.hessian, _peers(flags)
    signs = curvature.rademacher(h.point, jax.random.key(SEED), indices=jnp.arange(1))
    vector = case.executor.place(signs)
    total = 3 + (flags.repeats + 1) * 2 * (1 + len(peers)) + alone + chunk * -(-probes // chunk)
    with Progressing("hessian", total) as progress:
        tell = lambda done: progress.step("eigenvalue and trace", done)  # noqa: E731
        whole = partial(eigenvalue_and_trace, products=alone, probes=probes, chunk=chunk, tell=tell)
        programs, compiling = {}, {}
        for name, fn, args in (
            ("gradient", make_gradient(case), (h,)),
            ("product", hessian.products, (h, vector)),
            ("whole", whole, (h,)),
        ):
            start = time.process_time()
            programs[name] = jax.jit(fn).lower(*args).compile()
            compiling[name] = time.process_time() - start
            progress.step(f"compiled the {name}")
        run = {
            "gradient": lambda: timed(programs["gradient"], h),
            "product": lambda: timed(programs["product"], h, vector),
        }
        times = _take_turns(run, peers, repeats=flags.repeats, progress=progress)
        seconds, cpu, (ritz, found) = timed(programs["whole"], h)
    tensors = np.asarray(found).reshape(-1, found.shape[-1])[:probes]
    top = lanczos.read(ritz)
    largest = int(np.argmax(np.abs(np.where(top.errors[0] < np.inf, top.values[0], 0))))
    trace = curvature.trace(curvature.Samples(tensors, {}))
    gradient, gradient_cpu = times["ours"]["gradient"], times["ours"]["gradient_cpu"]
    each = flags.products
    rows = [
        {
            "name": "ours",
            "variant": f"{case.executor.name} x{case.executor.devices}",
            "version": jax.__version__,
            "seconds_in_program": seconds / each,
            "ratio_in_program": seconds / each / gradient,
            "cpu_ratio_in_program": cpu / each / gradient_cpu,
        }
        | times["ours"]
    ]
    rows += [{"name": "torch"} | one.facts | times[one.facts["variant"]] for one in peers]
    for row in rows:
        row["ratio"] = row["product"] / row["gradient"]
        row["over_ours"] = row["product"] / rows[0]["product"]
        row["over_ours_in_program"] = row["product"] / rows[0]["seconds_in_program"]
    memory = {k: v.memory_analysis().temp_size_in_bytes / 1e6 for k, v in programs.items()}
    return {
        "model": flags.model,
        "images": flags.images,
        "of": case.images,
        "conv": flags.conv,
        "batch_size": flags.batch_size,
        "products": flags.products,
        "chunk": chunk,
        "parameters": h.size,
        "seconds": seconds,
        "compile_cpu": compiling,
        "memory_mb": memory,
        "top": float(top.values[0, largest]),
        "top_error": float(top.errors[0, largest]),
        "trace": trace.mean,
        "trace_error": trace.error,
        "rows": rows,
    }


def _take_turns(run, peers, repeats: int, progress: Progressing) -> dict[str, dict[str, float]]:
    """Medians of everyone's gradients and products, of turns after the first."""
    taken: dict[str, dict[str, list[float]]] = {"ours": {}}
    try:
        for one in peers:
            one.start()
        for turn in range(repeats + 1):
            for name in ("gradient", "product"):
                seconds, cpu, _ = run[name]()
                found = [("ours", {name: seconds, f"{name}_cpu": cpu})]
                progress.step(f"{name}: {seconds:.2f} s")
                for one in peers:
                    seconds = one.round()["seconds"]
                    found.append((one.facts["variant"], {name: seconds}))
                    progress.step(f"PyTorch's {name}: {seconds:.2f} s")
                for who, values in found if turn else ():  # the first warms up
                    for what, value in values.items():
                        taken.setdefault(who, {}).setdefault(what, []).append(value)
    finally:
        for one in peers:
            if hasattr(one, "process"):
                one.stop()
    return {who: {k: statistics.median(v) for k, v in t.items()} for who, t in taken.items()}


def _workload(flags: argparse.Namespace) -> workload.Workload:
    return workload.Workload(
        model=flags.model,
        clients=1,
        participants=1,
        images=flags.images,
        batch_size=flags.batch_size,
    )


def _peers(flags: argparse.Namespace) -> list[race.Contestant]:
    """PyTorch as one writes it and with channels last, on all cores."""
    if not flags.against:
        return []
    if flags.model not in race.TORCH_MODELS:
        raise UserError(
            f"PyTorch has no {flags.model} here: choose "
            f"{', '.join(race.TORCH_MODELS)}, or leave out --against"
        )
    if race.missing_modules(flags.peer_python, ("torch", "numpy")):
        raise UserError(
            f"{flags.peer_python} has no torch: pip install torch numpy there, "
            "or name another Python with --peer_python"
        )
    w, script = _workload(flags), str(race.HERE / "peers" / "torch_hessian.py")
    options = {"threads": len(os.sched_getaffinity(0)), "rounds": 2 * (flags.repeats + 1)}
    return [
        race.Contestant(
            "torch",
            [flags.peer_python, script, workload.encode(w), json.dumps(options | {"tuned": tuned})],
            workload=w,
        )
        for tuned in (False, True)
    ]


def main(argv: list[str]) -> int:
    """Parse, run, write, print."""
    parser = argparse.ArgumentParser(
        description="Time Hessian-vector products beside gradients, on CIFAR-10 or random images."
    )
    parser.add_argument("--model", default="resnet20", help="a model of the catalogue")
    parser.add_argument("--images", type=int, default=2000, help="that the loss is a mean over")
    parser.add_argument("--products", type=int, default=100, help="in the one program; at least 2")
    parser.add_argument("--batch_size", type=int, default=50, help="images linearised at once")
    parser.add_argument("--chunk", type=int, default=10, help="probes at once")
    parser.add_argument("--conv", default="auto", help="lowering, as --execution.conv")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count")
    parser.add_argument("--against", default="", help="a peer that takes turns: torch")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python that has it")
    parser.add_argument("--out", default=str(RESULTS), help=f"results file (default: {RESULTS})")
    flags = parser.parse_args(argv)
    try:
        named = [
            ("model", flags.model, MODELS),
            ("lowering", flags.conv, CONVS),
            ("peer", flags.against, ("", "torch")),
        ]
        for kind, given, allowed in named:
            if given not in allowed:
                raise unknown(kind, given, allowed=filter(None, allowed))
        if flags.model not in fitting(workload.SHAPE):
            raise UserError(
                f"--model={flags.model} reads no 32x32 images: choose "
                f"{', '.join(fitting(workload.SHAPE))}"
            )
        if min(flags.images, flags.products - 1, flags.batch_size, flags.chunk, flags.repeats) < 1:
            raise UserError(
                "--images, --batch_size, --chunk and --repeats must be above zero, "
                "--products above one"
            )
        devices.start(0)
        found = measure(flags)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chart.show(machine.write(flags.out, "hessian", argv=argv, found=found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
