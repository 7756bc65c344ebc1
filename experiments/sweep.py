"""Train a grid of runs in processes of their own and write one table.

python experiments/sweep.py --method fedavg fedetf --local.lr 0.02 0.05 --seeds 0 1 2 --workers 2
"""

import sys

from fedjax_nc.cli.sweep import sweep

if __name__ == "__main__":
    sys.exit(sweep())
