"""Flower's simulation engine on Ray: as many workers as there are cores, one thread each."""

# pyright: reportMissingImports=false

import os
import tempfile

import flower_client
import numpy as np
import torch_models
import workload
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns


class TakingTurns(FedAvg):
    """FedAvg that waits for its turn before a round."""

    turns: Turns

    def configure_train(self, *args, **kwargs):
        """A round begins."""
        self.turns.wait()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, *args, **kwargs):
        """A round ends."""
        result = super().aggregate_train(*args, **kwargs)
        self.turns.done()
        return result


def main() -> None:
    """Take turns."""
    import flwr
    import ray

    turns = Turns()
    w, workers = turns.workload, turns.options["threads"]
    server = ServerApp()

    @server.main()
    def run(grid, context):
        model = torch_models.make(w.model, w.norm)
        strategy = TakingTurns(
            fraction_train=w.participants / w.clients,
            min_train_nodes=w.participants,
            fraction_evaluate=0.0,
            min_available_nodes=w.clients,
        )
        strategy.turns = turns
        turns.ready(
            parameters=sum(p.numel() for p in model.parameters()),
            variant=f"{workers} workers",
            version=f"{flwr.__version__}, ray {ray.__version__}",
        )
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=turns.rounds)

    with tempfile.TemporaryDirectory() as directory:
        images, labels = workload.float_arrays(w, channels_first=True)
        np.save(f"{directory}/x.npy", images)
        np.save(f"{directory}/y.npy", labels)
        del images, labels
        os.environ[flower_client.DATA] = directory
        os.environ[flower_client.WORK] = workload.encode(w)
        backend = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": workers, "include_dashboard": False},
        }
        run_simulation(server, flower_client.app, w.clients, backend_config=backend)


if __name__ == "__main__":
    main()
