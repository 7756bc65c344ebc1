"""Train one federated method: `python experiments/run.py --method=fedetf`."""

import sys

from fedjax_nc.cli.run import train

if __name__ == "__main__":
    sys.exit(train())
