"""Flow completion times, and how many times as long flows took as each would alone.

The time of a flow is from the start of its first message until its last one is in the receiver's
memory and verified.  Its time alone is computed, as :mod:`emulator.run.measures.ideal` does it:

    (octets + packets * octets around each payload) / the slower NIC's rate + delays of the path

Nothing beats it, so no slowdown is below 1; storing and forwarding, which it leaves out, keeps
that of a single packet above 1 also where nothing else is under way.  Size classes end at powers
of ten, so that those of different runs are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.arithmetic import nearest_rank
from emulator.run.measures.ideal import speed_between
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Outcome
from emulator.transports.wire_cost import WireCost
from topologies.model import Topology
from topologies.parts.scale_up import ScaleUpDomains

#: The largest flow of each size class but the last (octets).
BOUNDS = (10_000, 100_000, 1_000_000, 10_000_000)
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
Floats = npt.NDArray[np.float64]


def measured(
    topology: Topology,
    outcome: Outcome,
    *,
    each_message: bool = False,
    own: Callable[[Iteration], npt.NDArray[np.bool_]] | None = None,
) -> dict[str, Any]:
    """Return the metrics of the flows of all iterations, by their keys.

    A flow is all that one rank sends to another in an iteration, or with ``each_message`` one
    message.  ``own`` chooses the messages that count; without it all do.
    """
    if outcome.wire is None:
        return {}
    parts = [
        _flows(topology, iteration, outcome.wire, each_message, own)
        for iteration in outcome.iterations
    ]
    octets, time_ns, alone_ns = (
        np.concatenate([part[place] for part in parts]) if parts else np.zeros(0)
        for place in range(3)
    )
    if not len(octets):
        return {}
    slower = time_ns / alone_ns
    classes = np.searchsorted(BOUNDS, octets)
    by_size = []
    for number in np.unique(classes).tolist():
        chosen = classes == number
        by_size.append(
            {
                "up_to_bytes": BOUNDS[number] if number < len(BOUNDS) else None,
                "flows": int(chosen.sum()),
                **_shares(time_ns[chosen], slower[chosen]),
            }
        )
    return {**_shares(time_ns, slower), "fct_by_size": by_size}


def _shares(time_ns: Floats, slower: Floats) -> dict[str, float]:
    times, factors = (time_ns / 1000).tolist(), slower.tolist()
    return {
        "fct_mean_us": fmean(times),
        **{f"fct_{name}_us": nearest_rank(times, share) for name, share in SHARES.items()},
        "slowdown_mean": fmean(factors),
        **{f"slowdown_{name}": nearest_rank(factors, share) for name, share in SHARES.items()},
    }


def _flows(
    topology: Topology,
    iteration: Iteration,
    wire: WireCost,
    each_message: bool,
    own: Callable[[Iteration], npt.NDArray[np.bool_]] | None,
) -> tuple[Floats, Floats, Floats]:
    """Return octets, time and time alone (ns) of the flows that arrived."""
    there = iteration.end_ns >= 0
    if own is not None:
        there &= own(iteration)
    ranks = len(topology.gpus)
    pair = iteration.source[there].astype(np.int64) * ranks + iteration.destination[there]
    pairs, first, of_pair = np.unique(pair, return_index=True, return_inverse=True)
    flow = np.arange(len(pair)) if each_message else of_pair
    count = len(pair) if each_message else len(pairs)
    lengths = iteration.length[there]
    packets = np.maximum(1, -(-lengths // wire.payload_mtu))
    octets: Floats = np.bincount(flow, lengths, count).astype(float)
    begin, end = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(begin, flow, iteration.start_ns[there])
    np.maximum.at(end, flow, iteration.end_ns[there])
    writes = iteration.writes[there][first]
    rate, delay = _speeds(topology, pairs.tolist(), writes.tolist())
    which = of_pair if each_message else np.arange(count)
    around = np.bincount(flow, packets * wire.around_bytes, count) * writes[which]
    alone = (octets + around) * 8e9 / rate[which] + delay[which]
    return octets, end - begin, alone


def _speeds(
    topology: Topology, pairs: Iterable[int], writes: Iterable[bool]
) -> tuple[Floats, Floats]:
    scale_up, ranks = ScaleUpDomains(topology), len(topology.gpus)
    found = []
    for pair, by_write in zip(pairs, writes, strict=True):
        speed = speed_between(topology, scale_up, *divmod(pair, ranks), writes=by_write)
        assert speed is not None
        found.append(speed)
    rate, delay = np.array(found, float).reshape(-1, 2).T
    return rate, delay
