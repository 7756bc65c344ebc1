"""Small releases in the formats of the official files, made by the tests."""

import gzip
import io

import numpy as np
import scipy.io
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_emnist(config, folder):
    """Two training pictures and one for testing of each class, compressed, in MNIST's format."""
    classes, random = {"balanced": 47, "byclass": 62}[config], np.random.RandomState(2)
    for split, each in (("train", 2), ("test", 1)):
        labels = np.tile(np.arange(classes, dtype=np.uint8), each)
        pixels = random.randint(0, 256, (len(labels), 28, 28)).astype(np.uint8)
        count = len(labels).to_bytes(4, "big")
        images = b"\0\0\x08\x03" + count + bytes([0, 0, 0, 28] * 2) + pixels.tobytes()
        parts = {"images-idx3": images, "labels-idx1": b"\0\0\x08\x01" + count + labels.tobytes()}
        for kind, data in parts.items():
            path = folder / f"emnist-{config}-{split}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(data))


def write_svhn(folder):
    """Each digit twice for training and once for testing, compressed as MATLAB has it."""
    random = np.random.RandomState(3)
    for split, count in (("train", 20), ("test", 10)):
        pixels = random.randint(0, 256, (32, 32, 3, count)).astype(np.uint8)
        labels = (1 + random.permutation(count) % 10).astype(np.uint8)[:, None]
        content = {"X": pixels, "y": labels}
        scipy.io.savemat(folder / f"{split}_32x32.mat", content, do_compression=True)


def png(random, mode="RGB"):
    shape = (32, 32, 3) if mode == "RGB" else (32, 32)
    stream = io.BytesIO()
    Image.fromarray(random.randint(0, 256, shape).astype(np.uint8)).save(stream, "png")
    return stream.getvalue()


def write_cinic10(folder):
    """Three pictures of each class and split, one of them grey, and a file beside the folders."""
    random = np.random.RandomState(4)
    for split in ("train", "valid", "test"):
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for file, mode in (("n02_9", "RGB"), ("n02_10", "L"), ("cifar10-train-7", "RGB")):
                (folder / split / name / f"{file}.png").write_bytes(png(random, mode))
    (folder / "README.md").write_text("CINIC-10")


def write_imdb(folder):
    for split in ("train", "test"):
        for mood in ("neg", "pos", "unsup"):
            (folder / split / mood).mkdir(parents=True)
            for i in range(3):
                text = f"{mood} café film number {i}<br />\n"
                (folder / split / mood / f"{i}_{i}.txt").write_text(text, encoding="utf-8")
