"""Reading YAML that others wrote: sizes are known first, and nothing in it stands for more."""

from pathlib import Path
from typing import Any

import yaml

from fedjax_nc import inputs


def read(path: Path, most: int) -> Any:
    """Returns what a file of at most `most` bytes says; ValueError where it says nothing whole."""
    return parse(inputs.read(path, most).decode())


def parse(text: str) -> Any:
    """Returns what a text says; references are refused, a page of which can fill the memory."""
    try:
        if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text)):
            raise ValueError("references with * are not read")
        return yaml.safe_load(text)
    except ValueError:
        raise
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark
        line = f" in line {where.line + 1}" if where else ""
        raise ValueError(f"{error.problem or 'no YAML'}{line}") from None
    except Exception as error:  # PyYAML raises anything, such as KeyError for `!!bool x`
        raise ValueError(f"no YAML ({type(error).__name__})") from None
