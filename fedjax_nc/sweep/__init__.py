"""Sweeps: grids of runs, their cells as run directories, processes that train them, their table."""
