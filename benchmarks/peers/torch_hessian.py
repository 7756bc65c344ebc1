"""PyHessian's way in PyTorch: a gradient over all images, then a product by double backward.

Every product goes over the batches again: forward, a gradient that keeps its graph, and the
gradient of its inner product with the vector. Turns with even numbers are gradients.
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
    x, y = torch.from_numpy(images[0]), torch.from_numpy(labels[0]).long()
    x = x.permute(0, 3, 1, 2) if tuned else x
    model = torch_models.make(w.model, w.norm, tuned).eval()
    if tuned:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    params = list(model.parameters())
    vector = [torch.randint_like(p, 2) * 2 - 1 for p in params]
    batches = list(zip(x.split(w.batch_size), y.split(w.batch_size), strict=True))

    def loss(batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    def gradient() -> None:
        total = [torch.zeros_like(p) for p in params]
        for batch in batches:
            torch._foreach_add_(total, torch.autograd.grad(loss(batch), params))

    def product() -> None:
        total = [torch.zeros_like(p) for p in params]
        for batch in batches:
            grads = torch.autograd.grad(loss(batch), params, create_graph=True)
            torch._foreach_add_(total, torch.autograd.grad(grads, params, vector))

    variant = f"{threads} thread{'s' * (threads > 1)}{', channels last' * tuned}"
    turns.ready(variant=variant, version=torch.__version__)
    for number in turns:
        product() if number % 2 else gradient()


if __name__ == "__main__":
    main()
