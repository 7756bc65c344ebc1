"""Draw the accuracy of finished or running runs over each other and print their table.

python experiments/curves.py runs/cifar10-dirichlet0.1/*/*/seed* --to docs/results/five_systems.png
"""

import sys

from fedjax_nc.cli.curves import curves

if __name__ == "__main__":
    sys.exit(curves())
