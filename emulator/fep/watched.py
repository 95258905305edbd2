"""A fabric endpoint whose PDCs are watched: when they open, change and close."""

from __future__ import annotations

from collections.abc import Callable

from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.pds.life import PdcLife, State

#: (what happened, what is known of it)
Listener = Callable[[str, dict[str, object]], None]
_TOLD = {
    State.ESTABLISHED: "established",
    State.QUIESCE: "quiesce",
    State.CLOSING: "closing",
    State.CLOSED: "closed",
}


class WatchedEndpoint(FabricEndpoint):
    """Tells ``listener`` of PDCs; else a :class:`FabricEndpoint`."""

    def __init__(self, config: FepConfig, *, seed: int, listener: Listener) -> None:
        self._listener = listener
        self._known: set[int] = set()
        super().__init__(config, seed=seed)

    def pdc_changed(self, pdc: PdcLife) -> None:
        self._meet(pdc)
        self._tell(pdc, _TOLD.get(pdc.state, pdc.state.name.lower()))
        super().pdc_changed(pdc)
        if pdc.state is State.CLOSED:
            self._known.discard(pdc.id)

    def pdc_event(self, pdc: PdcLife, name: str, **data: object) -> None:
        self._meet(pdc)
        self._tell(pdc, name, **data)
        super().pdc_event(pdc, name, **data)

    def look(self) -> None:
        """Tell of PDCs that have come: a new one changes no state."""
        present = self.table.by_id
        if self._known == present.keys():
            return
        for number in present.keys() - self._known:
            self._meet(present[number])
        self._known = set(present)

    def _meet(self, pdc: PdcLife) -> None:
        if pdc.id not in self._known:
            self._known.add(pdc.id)
            self._tell(pdc, "opened", ordered=pdc.ordered, start_psn=pdc.start_psn, sdi=pdc.sdi)

    def _tell(self, pdc: PdcLife, name: str, **data: object) -> None:
        self._listener(
            name,
            {
                "pdc": pdc.id,
                "peer_pdc": pdc.peer_id,
                "peer": pdc.address,
                "initiator": pdc.initiator,
                **data,
            },
        )
