"""Why a packet is sent again: the causes that an endpoint's trace has shown, by PDC and PSN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uet.pds.pdc import Pdc
from uet.pds.window import HALF, MASK

#: Causes remembered per PDC before those that are settled are looked for.
_MANY = 1_024
_REQUESTS = frozenset({"RUD_REQ", "ROD_REQ", "RUD_CC_REQ", "ROD_CC_REQ"})


class Repairs:
    """Remembers causes until the packet leaves again."""

    __slots__ = ("_causes", "_closed")

    def __init__(self) -> None:
        self._causes: dict[int, dict[int, str]] = {}
        self._closed: list[int] = []

    def report(self, pdc: Pdc, name: str, data: Mapping[str, Any]) -> None:
        """A PDC reports; called before it acts on it."""
        causes = self._causes.setdefault(pdc.id, {})
        source = pdc.source
        window = source.window
        if name == "created":
            causes.clear()
        elif name in ("rto", "loss_inferred"):
            causes[data["psn"]] = name
        elif name == "go_back":
            ahead = (data["expected"] - window.base) & MASK
            first = ahead if ahead < window.outstanding else 0
            for distance in range(first, window.outstanding):
                causes.setdefault((window.base + distance) & MASK, name)
        elif name == "renumbered":
            causes.clear()
            shift = data["start_psn"] - pdc.start_psn
            for distance in range(window.outstanding):
                causes[(window.base + shift + distance) & MASK] = name

    def refused(self, pdc: int, psn: int) -> None:
        """A NACK has come."""
        self._causes.setdefault(pdc, {}).setdefault(psn, "nack")

    def acknowledged(self, pdc: int, cack: int) -> None:
        """Nothing up to ``cack`` will be sent again."""
        causes = self._causes.get(pdc)
        if causes is not None and len(causes) > _MANY:
            for psn in [psn for psn in causes if ((cack - psn) & MASK) < HALF]:
                del causes[psn]

    def sent(self, header: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what and why, if the packet with this header was sent before."""
        again = "retx" in header.get("flags", ())
        kind = header["type"]
        if kind == "RUDI_REQ":
            return {"pkt_id": header["pkt_id"], "trigger": "rto"} if again else None
        if not (kind in _REQUESTS or (kind == "CP" and again)):
            return None
        pdc, psn = header["spdcid"], header["psn"]
        cause = self._causes.get(pdc, {}).pop(psn, "unknown" if again else None)
        return None if cause is None else {"pdc": pdc, "psn": psn, "trigger": cause}

    def close(self, pdc: int) -> None:
        """Note that ``pdc`` is closed; packets that it has sent may still arrive."""
        self._closed.append(pdc)

    def forget(self) -> None:
        """Everything sent so far has passed."""
        for pdc in self._closed:
            self._causes.pop(pdc, None)
        self._closed.clear()
