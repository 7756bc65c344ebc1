"""Federated learning under label skew: clients stacked, their local epochs in one jitted round."""
