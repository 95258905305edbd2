"""Samples of what the ports of a cluster's networks have sent, over the machine's time."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.cluster_lab import ClusterLab
from emulator.dataplane.lab import Lab
from emulator.whole_file import whole_file

INTERVAL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class NetworkSample:
    """``octets`` and ``drops`` of all ports of ``network`` since the run began, at ``at_s``."""

    at_s: float
    network: str
    octets: int
    drops: int


@dataclass(frozen=True, kw_only=True)
class ClusterEvent:
    """Something that the scenario did, ``at_s`` after the run began."""

    at_s: float
    text: str


class NetworkSamples:
    """Samples of every network of ``cluster`` that keeps the host's clock, in a thread.

    Times are in seconds of the machine.
    """

    def __init__(self, cluster: ClusterLab) -> None:
        self._labs = cluster.labs
        #: The thread's own, as a netlink socket answers one question at a time.
        self._watched = {name: Lab.attach(lab.name) for name, lab in cluster.labs.items()}
        self._began = time.monotonic()
        self._first = _counted(self._labs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: list[NetworkSample] = []
        self.events: list[ClusterEvent] = []
        self._thread.start()

    @property
    def now_s(self) -> float:
        """Return the time since the run began (s)."""
        return time.monotonic() - self._began

    def event(self, text: str) -> None:
        """Note ``text`` with the time."""
        self.events.append(ClusterEvent(at_s=self.now_s, text=text))

    def end(self) -> None:
        """Take the last sample and stop."""
        self._ended.set()
        self._thread.join()
        for lab in self._watched.values():
            lab.close()

    def write(self, path: Path) -> None:
        """Write all samples as CSV."""
        with whole_file(path) as fresh, fresh.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("at_s", "network", "octets", "drops"))
            for one in self.samples:
                writer.writerow((f"{one.at_s:.3f}", one.network, one.octets, one.drops))

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the octets and drops of each network since the run began."""
        return {
            network: (octets - self._first[network][0], drops - self._first[network][1])
            for network, (octets, drops) in _counted(self._labs).items()
        }

    def total_rows(self) -> Iterator[Mapping[str, object]]:
        """Yield a row of a result for each network, of what it has carried until now."""
        for network, (octets, drops) in self.totals().items():
            yield {"what": f"octets of {network}", "octets": octets, "drops": drops}

    def port_octets(self, network: str) -> Mapping[str, int]:
        """Return what each port of ``network`` has sent since its lab was built."""
        counters = self._labs[network].counters()
        return {port: counted.tx_bytes for port, counted in counters.items()}

    def _sample(self) -> None:
        while True:
            last = self._ended.wait(INTERVAL_S)
            at_s = self.now_s
            for network, (octets, drops) in _counted(self._watched).items():
                first = self._first[network]
                self.samples.append(
                    NetworkSample(
                        at_s=at_s,
                        network=network,
                        octets=octets - first[0],
                        drops=drops - first[1],
                    )
                )
            if last:
                return


def _counted(labs: Mapping[str, Lab]) -> dict[str, tuple[int, int]]:
    """Return the octets and drops of all ports of each of ``labs`` since it was built."""
    found = {}
    for network, lab in labs.items():
        counters = lab.counters().values()
        octets = sum(one.tx_bytes for one in counters)
        drops = sum(one.data.drops + one.control.drops + one.tx_dropped for one in counters)
        found[network] = octets, drops
    return found
