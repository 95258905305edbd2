"""Capabilities of this machine's kernel, and substitutes for those it lacks."""
