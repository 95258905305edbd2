"""Fabrics read from files of other tools."""
