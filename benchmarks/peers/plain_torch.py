"""The yardstick: FedAvg as a hand-written eager PyTorch loop, clients one after another.

`tuned` adds what a tuning guide says: channels last, the fused optimiser, pooling before ReLU.
"""

# pyright: reportMissingImports=false

import torch
import torch.nn.functional as F
import torch_models
import workload
from turns import Turns


def main() -> None:
    """Take turns."""
    turns = Turns()
    w = turns.workload
    threads, tuned = turns.options["threads"], turns.options["tuned"]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    images, labels = workload.float_arrays(w, channels_first=not tuned)
    x, y = torch.from_numpy(images), torch.from_numpy(labels).long()
    model = torch_models.make(w.model, w.norm, tuned)
    if tuned:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mine = [t for t in model.state_dict().values() if t.is_floating_point()]  # the model's own
    server = [t.clone() for t in mine]

    def train(client: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), w.lr, w.momentum, fused=tuned)
        for _ in range(w.epochs):
            for numbers in torch.randperm(w.images).split(w.batch_size):
                batch = x[client][numbers]
                if tuned:
                    batch = batch.permute(0, 3, 1, 2)  # stored that way: no copy
                optimizer.zero_grad()
                F.cross_entropy(model(batch), y[client][numbers]).backward()
                optimizer.step()

    turns.ready(
        parameters=sum(p.numel() for p in model.parameters()),
        variant=f"{threads} thread{'s' * (threads > 1)}",
        version=torch.__version__,
    )
    for number in turns:
        total = [torch.zeros_like(t) for t in server]
        for client in workload.cohort(w, number):
            torch._foreach_copy_(mine, server)
            train(int(client))
            torch._foreach_add_(total, mine)
        torch._foreach_div_(total, w.participants)
        server = total


if __name__ == "__main__":
    main()
