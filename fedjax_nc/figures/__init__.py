"""Figures of runs and of their studies, and the page that holds them; they know numbers only."""
