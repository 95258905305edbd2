"""Fabrics, endpoints and runs on Linux."""

from emulator.compiled import finder

finder.install()
