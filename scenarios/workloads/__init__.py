"""Flows and permutations, and where they stand in a fabric: a library of scenarios."""
