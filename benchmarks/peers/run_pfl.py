"""Apple's pfl: FederatedAveraging on its simulated backend, one process."""

# pyright: reportMissingImports=false

import numpy as np
import torch
import torch.nn.functional as F
import torch_models
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from turns import Turns


class Net(torch.nn.Module):
    """The network with the two methods pfl asks for."""

    def __init__(self, model: str, norm: str) -> None:
        """Build the layers."""
        super().__init__()
        self.inner = torch_models.make(model, norm)

    def forward(self, x):
        """Logits of a batch."""
        return self.inner(x)

    def loss(self, x, y, eval=False):
        """The local objective."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):
        """Nothing is evaluated here."""
        return {}


class TakeTurns(TrainingProcessCallback):
    """A central iteration is a round."""

    def __init__(self, turns: Turns) -> None:
        """Remember who to ask."""
        self.turns, self.left = turns, turns.rounds

    def on_train_begin(self, *, model):
        """Before the first round."""
        self.turns.wait()
        return Metrics()

    def after_central_iteration(self, *args, **kwargs):
        """Between two rounds."""
        self.turns.done()
        self.left -= 1
        if self.left:
            self.turns.wait()
        return False, Metrics()


def main() -> None:
    """Take turns."""
    import pfl

    turns = Turns()
    w, threads = turns.workload, turns.options["threads"]
    torch.set_num_threads(threads)
    images, labels = workload.float_arrays(w, channels_first=True)
    x, y = torch.from_numpy(images), torch.from_numpy(labels).long()

    def user(number: int) -> Dataset:
        order = torch.randperm(w.images)
        return Dataset(raw_data=[x[number][order], y[number][order]], user_id=str(number))

    net = Net(w.model, w.norm)
    users = FederatedDataset(user, get_user_sampler("random", list(np.arange(w.clients))))
    model = PyTorchModel(
        model=net,
        local_optimizer_create=lambda p, lr=w.lr: torch.optim.SGD(p, lr, w.momentum),
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    turns.ready(
        parameters=sum(p.numel() for p in net.parameters()),
        variant=f"{threads} thread{'s' * (threads > 1)}",
        version=f"{pfl.__version__}, torch {torch.__version__}",
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=turns.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=w.participants,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=w.epochs, local_learning_rate=w.lr, local_batch_size=w.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=w.images),
        callbacks=[TakeTurns(turns)],
    )


if __name__ == "__main__":
    main()
