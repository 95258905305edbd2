"""Reads the ports of a lab around the measured iterations, and keeps the sums of the whole run.

The switches count anew for each trial, so that the deepest queue is that trial's. What they draw at
random is the same for every row; what they had counted before is added up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.switch.cable_counters import LinkCounters, PauseCounters, larger, link_total
from emulator.dataplane.switch.switch_counters import AsicCounters
from emulator.dataplane.switch.telemetry import Telemetry
from emulator.run.measures.port_record import PortRecord, changes, total
from emulator.run.measures.queue_depths import QueueReader, QueueSeries

Asic = Mapping[str, AsicCounters]
Pauses = Mapping[str, PauseCounters]
Links = Mapping[str, LinkCounters]


class PortObserver:
    """The ports of ``lab`` and their counters.

    Without an ASIC there are the kernel's counters alone, and no ``telemetry``.

    ``kernel`` reads the counters of interfaces and of the queues below the ASIC.  ``began`` is
    called when the iterations that count start.
    """

    def __init__(
        self,
        lab: Dataplane,
        telemetry: Telemetry | None = None,
        kernel: Callable[[], Mapping[str, PortCounters]] | None = None,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        self._lab = lab
        self.kernel = kernel or lab.counters
        self._began = began
        self._queues = None if telemetry is None else QueueReader(telemetry)
        self._totals_of_pauses: Pauses = {}
        self._totals_of_links: Links = {}
        self._totals: dict[str, AsicCounters] = {}
        self._before: tuple[Mapping[str, PortCounters], Asic, Pauses, Links] = ({}, {}, {}, {})

    def begin(self) -> None:
        """The iterations that count start now."""
        self.restart()
        self._began()
        if self._queues is not None:
            self._queues.restart()  # what was before is not of interest
        if self._lab.asic is not None:
            self._lab.asic.pauses.restart()
            self._lab.asic.links.restart()
        self._before = (self.kernel(), self._asic(), self._pauses(), self._copied_links())

    def end(self) -> dict[str, PortRecord]:
        """Return what every port has seen since :meth:`begin`, by ``node:port``."""
        kernel, asic, pauses, links = self._before
        return changes(
            (kernel, self.kernel()),
            (asic, self._asic()),
            (pauses, self._pauses()),
            (links, self._copied_links()),
            reserved=self._reserved(),
        )

    def queues(self) -> dict[str, QueueSeries]:
        """The depth of every port's queue since the last call or :meth:`begin`, by sample."""
        return {} if self._queues is None else self._queues.read()

    def restart(self) -> None:
        """Have the switches count from zero, and keep what they had."""
        self._totals_of_pauses = self.pauses()
        self._totals_of_links = self.links()
        if self._lab.asic is not None:
            self._totals = self.totals()
            self._lab.asic.reset()

    def totals(self) -> dict[str, AsicCounters]:
        """Return the counters of every switch port since the fabric was built."""
        return {
            name: total(self._totals.get(name), counters) for name, counters in self._asic().items()
        }

    def pauses(self) -> Pauses:
        """Return pauses of all ports since the fabric was built; empty without PFC.

        Those of a transport with PFC stay when the next one has none.
        """
        now = self._pauses().items()
        earlier = self._totals_of_pauses
        return {**earlier, **{name: larger(earlier.get(name), port) for name, port in now}}

    def links(self) -> Links:
        """Return the link layer's counters of all ports since the fabric was built."""
        return {
            name: link_total(self._totals_of_links.get(name), port)
            for name, port in self._copied_links().items()
        }

    def _reserved(self) -> dict[str, int]:
        """The octets that each switch port keeps for lossless data; empty where it keeps none."""
        asic = self._lab.asic
        if asic is None:
            return {}
        found = {name: asic.fitted.lossless_bytes(port.cable) for name, port in asic.ports.items()}
        return {name: octets for name, octets in found.items() if octets is not None}

    def _copied_links(self) -> Links:
        """Return the link layer's counters as they are now, whatever is counted after."""
        asic = self._lab.asic
        counted = {} if asic is None else asic.links.counters()
        return {name: replace(counters) for name, counters in counted.items()}

    def _pauses(self) -> Pauses:
        return self._lab.asic.pauses.counters() if self._lab.asic is not None else {}

    def _asic(self) -> Asic:
        return self._lab.asic.counters() if self._lab.asic is not None else {}
