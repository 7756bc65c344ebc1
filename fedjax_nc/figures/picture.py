"""A figure that belongs to no window and to no backend, and that a notebook shows by itself."""

import io

from matplotlib.figure import Figure

from fedjax_nc.figures.canvas import DOTS


class Picture(Figure):
    """A matplotlib figure made without pyplot: backend and settings stay as the user has them."""

    def _repr_png_(self) -> bytes:
        """Returns the figure as PNG, for notebooks in which pyplot was never imported."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DOTS)
        return file.getvalue()
