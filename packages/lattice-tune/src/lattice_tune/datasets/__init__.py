"""Datasets: examples in files and in memory, splits, duplicates, statistics."""
