"""Explain runs: curvature, landscape, neural collapse, spectra, alignment, relations, bias, cost.

python experiments/analyse.py runs/mnist5k-classes2/fedetf/*/seed0
python experiments/analyse.py RUN_DIR RUN_DIR --only=hessian,landscape     # side by side
"""

import sys

from fedjax_nc.cli.analyse import analyse

if __name__ == "__main__":
    sys.exit(analyse())
