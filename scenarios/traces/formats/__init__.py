"""Formats of traces: a file for each, which registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from scenarios.traces.format_registry import FORMATS, TraceFormat

__all__ = ["FORMATS", "TraceFormat"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
