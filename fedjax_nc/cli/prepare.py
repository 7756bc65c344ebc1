"""The `prepare` command: download a dataset or read its files, check it, write it for TFDS."""

import dataclasses
from typing import Annotated, Any

from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.reading import given_names, read
from fedjax_nc.data import prepare as preparation
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError, command
from fedjax_nc.inputs import check_path

NAMES = tuple(spec.name for spec in DATASETS.values() if spec.release or spec.subset)


@answered
def prepare(argv: list[str]) -> int:
    """Prepares one dataset and prints where it is."""
    given = parse(argv)
    print(preparation.prepare(given.name, given.source, directory=given.directory, side=given.side))
    return 0


def parse(argv: list[str]) -> Any:
    """Returns what is to be prepared: name, source, directory, side."""
    import tyro

    def option(text: str, **names: Any) -> Any:
        return tyro.conf.arg(help=text, help_behavior_hint="", **names)

    where = option(
        "Where prepared data is kept (default: $TFDS_DATA_DIR, or ~/tensorflow_datasets).",
        name="data.dir",
        aliases=["--data-dir"],
        metavar="DIR",
    )
    side = option(
        "Side of ImageNet's pictures (default: 224).",
        name="data.side",
        aliases=["--data-side"],
        metavar="PIXELS",
    )
    source = option(
        "The official archive, or a directory with it or its files (default: download); "
        "of ImageNet the directory with train and val.",
        name="from",
        metavar="PATH",
    )
    name = option(f"One of {', '.join(NAMES)}.", metavar="NAME")
    shape = dataclasses.make_dataclass(
        "Prepare",
        [
            ("name", Annotated[tyro.conf.Positional[str], name], ""),
            ("source", Annotated[str | None, source], None),
            ("directory", Annotated[str | None, where], None),
            ("side", Annotated[int, side], 224),
        ],
        frozen=True,
    )
    prog = command("prepare")
    shape.__doc__ = (
        "Prepare a dataset: download it, or read it --from a path, check it, and write it for "
        f"TFDS.\n\nExample: {prog} cifar10 --from ~/downloads"
    )
    given: Any = read(shape, argv, prog=prog)
    if not given.name:
        raise UserError(f"no dataset was given: choose from {', '.join(NAMES)}")
    check_path("--from", given.source or "")
    check_path("--data.dir", given.directory or "")
    spec = DATASETS.get(given.name)
    if "data.side" in given_names(argv) and spec and not spec.subset:
        raise UserError(f"--data.side has no effect on {given.name}: leave it out")
    return given
