"""Prepare a dataset: download it, or read it --from a path, check it, and write it for TFDS.

python experiments/prepare_data.py cifar10 --from ~/downloads
"""

import sys

from fedjax_nc.cli.prepare import prepare

if __name__ == "__main__":
    sys.exit(prepare())
