"""Algorithms of collectives, one idea in each file; they register themselves."""
