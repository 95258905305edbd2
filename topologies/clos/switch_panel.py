"""The front panel of a rail switch: the interface that each cable of a server has.

Port ``down<n>`` of a rail switch is interface n + 1 of its panel.  With the order ``rail`` or
``host`` interfaces follow each other.  With ``interleaved`` the panel (by default of 48 ports) has
three rows.  A rail takes every third interface of its row; the rails that follow stand beside it,
and then in the next row: with four servers rail 1 has interfaces 1, 4, 7, 10, and rail 2 has 13,
16, 19, 22. Rail 5 has 2, 5, 8, 11 (figure 13-6).
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.elements import TopologyError
from topologies.parts.assembly import MAX_PORTS

PORT_ORDERS = (BY_RAIL, BY_HOST, INTERLEAVED) = ("rail", "host", "interleaved")
#: Rows of an interleaved panel, and its interfaces where ``switch_ports`` is not given.
ROWS, PANEL = 3, 48


@dataclass(frozen=True, kw_only=True)
class SwitchPanel:
    """The panel of a rail switch with a cable to each of ``hosts`` servers for every rail.

    ``ports`` is None where the panel has as many as it takes.
    """

    order: str
    ports: int | None
    hosts: int

    @property
    def _size(self) -> int:
        return self.ports or PANEL

    @property
    def _block(self) -> int:
        """The interfaces from the first of one rail to the first of the next, if interleaved."""
        return ROWS * self.hosts

    def interface(self, host: int, rail: int) -> int | None:
        """Return the number of a host's port at the switch of its ``rail``, counted from 0.

        None where ports follow each other in the order of their cables.
        """
        if self.order != INTERLEAVED:
            return None
        row, block = divmod(rail, self._size // self._block)
        return block * self._block + ROWS * host + row

    def cables(self, rails: range) -> list[tuple[int, int]]:
        """Return the hosts and rails that have a cable, in the order of the cables."""
        hosts = range(self.hosts)
        if self.order == BY_HOST:
            return [(host, rail) for host in hosts for rail in rails]
        return [(host, rail) for rail in rails for host in hosts]

    def check(self, *, rails: int, below: int, above: int, spines: int) -> None:
        """Raise TopologyError unless ``rails`` rails, ports ``below`` and ``above`` have room."""
        if below + above > MAX_PORTS:
            raise TopologyError(
                f"hosts is {self.hosts} and spines {spines}: a rail switch would have "
                f"{below + above} ports, above {MAX_PORTS}; take fewer hosts, spines or "
                "uplinks_per_spine, or a higher uplink_rate"
            )
        if self.ports is not None and below + above > self.ports:
            raise TopologyError(
                f"switch_ports is {self.ports} and a rail switch would need {below + above} of "
                f"them ({below} down, {above} up); take fewer hosts, rails_per_switch, spines or "
                "uplinks_per_spine"
            )
        if self.order == INTERLEAVED and self._block * -(-rails // ROWS) > self._size:
            raise TopologyError(
                f"port_order is {INTERLEAVED}: a panel of {self._size} ports has {ROWS} rows for "
                f"{self._size // self._block} rails of {self.hosts} servers each, and a switch "
                f"has {rails} rails; take fewer hosts, or port_order={BY_RAIL}"
            )
