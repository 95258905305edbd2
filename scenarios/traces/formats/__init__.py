"""Formats of traces: a file for each, which registers itself."""
