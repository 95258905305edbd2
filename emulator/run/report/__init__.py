"""Rows, tables and drawings of a run."""
