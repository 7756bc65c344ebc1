"""From a run, in memory or in its directory, to results, figures and a report that explain it."""
