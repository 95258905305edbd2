"""The ports of one GPU's NIC, and the lines behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from emulator.dataplane.dataplane import HostPort
from emulator.sim.endpoint.endpoint_spec import PortSpec
from emulator.sim.line import Line
from uet.congestion.spraying.port_entropy import remaining
from uet.transport import Frame

_IPV4: Final = 4
_VERSION_AT: Final = 14
_MACS: Final = 12
#: Where the entropy value stands in a frame: behind the IP header, which has no options.
_ENTROPY4_AT: Final = 34
_ENTROPY6_AT: Final = 54


def hash_of(header: bytes) -> int:
    """Return the hash of a frame's entropy value.

    See :func:`uet.congestion.spraying.port_entropy.hash_of`.
    """
    at = _ENTROPY4_AT if header[_VERSION_AT] >> 4 == _IPV4 else _ENTROPY6_AT
    return header[at] ^ header[at + 1]


@dataclass(slots=True)
class NicCounts:
    """Frames and octets that one port has sent and received.

    ``gpu_dead`` are those received that the NIC dropped, since its GPU is dead.
    """

    frames_out: int = 0
    octets_out: int = 0
    frames_in: int = 0
    octets_in: int = 0
    link_down: int = 0
    gpu_dead: int = 0


@dataclass
class GpuPort:
    """One ``interface`` of a GPU, and the lines (several of a bond) that frames leave by."""

    spec: PortSpec
    interface: HostPort
    lines: Sequence[Line]
    counts: NicCounts = field(default_factory=NicCounts)
    #: takes frames that have come, with the time (ns): the endpoint's
    receive: Callable[[Sequence[memoryview], int], None] | None = None

    @property
    def carrier(self) -> bool:
        """Return whether a line has carrier."""
        for line in self.lines:  # noqa: SIM110  asked for every frame
            if not line.cut:
                return True
        return False

    def lose(self, octets: int) -> None:
        """A frame of ``octets`` on the wire has no way out; it takes a line's time all the same."""
        line = next((line for line in self.lines if not line.busy), self.lines[0])
        line.occupy(octets)

    def counters(self) -> dict[str, int]:
        """Frames and octets, both ways."""
        counts = self.counts
        return {
            "frames_in": counts.frames_in,
            "octets_in": counts.octets_in,
            "socket_drops": self.interface.lost,
            "frames_out": counts.frames_out,
            "octets_out": counts.octets_out,
            "link_down": counts.link_down,
            "gpu_dead": counts.gpu_dead,
            "pending": sum(line.queued for line in self.lines),
        }


class PortChoice:
    """The choice of a NIC's port by the entropy value of the frame."""

    def __init__(self, ports: Sequence[GpuPort]) -> None:
        self._macs = [port.spec.macs for port in ports]
        self._ports = ports
        self.look()

    def look(self) -> None:
        """Take the ports that have carrier now, or all if none has."""
        up = [number for number, port in enumerate(self._ports) if port.carrier]
        self.usable: Sequence[int] = up or list(range(len(self._ports)))
        self._choice = remaining(len(self._ports), self.usable)

    def of(self, frame: Frame) -> tuple[GpuPort, Frame]:
        """The port that ``frame`` leaves by, and the frame with that port's MACs."""
        header = frame[0]
        number = self._choice[hash_of(header)]
        if number:
            frame = self._macs[number] + header[_MACS:], frame[1]
        return self._ports[number], frame
