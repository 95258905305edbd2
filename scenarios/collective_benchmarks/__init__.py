"""Collectives in the form of the NCCL tests: a row for each size."""

HOLDS_SCENARIOS = True
