"""Figures of the studies of a run, and the page that holds them; they know numbers only."""
