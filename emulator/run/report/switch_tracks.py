"""The ports of switches in a timeline: depth of queues, data rates, marks, trims and drops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import numpy.typing as npt

from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.report.trace_events import Event, counter_event, named, slice_event
from emulator.sim.endpoint.operations.operation_table import distinct

#: Samples beyond which ports are left out: what a viewer still opens.
SAMPLES_SHOWN = 100_000

_Times = npt.NDArray[np.float64]


def shown_ports(
    queues: Mapping[str, QueueSeries], begin_ns: int, end_ns: int
) -> dict[str, QueueSeries]:
    """Return the series, from ``begin_ns`` to ``end_ns``, of the ports that carried data.

    Of many samples those of the deepest queues are there, with :data:`SAMPLES_SHOWN` at most.
    """
    inside = {name: _within(series, begin_ns, end_ns) for name, series in queues.items()}
    busy = [
        name
        for name, series in inside.items()
        if len(series.admitted) and np.ptp(series.admitted) > 0
    ]
    busy.sort(key=lambda name: -float(inside[name].octets.max()))
    shown: dict[str, QueueSeries] = {}
    samples = 0
    for name in busy:
        samples += len(inside[name].t_ns)
        if shown and samples > SAMPLES_SHOWN:
            break
        shown[name] = inside[name]
    return shown


def events(
    ports: Mapping[str, QueueSeries],
    pids: Iterator[int],
    tids: Iterator[int],
    span_ns: tuple[int, int],
) -> Iterator[Event]:
    """Yield the events of ``ports``, a process for each switch, from ``span_ns[0]`` on."""
    ticks = distinct(np.concatenate([series.t_ns for series in ports.values()] or [np.zeros(0)]))
    for switch, names in groupby(sorted(ports), key=lambda name: name.partition(":")[0]):
        pid = next(pids)
        yield named("process_name", switch, pid)
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for name in names:
            port, series = name.partition(":")[2], ports[name]
            at = series.t_ns - span_ns[0]
            for moment, octets in zip(at.tolist(), series.octets.tolist(), strict=True):
                yield counter_event(f"{port} queue", "octets", pid, moment, octets)
            for moment, rate in rates(series, ticks):
                yield counter_event(
                    f"{port} data rate", "Gbit/s", pid, moment - span_ns[0], round(rate, 3)
                )
            yield from _counts(port, series, (pid, tids), span_ns[0])


def rates(series: QueueSeries, ticks: _Times) -> Iterator[tuple[float, float]]:
    """Yield times, and the rate (Gbit/s) at which data came through the cable from then on.

    ``ticks`` are the times of all ports' samples.  A port without a sample at one of them had not
    changed, so that what a sample finds left after the tick before it.  The last rate stands until
    the end: there is no record of what comes after the last sample.
    """
    places = np.searchsorted(ticks, series.t_ns)
    # The loss of what waited when a cable was pulled is counted later, and what has arrived never
    # becomes less: no more had arrived at any time than at a later one.
    left = np.diff(np.minimum.accumulate(series.arrived[::-1])[::-1])
    last = 0.0
    for number, octets in enumerate(left.tolist(), 1):
        begin = float(ticks[places[number] - 1])
        if last and places[number] - 1 > places[number - 1]:
            yield float(series.t_ns[number - 1]), 0.0
        last = max(0.0, octets * 8 / (float(series.t_ns[number]) - begin))
        yield begin, last
    if last and places[-1] + 1 < len(ticks):
        yield float(series.t_ns[-1]), 0.0


def _counts(
    port: str, series: QueueSeries, place: tuple[int, Iterator[int]], origin_ns: int
) -> Iterator[Event]:
    """Yield a moment for each sample after which more packets were marked, trimmed or dropped."""
    pid, tids = place
    tid: int | None = None
    kinds = {"marked": series.marked, "trimmed": series.trimmed, "dropped": series.dropped}
    found = [
        (float(series.t_ns[at + 1]), name, float(changes[at]))
        for name, counts in kinds.items()
        if counts is not None and len(counts)
        for changes in [np.diff(counts)]
        for at in np.flatnonzero(changes > 0).tolist()
    ]
    for at_ns, name, packets in sorted(found):
        if tid is None:
            tid = next(tids)
            yield named("thread_name", f"{port} marks", pid, tid)
        moment = int(at_ns) - origin_ns
        title = f"{packets:.0f} {name}"
        yield slice_event(title, name, (pid, tid), (moment, moment), {"packets": packets})


def _within(series: QueueSeries, begin_ns: int, end_ns: int) -> QueueSeries:
    """Return the samples from ``begin_ns`` to ``end_ns``, and those just before and after."""
    first = max(0, int(np.searchsorted(series.t_ns, begin_ns, side="right")) - 1)
    last = int(np.searchsorted(series.t_ns, end_ns, side="right")) + 1

    def part(values: _Times | None) -> _Times | None:
        return None if values is None else values[first:last]

    return QueueSeries(
        np.maximum(series.t_ns[first:last], begin_ns),
        series.octets[first:last],
        series.admitted[first:last],
        part(series.lost),
        part(series.marked),
        part(series.trimmed),
        part(series.dropped),
    )
