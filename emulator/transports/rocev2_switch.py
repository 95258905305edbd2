"""The switches that RoCEv2 is run on where the user names none: marks and pauses as DCQCN has them.

DCQCN reacts once in some microseconds and by half the rate.  Marks that begin at a fraction of a
bandwidth-delay product suit a window that ECN and delay steer. Here they would leave a link idle
most of the time, and a comparison would measure the thresholds.  So a RoCEv2 fabric is set up as
published ones are: for 400 Gb/s, SimAI's configuration marks from 800 KB on, with 20 % at 3200 KB
and always beyond. Thresholds grow with the rate (the HPCC ns-3 scripts: so much per 25 Gb/s). Where
a port's buffer is smaller they shrink with it, in proportion: with what headroom leaves of it,
whether PFC is on or not, or with all of it where PFC would have no room.  PFC is the last resort:
each port pauses as late as its headroom allows, so that marks come first (DCQCN, SIGCOMM 2015,
section 4).  PAUSE frames name the priority of RoCEv2's data.
"""

from __future__ import annotations

from emulator.dataplane.switch.cable_fitting import headroom_bytes, priority_of
from emulator.dataplane.switch.switch_choice import LOSSLESS
from emulator.rocev2.config import HcaConfig
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.model import Link, Topology

#: Octets for each bit/s of the slowest link.
KMIN, KMAX = 800_000 / 400e9, 3_200_000 / 400e9
PMAX = 0.2
#: Marking begins below this part of what a port may hold.
FULL = 0.8


def marks(topology: Topology) -> tuple[int, int]:
    """The queues (octets) from which some packets are marked, and from which all are."""
    slowest, held, room, fits = _room(topology)
    kmin, kmax = slowest * KMIN, slowest * KMAX
    shrunk = min(1.0, FULL * (room if fits else held) / kmin)
    return round(shrunk * kmin), round(shrunk * kmax)


def _cables(topology: Topology) -> list[Link]:
    switches = {switch.name for switch in topology.switches}
    return [link for link in topology.links if switches & {link.a.node, link.b.node}]


def _room(topology: Topology) -> tuple[int, int, int, bool]:
    """Return the slowest rate, the least buffer, its room without headroom, and if a frame fits."""
    cables = _cables(topology) or topology.links
    mtu = max(link.mtu for link in topology.links)
    pipeline_ns = topology.switch_latency_ns
    room = min(
        link.buffer_bytes
        - headroom_bytes(link.rate_bps, link.delay_ns, mtu, pipeline_ns=pipeline_ns)
        for link in cables
    )
    slowest = min(link.rate_bps for link in cables)
    held = min(link.buffer_bytes for link in cables)
    return slowest, held, room, room >= mtu + PACKET_OVERHEAD_OCTETS


def customary(topology: Topology, *, pfc: bool) -> str:
    """The switch choice for RoCEv2 on ``topology``, lossless or not; marks are the same."""
    if not _cables(topology):
        return LOSSLESS
    _, _, room, fits = _room(topology)
    kmin, kmax = marks(topology)
    marked = f"untrimmed.kmin_bytes={kmin},untrimmed.kmax_bytes={kmax},untrimmed.pmax={PMAX}"
    if not pfc:
        return f"{LOSSLESS}:pfc=off,{marked}"
    pauses = f"pfc_priority={priority_of(HcaConfig.dscp_data)}"
    if fits:
        pauses += f",xoff={room}"
    return f"{LOSSLESS}:{pauses},{marked}"
