"""Faults of a run: when they come, what they leave possible, what they cost."""
