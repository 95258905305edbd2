"""Has the lines of a fabric follow what strikes their cables, at the instant of the strike.

What waits at a port is lost with its carrier, and so is what is on the cable; a frame that arrived
before is not.  A rate holds from the next frame on.  What the switch program does to frames (loss,
corruption, duplication, black hole) needs nothing here: it happens as they cross the switch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from emulator.asic.virtual_state import OVERTAKES, PORT_WORDS
from emulator.engine.network import Network
from topologies.model import End, Link


class StruckLines:
    """The lines of ``network``, for whoever strikes the cables."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def lost_in_flight(self) -> int:
        """Frames that were on a cable when it was pulled, so far."""
        return sum(line.counts.in_flight for line in self._network.lines.values())

    def pull(self, links: Collection[Link]) -> int:
        """Lose what waits at and flies on ``links``; return how many frames waited."""
        frames = 0
        asic = self._network.lab.asic
        for end in _ends(links):
            line = self._network.lines[end]
            if line.cut:
                continue
            frames += line.queued
            octets = line.pull()
            self._network.without_carrier[end.node].add(end)
            if asic is not None and str(end) in asic.ports:
                asic.lose(str(end), octets)
        return frames

    def follow(self, links: Collection[Link], dead: Collection[Link] = ()) -> None:
        """Work as the switches and the kernel have ``links`` work now; those of ``dead`` are out.

        GPUs at a cable with several ports look which of them have carrier.
        """
        network = self._network
        for end in _ends(links):
            self._follow(end)
        for end in _ends(link for link in links if link not in dead):
            if network.lines[end].cut:
                network.lines[end].plug()
                network.without_carrier[end.node].discard(end)
        network.carrier_changed({end.node for end in _ends(links)})

    def _follow(self, end: End) -> None:
        network, asic = self._network, self._network.lab.asic
        if asic is None:
            return
        line, name = network.lines[end], str(end)
        share = asic.rate_share(name) if name in asic.ports else asic.nic_rate_share(name)
        rate_bps = round(network.topology.link_at(end).rate_bps * share)
        if rate_bps != line.rate_bps:
            line.change_rate(rate_bps)
        if name in asic.ports:
            assert asic.virtual is not None
            at = asic.ports[name].index * PORT_WORDS + OVERTAKES
            overtaking = asic.struck(name).reordering > 0
            network.put_ahead(end, (asic.virtual.ports, at) if overtaking else None)


def _ends(links: Iterable[Link]) -> list[End]:
    return sorted(end for link in links for end in link.ends)
