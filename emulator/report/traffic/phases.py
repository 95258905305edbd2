"""The packets of a phase: what passes between two GPUs while a message of theirs is under way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from emulator.report.follow.search import owners
from emulator.report.traffic.frames import CapturedTraffic, LinkFrames
from emulator.report.traffic.measures import Counts, Numbers, union
from emulator.report.traffic.messages import Messages
from topologies.model import Topology

#: Times of a timeline are rounded to so many us.
_ROUNDED_US = 0.001


def packets_of(messages: Messages, traffic: CapturedTraffic, topology: Topology) -> CapturedTraffic:
    """Return the packets between two GPUs while one of ``messages`` is under way between them.

    A message is under way from its post until both ends know that it is over, so that
    acknowledgements count.  Packets whose addresses are not those of GPUs, as a tunnel's are, count
    while any of the messages is under way.  These times are the ``times`` of what is returned.
    """
    assert messages.begin_us is not None
    assert messages.over_us is not None
    count = len(messages.gpus)
    ranks = {name: rank for rank, name in enumerate(messages.gpus)}
    rank_of = {address: ranks[name] for address, name in owners(topology).items()}
    ends = [(rank_of.get(one.source), rank_of.get(one.destination)) for one in traffic.tuples]
    anyone = count * count
    pair_of = np.array(
        [anyone if a is None or b is None else min(a, b) * count + max(a, b) for a, b in ends],
        np.int64,
    )
    sent = messages.over_fabric
    pairs = np.minimum(messages.source, messages.destination) * count
    pairs += np.maximum(messages.source, messages.destination)
    begin, over = messages.begin_us[sent], messages.over_us[sent]
    times = union(begin, over)
    # The times of each pair stand one behind the other on one axis.
    width = max(traffic.span[1], float(over.max(initial=0.0))) + 4
    shifts = np.concatenate([pairs[sent], np.full(len(times[0]), anyone)]) * width + 2
    first, last = union(
        np.concatenate([begin, times[0]]) + shifts - _ROUNDED_US,
        np.concatenate([over, times[1]]) + shifts + _ROUNDED_US,
    )

    def within(link: LinkFrames) -> npt.NDArray[np.bool_]:
        at = pair_of[link.tuples] * width + 2 + link.begin_us
        place = np.searchsorted(first, at, "right") - 1
        return (place >= 0) & (at <= last[place]) if len(first) else np.zeros(len(at), bool)

    links = [_of(one, within(one)) for one in traffic.links]
    return replace(traffic, links=[one for one in links if len(one.octets)], times=times)


def _of(link: LinkFrames, chosen: npt.NDArray[np.bool_]) -> LinkFrames:
    def part(column: Counts) -> Counts:
        return column[chosen]

    begin_us: Numbers = link.begin_us[chosen]
    return replace(
        link,
        begin_us=begin_us,
        octets=part(link.octets),
        tuples=part(link.tuples),
        services=part(link.services),
        ttl=part(link.ttl),
        packets=part(link.packets),
    )
