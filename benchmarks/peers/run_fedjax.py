"""Google's FedJAX: federated averaging on its jit backend, with haiku networks."""

# pyright: reportMissingImports=false

from importlib import metadata

import jax
import jax.numpy as jnp
import workload
from turns import Turns

jax.tree_map = jax.tree.map  # type: ignore[attr-defined]  # fedjax 0.0.17 calls what jax 0.6 removed
import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402


def fedavg_cnn(batch):
    """Two valid 5x5 convolutions, 512 features."""
    x = batch["x"]
    for channels in (32, 64):
        x = hk.Conv2D(channels, 5, padding="VALID")(x)
        x = jax.nn.relu(hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    return hk.Linear(10)(jax.nn.relu(hk.Linear(512)(hk.Flatten()(x))))


def resnet20_b(batch):
    """ResNet-20 with GroupNorm and projection shortcuts."""

    def conv(x, channels, size=3, stride=1):
        return hk.GroupNorm(2)(hk.Conv2D(channels, size, stride, with_bias=False)(x))

    x = jax.nn.relu(conv(batch["x"], 16))
    for channels in (16, 32, 64):
        for i in range(3):
            stride = 2 if channels > 16 and i == 0 else 1
            y = conv(jax.nn.relu(conv(x, channels, stride=stride)), channels)
            x = x if x.shape == y.shape else conv(x, channels, 1, stride)
            x = jax.nn.relu(x + y)
    return hk.Linear(10)(x.mean((1, 2)))


def main() -> None:
    """Take turns."""
    turns = Turns()
    w = turns.workload
    x, y = workload.float_arrays(w, channels_first=False)
    network = hk.transform({"fedavg_cnn": fedavg_cnn, "resnet20_b": resnet20_b}[w.model])
    example = {"x": jnp.zeros((1, *workload.SHAPE)), "y": jnp.zeros((1,), jnp.int32)}
    model = fedjax.create_model_from_haiku(
        network, example, lambda b, out: fedjax.metrics.unreduced_cross_entropy_loss(b["y"], out)
    )
    fedjax.set_for_each_client_backend("jit")
    data = {f"{i:05d}": {"x": x[i], "y": y[i]} for i in range(w.clients)}
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(data), w.participants, seed=0
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(w.lr, w.momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=w.batch_size, num_epochs=w.epochs),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    turns.ready(
        parameters=sum(p.size for p in jax.tree.leaves(state.params)),
        variant="jit",
        version=f"{metadata.version('fedjax')}, jax {jax.__version__}",
    )
    for number in turns:
        sampler.set_round_num(number)
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    main()
