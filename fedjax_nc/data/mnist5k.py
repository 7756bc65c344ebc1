"""The 5,000 digits of the dataset `mnist5k`, which lie in `mnist5k.npz` beside this file.

They are the first 500 of each class in MNIST's official training files, class by class. This makes
them again from a directory with those files:

python -m fedjax_nc.data.mnist5k DIRECTORY
"""

import hashlib
import io
import sys
from pathlib import Path

import numpy as np

from fedjax_nc.errors import UserError

FILE = Path(__file__).with_suffix(".npz")
SHA256 = "cd662a0e2cafa9cee9e779f3c25e4f6c346375867ce379ca9ec5436eaef7f338"


def read() -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [5000, 28, 28, 1] and labels uint8 [5000], or refuses a damaged file."""
    try:
        packed = FILE.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {FILE} ({error}): install fedjax_nc again") from error
    if (found := hashlib.sha256(packed).hexdigest()) != SHA256:
        raise UserError(
            f"{FILE} is damaged: its sha256 is {found}, not {SHA256}; install fedjax_nc again"
        )
    with np.load(io.BytesIO(packed)) as arrays:
        return arrays["images"], arrays["labels"]


def pack(images: np.ndarray, labels: np.ndarray, per_class: int = 500) -> bytes:
    """Returns an .npz of each class's first examples: images, labels and their official indices."""
    index = np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)])
    file = io.BytesIO()
    np.savez_compressed(
        file, images=images[index], labels=labels[index], index=index.astype(np.uint16)
    )
    return file.getvalue()


def main(argv: list[str]) -> int:
    """Packs the official files in a directory into `mnist5k.npz` and prints its checksum."""
    from fedjax_nc.data import sources

    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        train = sources.read("mnist", Path(argv[0])).splits["train"]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    packed = pack(np.stack([example["image"] for _, example in train.examples()]), train.labels)
    FILE.write_bytes(packed)
    print(f"{FILE}: {len(packed)} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
