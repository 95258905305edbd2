"""The capture of a run: frames by port, their iteration and fabric time, and pauses of ports."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from emulator.dataplane.capture.pcapng import OUTBOUND, read_packets
from emulator.dataplane.switch.pause import ETHERTYPE, duration_ns, quanta
from emulator.dataplane.switch.switch_choice import requested
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.run_files import CAPTURE, EPOCH_S
from topologies.model import CableEnd, Topology, TopologyError


def without_capture(folder: Path) -> str:
    """Return why a run folder has no capture, and how to have one."""
    if (folder / f"{CAPTURE}.gz").is_file():
        return f"{CAPTURE}.gz is compressed: gunzip it"
    return (
        f"the run folder has no {CAPTURE} (--capture none, or the run ended early); repeat the run "
        "with --capture all"
    )


#: What is said of a capture that ends within a packet.
CUT = "{} ends in the middle of a packet, as of a run that was killed"


@dataclass(frozen=True)
class RunPeriod:
    """An iteration of a row, both counted from 1; ``row`` 0 is another time, with its ``name``."""

    row: int
    number: int
    begun_ns: int
    name: str = "a warm-up"

    def __str__(self) -> str:
        return f"row {self.row}, iteration {self.number}" if self.row else self.name


class CaptureClock:
    """The clock of a run's capture.

    On the virtual clock a time in the file is fabric time since 2000-01-01.  On the host's clock it
    is the machine's, ``dilation`` times as long, and belongs to no iteration.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.virtual = not record.by_host_clock
        dilation = record.result.get("dilation")
        usable = isinstance(dilation, int | float) and dilation > 0 and not self.virtual
        self.dilation = float(dilation) if usable and dilation is not None else 1.0

    @cached_property
    def iterations(self) -> list[RunPeriod]:
        """Return the measured iterations and the times around them, in order of time."""
        epoch_ns = EPOCH_S * 10**9 if self.virtual else 0
        begins = {epoch_ns: RunPeriod(0, 0, epoch_ns)}
        if not self.virtual:
            begins = {epoch_ns: RunPeriod(0, 0, epoch_ns, "the run")}
        else:
            for number, row in enumerate(self._record.rows, 1):
                times = self._record.times_us(number)
                for count, at_us in enumerate(self._record.began_us(number), 1):
                    length = times[count - 1] if count <= len(times) else row.get("time_us") or 0
                    begun, end = (epoch_ns + round(at * 1000) for at in (at_us, at_us + length))
                    begins[begun] = RunPeriod(number, count, begun)
                    begins.setdefault(end, RunPeriod(0, 0, end))
        return [begins[at] for at in sorted(begins)]

    def period(self, at_ns: int) -> int:
        """Return the index of the iteration that was the last to begin before ``at_ns``."""
        return max(0, bisect_right(self.iterations, at_ns, key=lambda one: one.begun_ns) - 1)

    def origin_ns(self, period: int, first_ns: int) -> int:
        """Return the time that a reader's times count from: the iteration's begin, if it is known.

        It is the first sighting of the packet else.
        """
        one = self.iterations[period]
        return one.begun_ns if one.row else first_ns

    def latency_us(self, period: int) -> float:
        """Return the latency of the switches' pipeline in a period, by the row's switch.

        Of a warm-up it is that of the run's switch.
        """
        row = self.iterations[period].row
        facts = self._record.rows[row - 1] if row else self._record.result
        try:
            choice = requested(str(facts.get("switch")))
        except UserError:
            return 0.0  # a run of several switches, or of another version
        return 0.0 if choice is None else choice.latency_ns / 1000

    def fabric_us(self, duration_ns: int) -> float:
        """Return a duration of the file as fabric time."""
        return duration_ns / self.dilation / 1000


_SOURCE_MAC = slice(6, 12)  # of an Ethernet frame


class PortFrame(NamedTuple):
    """A frame at a port: when (ns of the file's clock), whether it leaves, and its full length."""

    at_ns: int
    end: CableEnd
    leaves: bool
    octets: bytes
    length: int


