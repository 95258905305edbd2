"""Rates, times and sizes as people write them, turned into exact integers and back.

========  ==================  =====================================================
rates     bit/s               ``400G`` ``400Gbps`` ``3.2Tb/s`` ``450GB/s`` (octets, x8)
times     ns of fabric time   ``600ns`` ``1.2us`` ``3ms`` ``2s``
sizes     octets              ``9000`` ``64KiB`` ``64k`` ``4M`` ``1MB``
========  ==================  =====================================================

A bare number of a size is octets.  A letter alone, or with ``i``, is a power of 1024, as NCCL's
tests and fio read it; ``kB`` and ``MB`` are powers of 1000.

Everything is computed in exact fractions: a value that is no whole number of bit/s, ns or octets
is refused instead of rounded.  Quantities of the general unit libraries (pint, QuantiPhy,
humanfriendly) are floats or accept any dimension, so the checks below would remain to be written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from topologies.model import TopologyError

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,12})?)\s*([A-Za-zµμ/]*)")

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATES = {
    prefix + unit: factor * weight
    for prefix, factor in _DECIMAL.items()
    for unit, weight in {"b/s": 1, "bps": 1, "bit/s": 1, "bit": 1, "B/s": 8}.items()
} | {prefix: factor for prefix, factor in _DECIMAL.items() if prefix}
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZES = (
    {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}iB": factor for prefix, factor in _BINARY.items()}
    | {
        form: factor
        for prefix, factor in _BINARY.items()
        for form in (prefix, prefix.lower(), f"{prefix}i", f"{prefix.lower()}i")
    }
    | {"": 1}
)

#: The units of each kind of quantity, by its base.
UNITS: Mapping[str, tuple[str, ...]] = {
    "bit/s": tuple(_RATES),
    "ns": tuple(_TIMES),
    "octets": tuple(_SIZES),
}


class UnitError(TopologyError):
    """A value whose number or unit cannot be read; the message shows how to write it."""


def parse_rate(text: str) -> int:
    """``text`` in bit/s; a unit is required, because a bare 400 means 400 Gb/s to nobody's code."""
    return _parse(text, _RATES, "a rate", "400G, 400Gbps, 3.2Tbps or 450GB/s", "bit/s")


def parse_time_ns(text: str) -> int:
    """``text`` in ns; only 0 may stand without a unit."""
    if text.strip() == "0":
        return 0
    return _parse(text, _TIMES, "a time", "600ns, 1.2us or 3ms", "ns")


def parse_size(text: str) -> int:
    """``text`` in octets; a bare k, M or G is a power of 1024."""
    return _parse(text, _SIZES, "a size", "9000, 64KiB, 4M or 1MB", "octets")


def _parse(text: str, units: Mapping[str, int], what: str, examples: str, base: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UnitError(f"{text!r} is not {what}; write for example {examples}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"has the unknown unit {unit!r}" if unit else "has no unit"
        raise UnitError(f"{text!r} {problem} for {what}; write for example {examples}")
    value = Fraction(number) * units[unit]
    if value.denominator != 1:
        raise UnitError(f"{text!r} is not a whole number of {base}; write for example {examples}")
    return int(value)


def format_rate(bps: int) -> str:
    """``bps`` in the largest unit that shows it exactly, e.g. ``400 Gbps``, ``3.2 Tbps``."""
    return _format(bps, {"Tbps": 10**12, "Gbps": 10**9, "Mbps": 10**6, "kbps": 10**3}, "bps")


def format_time(ns: int) -> str:
    """``ns`` in the largest unit that shows it exactly, e.g. ``600 ns``, ``1.2 us``."""
    return _format(ns, {"s": 10**9, "ms": 10**6, "us": 10**3}, "ns")


def format_size(octets: int) -> str:
    """``octets`` as a whole number of the largest binary unit, else of MB, GB, TB, else of B."""
    for unit, factor in {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}.items():
        if octets and octets % factor == 0:
            return f"{octets // factor} {unit}"
    for unit, factor in {"TB": 10**12, "GB": 10**9, "MB": 10**6}.items():
        if octets and octets % factor == 0:
            return f"{octets // factor} {unit}"
    return f"{octets} B"


def _format(value: int, units: Mapping[str, int], base: str) -> str:
    for unit, factor in units.items():
        thousandths = Fraction(value, factor) * 1000
        if abs(value) >= factor and thousandths.denominator == 1:
            whole, rest = divmod(int(thousandths), 1000)
            digits = f"{whole}.{rest:03}".rstrip("0").rstrip(".")
            return f"{digits} {unit}"
    return f"{value} {base}"
