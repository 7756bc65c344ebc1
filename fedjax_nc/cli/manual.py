"""The manual docs/methods.md, written from the catalogue by `make docs`."""

from fedjax_nc.host import dry_run
from fedjax_nc.methods import catalogue

DATASET = "cifar10"  # on which bytes are counted


def markdown() -> str:
    """Returns the manual of all methods and regularisers."""
    bases, regularisers = catalogue.bases(), catalogue.regularisers()
    sizes = dry_run.messages(DATASET)
    lines = [
        "# Methods", "",
        "Generated from the methods' own docstrings by `make docs`; do not edit.", "",
        "A method is chosen by `--method=NAME`, its hyperparameters by `--hp.NAME=VALUE` or "
        "`--method=\"NAME(x=1)\"`. "
        "A regulariser follows a bar: `--method=\"fedbabu | fd(beta=0.9)\"`. "
        "`X-ft` is short for `X | ft`.", "",
        "`up` and `down` are kilobytes per client and round on CIFAR-10, with the `cnn` network, "
        "or `resnet8` where the method needs blocks or norms (marked *).",
        "", "| method | family | venue | uploads | up | down | paper |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for entry in bases.values():
        size, sections = sizes[entry.name], entry.sections
        mark = "" if size.model == "cnn" else "*"
        cells = (
            f"[`{entry.name}`](#{entry.name})",
            entry.family,
            entry.venue,
            sections["Uploads"],
            f"{size.up / 1e3:.1f}{mark}",
            f"{size.down / 1e3:.1f}{mark}",
            sections["Paper"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    for entry in bases.values():
        lines += _page(entry)
    lines += ["", "# Regularisers"]
    for entry in regularisers.values():
        lines += _page(entry)
    return "\n".join(lines) + "\n"


def _page(entry: catalogue.Entry) -> list[str]:
    lines = ["", f"## {entry.name}", "", entry.summary, ""]
    lines += [f"- **{title}:** {text}" for title, text in entry.sections.items()]
    if entry.hyper:
        lines += ["", "| hyperparameter | default | meaning |", "|---|---|---|"]
        lines += [f"| `{k}` | `{v!r}` | {entry.help[k]} |" for k, v in entry.hyper.items()]
    return lines


if __name__ == "__main__":
    print(markdown(), end="")
