"""Shared parts of the benchmarks: texts, engines in separate processes, records, tables."""
