"""Drawings, tables and files of other tools, made from a topology."""

from importlib import import_module
from pkgutil import iter_modules

from topologies.exports.export_registry import EXPORTS, Export

__all__ = ["EXPORTS", "Export"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
