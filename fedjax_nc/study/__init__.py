"""From a run directory to numbers, figures and a report that explain it."""
