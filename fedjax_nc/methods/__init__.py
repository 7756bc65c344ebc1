"""Federated methods and how they compose: every factory, imported when it is asked for.

`fedjax_nc.methods.fedavg()` is a method, `fedjax_nc.methods.fd(beta=0.5)` a function that adds the
regulariser to one. Where both have one name, the regulariser's function ends in `_reg`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedjax_nc.methods.averaging import centralised as centralised
    from fedjax_nc.methods.averaging import fedavg as fedavg
    from fedjax_nc.methods.averaging import fedexp as fedexp
    from fedjax_nc.methods.averaging import fednova as fednova
    from fedjax_nc.methods.averaging import fedprox as fedprox
    from fedjax_nc.methods.averaging import prox as prox
    from fedjax_nc.methods.calibration import ccvr as ccvr
    from fedjax_nc.methods.calibration import fedlc as fedlc
    from fedjax_nc.methods.calibration import fedrod as fedrod
    from fedjax_nc.methods.distillation import fd as fd
    from fedjax_nc.methods.distillation import fedntd as fedntd
    from fedjax_nc.methods.distillation import kd as kd
    from fedjax_nc.methods.distillation import ld as ld
    from fedjax_nc.methods.distillation import moon as moon
    from fedjax_nc.methods.distillation import moon_reg as moon_reg
    from fedjax_nc.methods.distillation import ntd as ntd
    from fedjax_nc.methods.fixed_head import dot_regression as dot_regression
    from fedjax_nc.methods.fixed_head import fedbabu as fedbabu
    from fedjax_nc.methods.fixed_head import feddr_plus as feddr_plus
    from fedjax_nc.methods.fixed_head import fedetf as fedetf
    from fedjax_nc.methods.fixed_head import fedgela as fedgela
    from fedjax_nc.methods.fixed_head import spherefed as spherefed
    from fedjax_nc.methods.forward import align as align
    from fedjax_nc.methods.forward import fedalign as fedalign
    from fedjax_nc.methods.forward import gradaug as gradaug
    from fedjax_nc.methods.forward import mixup as mixup
    from fedjax_nc.methods.forward import mixup_reg as mixup_reg
    from fedjax_nc.methods.forward import stochdepth as stochdepth
    from fedjax_nc.methods.forward import stochdepth_reg as stochdepth_reg
    from fedjax_nc.methods.gradient import feddyn as feddyn
    from fedjax_nc.methods.gradient import fedsol as fedsol
    from fedjax_nc.methods.gradient import per_fedavg as per_fedavg
    from fedjax_nc.methods.gradient import pfedme as pfedme
    from fedjax_nc.methods.gradient import scaffold as scaffold
    from fedjax_nc.methods.mixture import apfl as apfl
    from fedjax_nc.methods.personal import ditto as ditto
    from fedjax_nc.methods.personal import fedala as fedala
    from fedjax_nc.methods.personal import fedbn as fedbn
    from fedjax_nc.methods.personal import fedper as fedper
    from fedjax_nc.methods.personal import fedrep as fedrep
    from fedjax_nc.methods.personal import ft as ft
    from fedjax_nc.methods.personal import lg_fedavg as lg_fedavg
    from fedjax_nc.methods.personal import local as local
    from fedjax_nc.methods.prototypes import fedfm as fedfm
    from fedjax_nc.methods.prototypes import fednh as fednh
    from fedjax_nc.methods.prototypes import fedproto as fedproto
    from fedjax_nc.methods.relations import dw as dw
    from fedjax_nc.methods.relations import feddistill as feddistill
    from fedjax_nc.methods.relations import feddw as feddw
    from fedjax_nc.methods.representation import decorr as decorr
    from fedjax_nc.methods.representation import fedblade as fedblade
    from fedjax_nc.methods.representation import feddecorr as feddecorr
    from fedjax_nc.methods.representation import fedrcl as fedrcl
    from fedjax_nc.methods.representation import feduv as feduv
    from fedjax_nc.methods.server import fedadagrad as fedadagrad
    from fedjax_nc.methods.server import fedadam as fedadam
    from fedjax_nc.methods.server import fedavgm as fedavgm
    from fedjax_nc.methods.server import fedyogi as fedyogi


def __getattr__(name: str) -> Any:
    """Returns the factory of this name, of the package or of a plugin."""
    entry = None if name.startswith("_") else _entries().get(name)
    if entry is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return importlib.import_module(f"{__name__}.registry").factory_of(entry)


def __dir__() -> list[str]:
    """Lists the factories beside what the module holds already."""
    return sorted({*globals(), *_entries()})


def _entries() -> dict[str, Any]:
    catalogue = importlib.import_module(f"{__name__}.catalogue")  # `from` would ask __getattr__
    found = (*catalogue.bases().values(), *catalogue.regularisers().values())
    return {entry.function: entry for entry in found}
