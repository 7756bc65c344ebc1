"""Methods whose clients keep models, or parts of them, for themselves."""

from typing import Literal

from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import Method
from fedjax_nc.methods.fixed_head import dot_regression
from fedjax_nc.methods.registry import base
from fedjax_nc.types import HeadSpec


@base
def local(*, loss: Literal["ce", "ce_etf", "dr"] = "ce") -> Method:
    """Local training only: every client trains its own model, nothing is shared.

    Paper:    the baseline of Kim et al., FedDr+, arXiv 2406.02355, 2024, table 5.
    Changes:  no aggregation; look at personal accuracy, the global model stays as it started.
    Defaults: cross-entropy.
    Differs:  FedDr+'s code keeps the best epoch by test accuracy, here it is the last.
    Uploads:  nothing.

    Args:
      loss: cross-entropy, the same from an ETF head that is then trained, or dot regression.
    """
    method = dot_regression() if loss == "dr" else fedavg()
    if loss == "ce_etf":
        method = method._replace(head=HeadSpec("etf", bias=False))
    return method._replace(personal=("body", "head"), finetune=())
