"""Datasets, partitions, and the flat pool on the device."""
