"""Fabrics as plain data."""
