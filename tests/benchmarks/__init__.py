"""Benchmarks: `make bench` prints one JSON line a case.  Nothing here asserts a time; ratios within one run are what counts."""
