"""Train several methods on the same terms and write one table; flags of run.py follow `--`.

python experiments/compare.py fedavg fedetf "fedbabu | fd" --to docs/results/first.md -- --seeds 0 1
python experiments/compare.py all -- --dataset=cifar10 --data.limit=5000
"""

import sys

from fedjax_nc.cli.compare import compare

if __name__ == "__main__":
    sys.exit(compare())
