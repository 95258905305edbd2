"""A fabric endpoint whose PDCs are watched: when they open, lose packets, change and close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.pds.pdc.pdc import Pdc

#: (what happened, its facts)
Listener = Callable[[str, dict[str, object]], None]


class WatchedEndpoint(FabricEndpoint):
    """A :class:`FabricEndpoint` that notifies ``listener`` of PDCs.

    ``more`` is for the next class in line: how an endpoint begins, and what a trace needs.
    """

    def __init__(self, config: FepConfig, *, listener: Listener, **more: Any) -> None:
        self._listener = listener
        #: errors that the latest PDC of an id has failed with
        self.failures: dict[int, str] = {}
        super().__init__(config, **more)

    def pdc_changed(self, pdc: Pdc) -> None:
        self._notify(pdc, pdc.state.name.lower())
        super().pdc_changed(pdc)

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        if name == "created":
            self.failures.pop(pdc.id, None)  # of an older one
            data |= {"ordered": pdc.ordered, "start_psn": pdc.start_psn}
            if pdc.sdi is not None:
                data["sdi"] = pdc.sdi
        elif name == "failed":
            self.failures[pdc.id] = str(data["error"])
        self._notify(pdc, name, **data)
        super().pdc_event(pdc, name, **data)

    def _notify(self, pdc: Pdc, name: str, **data: object) -> None:
        self._listener(
            name,
            {
                "pdc": pdc.id,
                "peer_pdc": pdc.peer_id or None,
                "peer": pdc.address,
                "initiator": pdc.initiator,
                **data,
            },
        )
