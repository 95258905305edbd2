"""Congestion controls of sources: each module of this folder registers one."""

from importlib import import_module
from pkgutil import iter_modules

from uet.congestion.control_registry import CONTROLS

__all__ = ["CONTROLS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
