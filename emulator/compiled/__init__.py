"""Modules that mypyc compiles: they make runs faster and change no result."""
