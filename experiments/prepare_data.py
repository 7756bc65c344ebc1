"""Prepare a dataset: download it, or read it --from a path, check it, and write it for TFDS."""

import argparse
import sys

from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.data.prepare import prepare
from fedjax_nc.errors import UserError


def main(argv: list[str]) -> int:
    """Run the command; the exit code is 2 for input a person has to correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "name",
        help=", ".join(spec.name for spec in DATASETS.values() if spec.release or spec.subset),
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="PATH",
        help="the official archive, or a directory with it or its files (default: download); "
        "of ImageNet the directory with train and val",
    )
    parser.add_argument(
        "--data.dir",
        "--data-dir",
        dest="directory",
        metavar="DIR",
        help="where prepared data is kept (default: $TFDS_DATA_DIR, or ~/tensorflow_datasets)",
    )
    parser.add_argument(
        "--data.side",
        "--data-side",
        dest="side",
        type=int,
        default=224,
        metavar="PIXELS",
        help="side of ImageNet's pictures (default: 224)",
    )
    given = parser.parse_args(argv)
    try:
        print(prepare(given.name, given.source, directory=given.directory, side=given.side))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
