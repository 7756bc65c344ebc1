"""Federated methods and how they compose."""
