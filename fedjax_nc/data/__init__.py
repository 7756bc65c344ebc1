"""Datasets on disk, partitions, and the flat pool on the device."""
