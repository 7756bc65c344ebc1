"""Local training, executors and the round."""
