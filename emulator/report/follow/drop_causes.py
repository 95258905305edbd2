"""Why a switch dropped a packet, from the counters of its ports at that time and in that row.

The telemetry has drops by port and time, the row's counters have them by port and reason.  A port
whose count rises right after the packet came in is where it went.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property

from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.telemetry import FILE
from emulator.report.run.figures.loss_table import REASONS
from emulator.report.run.port_series import PortSeries, read_series
from emulator.report.run_folder import RunRecord

_PART = "dropped_"
_CLASSES = LAB.classes()
#: The account's cause of all drops that counters of ports have by reason.
_COUNTED = "switch"
#: Times of the telemetry are rounded to the nanosecond.
_ROUNDING_US = 0.002


class DropCauses:
    """The causes of drops in the run of ``record``, which has a virtual clock."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    @cached_property
    def _series(self) -> Mapping[str, PortSeries]:
        found = read_series(self._record.path / FILE)
        return {} if isinstance(found, str) else found

    @cached_property
    def _times_us(self) -> Sequence[float]:
        """Return the times of all samples that found a change anywhere."""
        return sorted({float(at) for one in self._series.values() for at in one.t_us})

    def words(self, node: str, t_us: float, row: int, dscp: int) -> str:
        """Return why ``node`` dropped a packet that came in at ``t_us`` of the run's clock.

        It is a clause about the port, the class and the reason, or empty where no counter tells.
        """
        ports = list(self._risen(node, t_us))
        if not ports:
            return self._by_account(node)
        kind = TrafficClass(_CLASSES[dscp]).name.lower()
        places = " or ".join(f"{port}, class {kind}: {self._reasons(port, row)}" for port in ports)
        return f"dropped at {places}"

    def _risen(self, node: str, t_us: float) -> Sequence[str]:
        """Return the ports of ``node`` that count a drop in the sample after ``t_us``."""
        found = []
        at = bisect_left(self._times_us, t_us - _ROUNDING_US)
        sampled = self._times_us[at] if at < len(self._times_us) else None
        for port, series in self._series.items():
            if port.partition(":")[0] != node or "dropped" not in series.values:
                continue
            count = series.values["dropped"]
            place = int(series.t_us.searchsorted(t_us - _ROUNDING_US))
            if place == len(count) or series.t_us[place] != sampled:
                continue
            if count[place] > (count[place - 1] if place else 0):
                found.append(port)
        return found

    def _reasons(self, port: str, row: int) -> str:
        """Return the reasons that a port counted in a row; a single one is the packet's."""
        counted = self._record.ports[row].ports.get(port, {}) if row in self._record.ports else {}
        reasons = {
            name.removeprefix(_PART): count
            for name, count in counted.items()
            if name.startswith(_PART) and count
        }
        if len(reasons) == 1:
            (name,) = reasons
            return REASONS.get(name, name)
        if not reasons:
            return "its counter of drops rose then, and the row has no reason"
        listed = ", ".join(f"{name} ({count})" for name, count in reasons.items())
        return f"one of the reasons that it counted in this row, {listed}"

    def _by_account(self, node: str) -> str:
        """Return what the account has of drops in ``node`` itself, such as a lack of routes."""
        dropped = self._record.account.get("dropped")
        causes = [
            f"{cause.partition(': ')[2]} ({count})"
            for cause, count in (dropped.items() if isinstance(dropped, dict) else ())
            if cause.partition(": ")[0] == node and cause.partition(": ")[2] not in ("", _COUNTED)
        ]
        return f"the run's account has for {node}: {', '.join(causes)}" if causes else ""
