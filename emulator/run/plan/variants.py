"""The transports of a run, each on a switch of its own, as the user lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import ON
from emulator.transports import TRANSPORTS

DEFAULT_SEED = 1
DEFAULT_TRANSPORT = "uet"
#: Whether writes to another rail go over NVLink (:mod:`emulator.run.pxn`), the default first.
PXN_MODES = ("auto", "always", "off")
#: The word for UET beside RoCEv2 as each of its advocates would set it up.
COMPARE = "compare"
COMPARED = ("uet", "rocev2:classic", "rocev2:nccl", "rocev2:adaptive")
#: Seeds of a comparison, unless the user says how many: one has no spread.
COMPARED_SEEDS = 3
#: Between a transport and the switch that it is run on.


@dataclass(frozen=True)
class Variant:
    """A transport of a run, and the switch that it names; None leaves either to the run."""

    transport: str | None = None
    switch: str | None = None

    @property
    def label(self) -> str | None:
        """Return the label that the user wrote."""
        return self.transport if self.switch is None else f"{self.transport}{ON}{self.switch}"


def variants(requested: str | None) -> list[Variant]:
    """Return the transports that ``requested`` names, in its order.

    Commas part transports as they part parameters: what is the name of a transport, alone or
    before a colon or an ``@``, begins another one.  ``@`` stands before the switch that a
    transport is to be run on, and :data:`COMPARE` for :data:`COMPARED`.  :class:`UserError` if one
    is there twice, or ``@`` stands before nothing.
    """
    if requested is None:
        return [Variant()]
    found: list[str] = []
    for part in _parts(requested):
        name, colon, _ = part.partition(ON)[0].partition(":")
        begins = "=" not in name and (bool(colon) or name in TRANSPORTS)
        if begins or not found:
            found.append(part)
        else:
            last = found[-1].rpartition(ON)[2]
            found[-1] += f"{',' if ':' in last else ':'}{part}"
    for variant in found:
        if found.count(variant) > 1:
            raise UserError(
                f"--transport has {variant} twice; runs of one transport that differ only in "
                "chance are what --seeds N is for"
            )
    return [_variant(text) for text in found]


def _parts(requested: str) -> Iterator[str]:
    for part in requested.split(","):
        if part.strip() == COMPARE:
            yield from COMPARED
        else:
            yield part.strip()


def _variant(text: str) -> Variant:
    transport, on, switch = text.partition(ON)
    if on and (not switch or not transport or ON in switch):
        raise UserError(
            f"--transport {text!r}: one switch follows {ON}, as in uet{ON}deep or "
            f"rocev2:adaptive{ON}balance=least-loaded"
        )
    return Variant(transport, switch or None)
