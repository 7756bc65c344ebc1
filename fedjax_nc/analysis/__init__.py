"""Measures that explain why a method works: arrays in, numbers out."""
