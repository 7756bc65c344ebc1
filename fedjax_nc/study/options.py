"""What can be asked of an analysis; standard library only, so that flags parse before jax."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedjax_nc.errors import UserError, unknown

# In the order of the report. Each is a module of this folder that defines a record named STUDY.
STUDIES = (
    "hessian",
    "landscape",
    "collapse",
    "spectrum",
    "alignment",
    "relations",
    "bias",
    "cost",
)
# what training can record on its way: studies, and the consistency of clients' class means
TRACKED = ("collapse", "spectrum", "alignment", "consistency")


@dataclass(frozen=True)
class Options:
    """How much of a run is looked at, and how closely."""

    only: str = ",".join(STUDIES)
    """Studies to make, with commas between them."""
    round: int = 0
    """Analyse the checkpoint of this round; 0 is the last one. A run keeps its last two."""
    examples: int = 2000
    """Number of test examples, balanced over classes and the same every time."""
    clients: int = 10
    """Number of clients whose local models are made, evenly spread by size; 0 is all of them."""
    eigenvalues: int = 5
    """Number of Hessian eigenvalues."""
    products: int = 30
    """Hessian products of the Lanczos iteration."""
    probes: int = 20
    """Random vectors for the trace and for each client's diagonal."""
    grid: int = 21
    """Points along each side of a loss surface."""
    few: int = 500
    """Training examples of Hessians and surfaces, which take hundreds of passes over them."""
    radius: float = 1.0
    """Half a side of a surface: in filter norms, in lengths of a client's update, or as a step."""
    targets: tuple[float, ...] = ()
    """Accuracies whose rounds and bytes are counted; by default shares of the best one reached."""
    seed: int = 0
    """Seed of random vectors, directions and t-SNE."""


LEAST = {"examples": 1, "eigenvalues": 1, "products": 2, "probes": 2, "grid": 3, "few": 1}


def chosen(words: str | Iterable[str], allowed: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """Returns the names that were given, in the order in which they are listed.

    Args:
      words: the names, with commas between them or one by one.
      allowed: every name there is.
      flag: where they were given; errors name it.
    """
    words = words if isinstance(words, str) else ",".join(words)
    given = [word for word in words.replace(" ", "").split(",") if word]
    for word in given:
        if word not in allowed:
            raise unknown(f"name in {flag}", word, allowed=allowed)
    if len(set(given)) < len(given):
        raise UserError(f"{flag}={words}: name each once")
    return tuple(name for name in allowed if name in given)


def validate(options: Options) -> None:
    """Refuses options that make no sense, and names the flag."""
    if not chosen(options.only, STUDIES, flag="--only"):
        raise UserError(f"--only: choose from {', '.join(STUDIES)}")
    for name, least in LEAST.items():
        if getattr(options, name) < least:
            raise UserError(f"--{name}={getattr(options, name)}: give at least {least}")
    for name in ("round", "clients", "seed"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name}={getattr(options, name)}: give zero or more")
    if options.products < options.eigenvalues:
        raise UserError(
            f"--products={options.products}: {options.eigenvalues} eigenvalues need at least as "
            "many"
        )
    if not 0 < options.radius < float("inf"):
        raise UserError(f"--radius={options.radius}: give a number above zero")
    for target in options.targets:
        if not 0 < target <= 1:
            raise UserError(f"--targets {target}: give accuracies between 0 and 1")
