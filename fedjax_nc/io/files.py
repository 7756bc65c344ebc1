"""How files are written so that a killed process never leaves half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a killed run leaves the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
