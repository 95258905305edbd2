"""Benchmark suites: tests with procedures, whose trials run on all processors and are resumed."""
