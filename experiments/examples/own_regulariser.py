"""A regulariser in a file outside the package: features should keep their direction.

Each example pays for the angle between its features under the local and under the global model:
beta L + (1 - beta) (1 - cos(h, h_global)). FedDr+'s distillation asks for the same features; this
one leaves their length free.

As a script it trains FedAvg without and with the regulariser, then has it checked like the
package's own (a minute). The command takes the same file:

fedjax-nc run --plugin experiments/examples/own_regulariser.py --method="fedavg | angle(beta=0.9)"
"""

import jax
import optax

import fedjax_nc as fnc


def turned(c: fnc.Context) -> jax.Array:
    """Computes 1 - cos of the angle between local and global features, for every example."""
    return optax.cosine_distance(c.out.features, c.ref("global").features, epsilon=1e-8)


@fnc.regulariser
def angle(*, beta: float = 0.9):
    """Keeps the direction of features near that under the global model.

    Args:
      beta: the share of the method's own objective.
    """
    term = fnc.per_example("angle", turned)
    return lambda method: fnc.mix(method, term, beta=beta)


if __name__ == "__main__":
    fedavg = fnc.methods.fedavg()
    results = [fnc.run(method, dataset="digits") for method in (fedavg, angle()(fedavg))]
    print(fnc.table(*results))
    print(fnc.testing.check_method(angle))
