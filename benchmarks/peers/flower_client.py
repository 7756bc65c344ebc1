"""Flower's ClientApp, in a module that Ray's workers import once; it maps the data from a file.

Defined in the main script it would be pickled by value with the data, for every call.
"""

# pyright: reportMissingImports=false

import os

import numpy as np
import torch
import torch.nn.functional as F
import torch_models
import workload
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

DATA, WORK = "FEDJAX_NC_BENCH_DATA", "FEDJAX_NC_BENCH_WORK"  # environment variables
app = ClientApp()


@app.train()
def train(message, context):
    """A client's round on one thread; there is one worker per core."""
    torch.set_num_threads(1)
    w = workload.decode(os.environ[WORK])
    images, labels = (np.load(f"{os.environ[DATA]}/{n}.npy", mmap_mode="r") for n in "xy")
    number = int(context.node_config["partition-id"])
    x = torch.from_numpy(np.array(images[number]))
    y = torch.from_numpy(np.array(labels[number])).long()
    model = torch_models.make(w.model, w.norm)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), w.lr, w.momentum)
    for _ in range(w.epochs):
        for numbers in torch.randperm(w.images).split(w.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[numbers]), y[numbers]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": w.images})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
