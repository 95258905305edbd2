"""Congestion controls of queue pairs: each module of this folder registers one."""

from importlib import import_module
from pkgutil import iter_modules

from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS

__all__ = ["RATE_CONTROLS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