class CaptureStream:
    """A capture file that is read from its start as often as wanted, never whole.

    After a reading ``ports`` are the captured ports, and ``cut`` is a sentence if the file ends
    within a packet.
    """

    def __init__(self, path: Path, topology: Topology) -> None:
        if not path.is_file():
            reason = without_capture(path.parent)
            raise UserError(f"{path.parent}: {reason}")
        self.path, self._topology = path, topology
        self._beyond: dict[CableEnd, frozenset[bytes]] = {}
        self.ports: frozenset[CableEnd] = frozenset()
        self.cut = ""

    def frames(self) -> Iterator[PortFrame]:
        """Yield all frames in the order of the file; UserError where it is damaged."""
        number = 0
        ends: dict[str, CableEnd] = {}
        names: set[str] = set()
        try:
            for at_ns, port, way, length, octets in read_packets(self.path, names):
                number += 1
                end = ends.get(port)
                if end is None:
                    if not port:
                        raise UserError(
                            f"{self.path} does not say at which port a frame was; repeat the run"
                        )
                    end = ends[port] = _end(port)
                leaves = way == OUTBOUND if way else self._leaves(end, octets)
                yield PortFrame(at_ns, end, leaves, octets, length)
        except EOFError:
            self.cut = CUT.format(self.path.name)
        except (OSError, ValueError, zlib.error) as error:
            raise UserError(
                f"{self.path} is damaged after frame {number} ({error}); repeat the run"
            ) from None
        self.ports = frozenset(map(_end, names))

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


def _end(name: str) -> CableEnd:
    node, _, port = name.partition(":")
    return CableEnd(node, port)


_TYPE, _CONTROL_AT, _SHORTEST = ETHERTYPE.to_bytes(2, "big"), 14, 34
#: PAUSE frames of a port that are kept, at most.
MOST_FRAMES = 100_000


@dataclass(frozen=True, slots=True)
class PortPause:
    """A part of a wait: ``priority`` of a port was stopped for ``stopped_ns`` of it."""

    priority: int
    stopped_ns: int


@dataclass
class PauseTimes:
    """Times in which PAUSE frames stopped ports; ``topology`` has the rates of its links.

    A frame stops its classes for so many quanta of the link, and replaces what an earlier one said
    of them; 0 quanta let them go on (IEEE 802.1Q 36, IEEE 802.3 annex 31B).
    """

    topology: Topology
    _frames: dict[CableEnd, list[tuple[int, Mapping[int, int]]]] = field(default_factory=dict)

    def take(self, frame: PortFrame) -> bool:
        """Keep ``frame`` if it stops or releases its port; return whether it is MAC control."""
        if frame.octets[_CONTROL_AT - 2 : _CONTROL_AT] != _TYPE:
            return False
        if not frame.leaves and len(frame.octets) >= _SHORTEST:
            meant = quanta(frame.octets[:6], frame.octets[_CONTROL_AT:])
            kept = self._frames.setdefault(frame.end, [])
            if meant and len(kept) < MOST_FRAMES:
                kept.append((frame.at_ns, meant))
        return True

    def during(self, end: CableEnd, begin_ns: int, end_ns: int) -> Iterator[PortPause]:
        """Yield the priorities that were stopped at port ``end`` in a time of the file's clock."""
        stopped: dict[int, int] = {}
        for priority, since, until in self._stops(end):
            part = min(until, end_ns) - max(since, begin_ns)
            if part > 0:
                stopped[priority] = stopped.get(priority, 0) + part
        yield from (PortPause(priority, part) for priority, part in stopped.items())

    def released(self, end: CableEnd, begin_ns: int, end_ns: int) -> Iterator[PortPause]:
        """Yield the stops of port ``end`` that were over in a time, each with its whole length."""
        for priority, since, until in self._stops(end):
            if begin_ns <= until <= end_ns:
                yield PortPause(priority, until - since)

    def _stops(self, end: CableEnd) -> Iterator[tuple[int, int, int]]:
        """Yield each time in which a priority was stopped without interruption."""
        frames = self._frames.get(end, [])
        if not frames:
            return
        rate_bps = self.topology.link_at(end).rate_bps
        for priority in sorted({one for _, meant in frames for one in meant}):
            since = until = 0
            for at_ns, meant in frames:
                if priority not in meant:
                    continue
                if until <= at_ns:  # the stop before ran out
                    if since < until:
                        yield priority, since, until
                    since = at_ns
                until = at_ns + duration_ns(meant[priority], rate_bps)
            if since < until:
                yield priority, since, until
