"""Own arrays and an own flax network with BatchNorm (half a minute).

The network maps images to features; the layer of class scores on top is the method's. Running
statistics travel and are averaged with the parameters.
"""

import flax.linen as nn
from sklearn.datasets import load_digits

import fedjax_nc as fnc


class Net(nn.Module):
    """Two convolutions, each with BatchNorm."""

    @nn.compact
    def __call__(self, x, train):
        """Returns 32 features of every image."""
        for channels in (16, 32):
            x = nn.Conv(channels, (3, 3), strides=2)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.relu(x)
        return x.mean((1, 2))


x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1)  # images [n, height, width, channels]; labels [n] from 0 to 9
arrays = (x[:1500], y[:1500], x[1500:], y[1500:])  # train_x, train_y, test_x, test_y

result = fnc.run(
    "fedavg",
    dataset=arrays,
    model=Net(),
    rounds=10,
    data={"partition": "dirichlet", "alpha": 1.0},
    local={"lr": 0.1},
)
print(result.table())
for layer, statistics in result.weights.stats.items():
    print(layer, "running means", statistics["mean"].shape)  # [seeds, channels]
