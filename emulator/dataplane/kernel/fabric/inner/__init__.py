"""Cables of a fabric with a virtual clock: their inner ends meet in a namespace of their own."""
