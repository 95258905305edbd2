"""Changes of a fabric's lines and GPUs by faults, at the instant of the fault.

Frames that wait at a port are lost with its carrier. So are those on the cable, or in the pipeline
of the switch behind it; a frame that has come through before is not.  A rate holds from the next
frame on.  What the switch program does to frames (loss, corruption, duplication, black hole) needs
nothing here: it happens as they cross the switch.  Where a cable has a link layer, loss and bit
errors are the cable's (:mod:`emulator.sim.link_layer.link_layer`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.sim.endpoint.operations.nvlink import Paces
from emulator.sim.line_state import LineStates
from emulator.sim.link_layer.link_layer import link_settings_of
from emulator.sim.pfc import pause_settings_of
from emulator.sim.port_settings import LineChange
from topologies.model import CableEnd, Link


class Lines(Protocol):
    """The lines of a fabric, whoever works on them."""

    @property
    def lab(self) -> Dataplane: ...

    def states(self) -> LineStates: ...

    def pull(self, ends: Sequence[CableEnd]) -> Mapping[CableEnd, tuple[int, int]]: ...

    def plug(self, ends: Sequence[CableEnd], nodes: Collection[str]) -> None: ...

    def follow(self, changes: Sequence[LineChange]) -> None: ...

    def end_gpus(self, nodes: Sequence[str]) -> None: ...

    def replace_gpus(self, nodes: Sequence[str]) -> None: ...

    def pace_scale_up(self, steps: Paces) -> None: ...


class LineFaults:
    """The ``lines`` of a fabric, for a fault injector."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    @property
    def lost_in_flight(self) -> int:
        """Frames that were on a cable when it was pulled, so far."""
        return sum(line.counts.in_flight for line in self._lines.states().values())

    def pull(self, links: Collection[Link]) -> int:
        """Lose what waits at and flies on ``links``; return how many frames waited."""
        asic = self._lines.lab.asic
        lost = self._lines.pull(_ends(links))
        for end, (_, octets) in lost.items():
            if asic is not None and str(end) in asic.ports:
                asic.lose(str(end), octets)
        return sum(frames for frames, _ in lost.values())

    def follow(self, links: Collection[Link], dead: Collection[Link] = ()) -> None:
        """Work as the switches and the kernel have ``links`` work now; those of ``dead`` are out.

        GPUs at a cable with several ports look which of them have carrier.
        """
        ends = _ends(links)
        if (asic := self._lines.lab.asic) is not None:
            self._lines.follow([self._change(asic, end) for end in ends])
        whole = _ends(link for link in links if link not in dead)
        self._lines.plug(whole, sorted({end.node for end in ends}))

    def end_gpus(self, gpus: Collection[str]) -> None:
        """End the processes of ``gpus`` now."""
        self._lines.end_gpus(sorted(gpus))

    def replace_gpus(self, gpus: Collection[str]) -> None:
        """Give ``gpus`` a new process with the next new transports."""
        self._lines.replace_gpus(sorted(gpus))

    def pace_scale_up(self, steps: Paces) -> None:
        """From each time on leave scale-up links the named shares of their rates, others all."""
        self._lines.pace_scale_up(steps)

    def _change(self, asic: FabricAsic, end: CableEnd) -> LineChange:
        name = str(end)
        of_switch = name in asic.ports
        share = asic.rate_share(name) if of_switch else asic.nic_rate_share(name)
        return LineChange(
            end,
            round(self._lines.lab.topology.link_at(end).rate_bps * share),
            overtaking=of_switch and asic.faulted(name).reordering > 0,
            pauses=pause_settings_of(asic, end) if end in asic.pauses.cables else None,
            link=link_settings_of(asic, end) if end in asic.pauses.cables else None,
            marks=asic.marks_of_departures(name) if of_switch else None,
        )


def _ends(links: Iterable[Link]) -> list[CableEnd]:
    return sorted(end for link in links for end in link.ends)
