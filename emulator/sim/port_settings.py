"""Settings of ports as the switches and faults have them, for whoever works on the ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.sim.link_layer.link_layer import LinkSettings
from emulator.sim.pfc import PauseSettings
from topologies.model import CableEnd


@dataclass(frozen=True, slots=True)
class PortSettings:
    """The queues of the line from a port: one for each DSCP, with the data's share and the limit.

    The share is that of the link that data owns whatever else waits; the limit is in octets (None:
    no limit of the port's own).
    """

    queues: bytes
    low_share: float
    limit: int | None = None
    #: latency of the switch that the port is at, for what arrives there
    pipeline_ns: int = 0
    #: by which the port marks what leaves; None if it does not
    marks: bytes | None = None


@dataclass(frozen=True, slots=True)
class LineChange:
    """Changes of the line from ``end`` by a fault: rate, order, PAUSE frames, link layer, marks.

    None for the latter three: the port has none.
    """

    end: CableEnd
    rate_bps: int
    overtaking: bool
    pauses: PauseSettings | None = None
    link: LinkSettings | None = None
    marks: bytes | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Orders of the switches to all ports: queues, pauses and link layer (None: there is none)."""

    ports: Mapping[CableEnd, PortSettings]
    pauses: Mapping[CableEnd, PauseSettings] | None
    links: Mapping[CableEnd, LinkSettings] | None = None
