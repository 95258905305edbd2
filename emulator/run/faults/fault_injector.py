"""Brings the cables of a running lab into a condition, and out of it again.

A fault is on record in the lab's directory before the kernel gets it. So another process can find
and heal it, whenever this one ends.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from emulator.dataplane.control_plane.charged_time import Broken
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.lab_record import directory_of
from emulator.dataplane.switch.fault_rates import check_rate
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.run.faults.condition import SOUND, Condition, Element, from_data
from emulator.sim.endpoint.operations.nvlink import Paces
from emulator.whole_file import write_whole
from topologies.model import Link, Topology

RECORD = "faults.json"


def recorded(lab: str, topology: Topology) -> Condition:
    """Return the condition of the cables of ``lab``."""
    try:
        text = _record(lab).read_text()
    except OSError:
        return SOUND
    try:
        return from_data(json.loads(text), topology)
    except (UserError, ValueError) as wrong:
        raise UserError(
            f"{_record(lab)} does not say what is struck in lab {lab} ({wrong}): take the lab "
            f"down with uetemu down {lab}"
        ) from None


def _record(lab: str) -> Path:
    return directory_of(lab) / RECORD


class VirtualCables(Protocol):
    """Whoever holds the frames of all cables, in a lab with a virtual clock."""

    @property
    def lost_in_flight(self) -> int: ...

    def pull(self, links: Collection[Link]) -> int: ...

    def follow(self, links: Collection[Link], dead: Collection[Link] = ()) -> None: ...

    def end_gpus(self, gpus: Collection[str]) -> None: ...

    def replace_gpus(self, gpus: Collection[str]) -> None: ...

    def pace_scale_up(self, steps: Paces) -> None: ...


class FaultInjector:
    """Applies and heals faults of ``lab``'s cables; the caller allows one at a time.

    ``cabling`` holds the frames of the cables; None: the kernel does.  ``flushed`` counts the
    frames that waited in the queues of ports when their cable was pulled.
    """

    def __init__(self, lab: Dataplane, cabling: VirtualCables | None = None) -> None:
        self._lab, self._cabling = lab, cabling
        self.condition = SOUND if lab.directory is None else recorded(lab.name, lab.topology)
        self.flushed = 0
        self._black: dict[str, Link] = {}  # struck besides, by port

    def apply(self, requested: Condition) -> None:
        """Bring the fabric into the condition ``requested``; do nothing if it is already there.

        Raises :class:`UserError`, with nothing changed, for silent faults in a lab without switch
        ASIC and for rates that are too low for the lab's dilation.
        """
        lab, before = self._lab, self.condition
        asic = lab.asic
        if requested.faults and asic is None:
            raise UserError(
                f"lab {lab.name} has no switch ASIC, which injects blackhole, rate, loss and "
                "corrupt: build it with a --switch other than none, or take carrier (down)"
            )
        check_rates(requested, lab.dilation)
        ended, replaced = (
            requested.dead_gpus - before.dead_gpus,
            before.dead_gpus - requested.dead_gpus,
        )
        # Until it is done, and for whoever heals it if it fails, all of both conditions holds.
        self._note(Condition(_union(before, requested), {**before.faults, **requested.faults}))
        pulled, plugged = requested.dead - before.dead, before.dead - requested.dead
        changed = {link for link in lab.topology.links if before.of(link) != requested.of(link)}
        if self._cabling is not None and ended:
            self._cabling.end_gpus(ended)
        # A pulled cable swallows before it is pulled, and takes nothing before it is plugged in.
        self._inject(changed - plugged, requested)
        if pulled:
            if self._cabling is not None:
                self.flushed += self._cabling.pull(pulled)
            else:
                self.flushed += self._waiting(pulled)
            lab.cables.pull(pulled)
            if asic is not None:
                for port in self._ports(pulled):
                    asic.pauses.free(port)
        if asic is not None and requested.dead != before.dead:
            asic.reroute([end for link in requested.dead for end in link.ends])
        if plugged:
            lab.cables.plug(plugged, out=requested.dead)
            for port in self._ports(plugged):
                if asic is not None and self._cabling is None:
                    asic.empty(port)
        self._inject(changed & plugged, requested)
        if self._cabling is not None:
            self._cabling.follow(changed, requested.dead)
            if replaced:
                self._cabling.replace_gpus(replaced)
        self._note(requested)

    def pace_scale_up(self, steps: Paces) -> None:
        """From each time on leave scale-up links the named shares of their rates, others all.

        What is on a link is not lost, so that all is known before it is due.
        """
        if self._cabling is not None:
            self._cabling.pace_scale_up(steps)

    def pretend(self, requested: Condition) -> None:
        """Bring kernel and switches into the condition ``requested`` while virtual time stops.

        Frames, which the engine holds, are left alone.
        """
        before = self.condition
        changed = {
            link for link in self._lab.topology.links if before.of(link) != requested.of(link)
        }
        self.condition = requested
        self._inject(changed, requested)
        self._lab.cables.pull(requested.dead - before.dead)
        self._lab.cables.plug(before.dead - requested.dead, out=requested.dead)

    def injected(self, port: str) -> Faults:
        """Return the present faults of switch port ``port``."""
        return NONE if self._lab.asic is None else self._lab.asic.faulted(port)

    def inject(self, port: str, faults: Faults) -> None:
        """Apply ``faults`` to switch port ``port``, beside the condition of the cables."""
        asic = self._lab.asic
        if asic is None:
            raise UserError("faults need a switch; run without --switch none")
        asic.inject(port, faults)
        self._black.pop(port, None)
        if faults.swallows:
            self._black[port] = asic.port(port).cable
        if self._cabling is not None:
            self._cabling.follow([asic.port(port).cable], self.condition.dead)

    @property
    def broken(self) -> Broken:
        """The cables that carry nothing now."""
        dead = self.condition.dead
        black = {*self.condition.impassable, *self._black.values()}
        return Broken(dead, frozenset(black - dead))

    @property
    def lost_in_flight(self) -> int | None:
        """Return the frames lost on pulled cables; None where only the kernel can count them."""
        return None if self._cabling is None else self._cabling.lost_in_flight

    def _note(self, condition: Condition) -> None:
        self.condition = condition
        if self._lab.directory is not None:  # else it goes with this process, and nobody heals it
            _write(self._lab.name, condition)

    def _inject(self, links: Collection[Link], requested: Condition) -> None:
        asic = self._lab.asic
        if asic is None:
            return
        for link in sorted(links, key=lambda link: link.a):
            ports = list(self._ports([link]))
            for port in ports:  # a NIC has no ASIC: its cable is struck at the switch, both ways
                faults = requested.of(link)
                faults = faults if port == str(link.a) else faults.seen_from_b()
                if faults.one_way == "in" and len(ports) > 1:  # the other end swallows it
                    faults = replace(faults, black_hole=False, one_way="")
                asic.inject(port, replace(faults, arriving=len(ports) == 1))

    def _ports(self, links: Collection[Link]) -> Iterator[str]:
        """The switch ports at the ends of ``links``."""
        for link in links:
            for end in link.ends:
                if self._lab.topology.node(end.node).is_switch:
                    yield str(end)

    def _waiting(self, links: Collection[Link]) -> int:
        """Frames in the queues at both ends of ``links``, which go with the carrier."""
        ends = {str(end) for link in links for end in link.ends}
        ports = self._lab.counters({end.partition(":")[0] for end in ends})
        return sum(
            port.data.backlog_packets + port.control.backlog_packets
            for name, port in ports.items()
            if name in ends
        )


def check_rates(condition: Condition, dilation: float) -> None:
    """Raise :class:`UserError` if a rate is too low to be modelled at ``dilation``."""
    for link, faults in condition.faults.items():
        check_rate(faults, link, f"link {link.a}", dilation)


def _union(before: Condition, after: Condition) -> tuple[Element, ...]:
    return (*before.down, *(one for one in after.down if one not in before.down))


def _write(lab: str, condition: Condition) -> None:
    if condition.sound:
        _record(lab).unlink(missing_ok=True)
    else:
        write_whole(_record(lab), json.dumps(condition.as_data(), indent=2) + "\n")
