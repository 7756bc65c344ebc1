"""The `list` command: which methods, models, datasets, protocols, recipes, partitions exist."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

from rich.table import Table

from fedjax_nc.cli import protocol_page, recipe_page
from fedjax_nc.cli.console import Lasting, waiting
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.flags import LISTS, read_plugins
from fedjax_nc.cli.reading import plugin_flag, read
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError, command, unknown
from fedjax_nc.methods import catalogue
from fedjax_nc.models.catalogue import MODELS

_PARTITIONS = {
    "iid": "equal random shares",
    "shards": "per_client single-label shards each; the test set dealt alike (FedDr+)",
    "dirichlet": "class shares from Dir(alpha); rules lda, fedetf, feddw",
    "classes": "per_client classes each",
    "quantity": "sizes from Dir(alpha), labels alike",
}


@answered
def show(argv: list[str]) -> int:
    """Prints what can be named in other commands, without starting jax unless bytes are asked."""
    given = parse(argv)
    if given.name:
        pages = {"protocols": protocol_page.show, "recipes": recipe_page.show}
        pages[given.kind](given.name)
        return 0
    dataset = given.dataset or "mnist5k"
    show_list(given.kind, sizes=_count(dataset) if given.bytes else None, dataset=dataset)
    return 0


def parse(argv: list[str]) -> Any:
    """Returns what is to be listed: kind, name, bytes, dataset."""
    import tyro

    read_plugins(argv)
    about = tyro.conf.arg(metavar="KIND", help=f"One of {', '.join(LISTS)}.")
    one = (
        "With `protocols`: one of them, as feddw or feddw/pathological, with all it sets. With "
        "`recipes`: one of them, as feddw/T1, with its cells."
    )
    one = tyro.conf.arg(metavar="NAME", help=one, help_behavior_hint="")
    where = "On which bytes are counted (default: mnist5k)."
    shape = dataclasses.make_dataclass(
        "List",
        [
            ("kind", Annotated[tyro.conf.Positional[str], about], "all"),
            ("name", Annotated[tyro.conf.Positional[str], one], ""),
            ("bytes", Annotated[bool, tyro.conf.arg(help="Count what a client uploads.")], False),
            ("dataset", Annotated[str, tyro.conf.arg(help=where, help_behavior_hint="")], ""),
            ("plugin", plugin_flag(), ()),
        ],
        frozen=True,
    )
    shape.__doc__ = "Show what can be named in the other commands.\n\nExample: list methods --bytes"
    given: Any = read(shape, argv, prog=command("list"))
    if given.kind not in LISTS:
        raise unknown("list", given.kind, allowed=LISTS)
    if given.name and given.kind not in ("protocols", "recipes"):
        raise UserError(
            f"'{given.name}' has no effect on a list of {given.kind}: leave it out, it belongs to "
            "protocols and recipes"
        )
    if given.bytes and given.kind not in ("all", "methods"):
        raise UserError(f"--bytes has no effect on a list of {given.kind}: leave it out")
    if given.dataset and not given.bytes:
        raise UserError("--dataset has no effect without --bytes: leave it out, or add --bytes")
    if given.dataset and given.dataset not in DATASETS:
        raise unknown("dataset", given.dataset, allowed=DATASETS)
    return given


def show_list(kind: str, *, sizes: dict[str, Any] | None = None, dataset: str = "") -> None:
    """Prints one kind of what can be named on the command line, or `all`.

    Args:
      kind: one of `flags.LISTS`.
      sizes: bytes that a client of each method sends on the dataset, as `dry_run.messages` gives.
      dataset: where they were counted.
    """
    tables: dict[str, Callable[[], tuple[Any, ...]]] = {
        "methods": lambda: (_methods(sizes, dataset=dataset), _regularisers()),
        "models": lambda: (_models(),),
        "datasets": lambda: (_datasets(),),
        "protocols": lambda: (protocol_page.overview(),),
        "recipes": lambda: (recipe_page.overview(),),
        "partitions": lambda: (_partitions(),),
    }
    for name in tables if kind == "all" else [kind]:
        Lasting().print(*tables[name]())


def _count(dataset: str) -> dict[str, Any]:
    """Returns the bytes that a client of each method sends, with a progress bar meanwhile."""
    from rich.progress import track

    with waiting("starting jax"):
        from fedjax_nc.host import dry_run
    console = Lasting(stderr=True)

    def followed(names: list[str]) -> Any:
        silent = not console.is_terminal
        return track(names, "counting bytes", console=console, transient=True, disable=silent)

    return dry_run.messages(dataset, follow=followed)


def _methods(sizes: dict[str, Any] | None, dataset: str) -> Table:
    counted = sizes is not None
    about = f" (kB that a client uploads in a round on {dataset})" if counted else ""
    caption = "with the protocol's model or, *, resnet8; " if counted else ""
    table = Table(
        "method",
        "paper and venue, hyperparameters",
        *(["kB up"] if counted else []),
        title=f"Methods by family{about}",
        caption=f"{caption}more: docs/methods.md",
    )
    table.columns[0].no_wrap = True
    family = ""
    for entry in sorted(catalogue.bases().values(), key=lambda entry: entry.family):
        if entry.family != family:
            family = entry.family
            table.add_section()
            table.add_row(f"[bold]{family}[/]")
        cells = [f"  {entry.name}", _described(entry, entry.paper)]
        if counted:
            found = sizes.get(entry.name)  # none where no model takes such data
            mark = "*" if found and found.model == "resnet8" else ""
            cells.append(f"{found.up / 1e3:.1f}{mark}" if found else "")
        table.add_row(*cells)
    return table


def _regularisers() -> Table:
    table = Table(
        "regulariser",
        "what it adds, hyperparameters",
        title="Regularisers, written behind a bar: 'method | regulariser'",
    )
    for entry in catalogue.regularisers().values():
        table.add_row(entry.name, _described(entry, entry.summary))
    return table


def _models() -> Table:
    table = Table(
        "model",
        "description",
        "M param",
        "MFLOPs",
        title="Models (sizes for 32x32 colour images and ten classes)",
        caption="MFLOPs: millions of multiply-adds of a forward pass",
    )
    table.columns[0].no_wrap = True
    for spec in MODELS.values():
        takes = "takes text" if spec.text else f"from {spec.min_size}x{spec.min_size} pixels"
        text = f"{spec.summary}; norm {spec.norm}; {takes}"
        size = ("-", "-")  # of a network from outside
        if spec.parameters:
            counted = spec.counted if spec.counted.startswith("by ") else f"as in {spec.counted}"
            text += f"; size {counted}"
            size = (f"{spec.parameters / 1e6:.2f}", f"{spec.mflops:.1f}")
        table.add_row(spec.name, text, *size)
    return table


def _datasets() -> Table:
    table = Table("dataset", "shape", "classes", "train", "test", "where from", title="Datasets")
    for spec in DATASETS.values():
        shape = "x".join(map(str, spec.shape))
        source = spec.origin
        sizes = (str(spec.classes), str(spec.train), str(spec.test))
        table.add_row(spec.name, shape, *sizes, source)
    return table


def _partitions() -> Table:
    table = Table("partition", "what a client holds", title="Partitions")
    for name, text in _PARTITIONS.items():
        table.add_row(name, text)
    return table


def _described(entry: catalogue.Entry, text: str) -> str:
    hyper = ", ".join(f"{k}={v}" for k, v in entry.hyper.items())
    return f"{text}\n[dim]{hyper}[/]" if hyper else text
