"""Nodes, cables, bonds and tunnels of a fabric in the kernel."""

import sys

# Mininet takes one class from distutils.  Setuptools would load all of itself to stand in for it.
if sys.version_info < (3, 12) and (_setuptools := sys.modules.get("_distutils_hack")) is not None:
    _setuptools.remove_shim()
