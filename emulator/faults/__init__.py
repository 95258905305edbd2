"""Faults of cables, switches and NICs: their grammar, their injection, who can still reach whom."""
