"""The frames of a run's capture, one at a time, each with its time and the port that it passed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader

from emulator.dataplane.capture.pcapng import INBOUND, OUTBOUND
from emulator.errors import UserError
from topologies.model import CableEnd, Topology, TopologyError

_SOURCE_MAC = slice(6, 12)  # of an Ethernet frame


@dataclass(frozen=True, slots=True)
class PortFrame:
    """A frame at a port: when (ns of the file's clock), whether it leaves, and its full length."""

    at_ns: int
    end: CableEnd
    leaves: bool
    octets: bytes
    length: int


class CaptureStream:
    """A capture file that is read from its start as often as wanted, never whole.

    ``ports`` are the captured ports, known after a reading.
    """

    def __init__(self, path: Path, topology: Topology) -> None:
        if not path.is_file():
            raise UserError(
                f"{path.parent} has no {path.name}, which a packet is followed in; repeat the run "
                "with --capture all"
            )
        self.path, self._topology = path, topology
        self._beyond: dict[CableEnd, frozenset[bytes]] = {}
        self.ports: frozenset[CableEnd] = frozenset()

    def frames(self) -> Iterator[PortFrame]:
        """Yield all frames in the order of the file; UserError where it is damaged."""
        number = 0
        try:
            with RawPcapNgReader(str(self.path)) as reader:
                for octets, meta in reader:
                    number += 1
                    if not meta.ifname:
                        raise UserError(
                            f"{self.path} does not say at which port a frame was; repeat the run"
                        )
                    end = _end(meta.ifname)
                    known = meta.direction in (INBOUND, OUTBOUND)
                    ticks = (meta.tshigh << 32) + meta.tslow
                    yield PortFrame(
                        ticks * 10**9 // meta.tsresol,
                        end,
                        meta.direction == OUTBOUND if known else self._leaves(end, octets),
                        octets,
                        meta.wirelen,
                    )
                self.ports = frozenset(
                    _end(options["name"])
                    for _, _, options in reader.interfaces
                    if "name" in options
                )
        except (Scapy_Exception, OSError, EOFError, ValueError, struct.error) as error:
            raise UserError(
                f"{self.path} is damaged after frame {number} ({error or 'it ends there'}); "
                "repeat the run"
            ) from None

    def _leaves(self, end: CableEnd, octets: bytes) -> bool:
        """Return whether a frame leaves the port: it comes from nobody beyond its cable.

        Captures of runs by the host's clock do not say it.
        """
        if end not in self._beyond:
            self._beyond[end] = _macs_beyond(self._topology, end)
        return octets[_SOURCE_MAC] not in self._beyond[end]


def _macs_beyond(topology: Topology, end: CableEnd) -> frozenset[bytes]:
    try:
        far = topology.node(topology.far_end(end).node)
    except (KeyError, TopologyError):
        return frozenset()
    macs = {one.mac for _, one in topology.beyond(end)}
    if far.forwards:
        macs |= {port.mac for port in far.ports} | {bridge.mac for bridge in far.bridges}
    return frozenset(bytes.fromhex(mac.replace(":", "")) for mac in macs)


def _end(name: bytes) -> CableEnd:
    node, _, port = name.decode(errors="replace").partition(":")
    return CableEnd(node, port)
