"""Entropy values: which path a packet takes (UES 3.6)."""
