"""Measure what ``uetemu fep`` costs: its start, its memory when idle, and packets it carries.

The packet rate is told as a ratio to a bare raw socket (:mod:`tests.bench.raw`) through the same
fabric in the same run, so that it means the same on any machine.  One flow of large writes
between two GPUs on different rails, reliable unordered delivery, 4 KiB payloads::

    h1g1 (initiator) -- rail1 -- spine -- rail0 -- h0g0 (target)

The fabric is not slowed down (dilation 1), so that its 400 Gb/s never limit.
"""

import json
import re
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from tests.bench import raw
from tests.harness.lab.endpoint_process import Endpoint, serving
from topologies import catalogue

SPEC = "rail_clos"
SOURCE, TARGET = "h1g1", "h0g0"
ROUNDS = 5
#: Congestion control would take the host for a fabric whose queues never end, and timers that fit
#: the fabric would take the turn of a process for a loss.  1 MiB may be in flight, as of RoCEv2.
PLAIN = (
    *("--set", "cc=none", "--set", "spraying=oblivious", "--set", f"window_bytes={1 << 20}"),
    *("--rto", "500ms", "--set", "nack_retx_time=500ms", "--set", "tail_loss_time=0"),
)


@contextmanager
def reference_lab() -> Iterator[Lab]:
    """The reference fabric, as fast as the machine."""
    name = f"bench-{secrets.token_hex(4)}"
    with Lab.create(
        name, catalogue.load(SPEC), FabricSettings(dilation=1, seed=1, spec=SPEC)
    ) as lab:
        yield lab


def measure(*, rounds: int = ROUNDS) -> dict[str, float]:
    """Measure on the reference fabric; medians over ``rounds``.

    ``endpoint_ready_s``: from the command to an endpoint that serves.  ``endpoint_private_mb``: its
    memory that it shares with nobody.  ``end_to_end_ratio``: data packets per second of an
    endpoint over those of a bare socket.  ``tss_ratio``: the same of an endpoint whose packets are
    secured over one whose are not.
    """
    with reference_lab() as lab, tempfile.NamedTemporaryFile("w", suffix=".json") as keys:
        domain = {"sdi": 1, "mode": "cluster", "keys": {"0": secrets.token_hex(32)}}
        json.dump([domain], keys)
        keys.flush()
        starts = [start_cost(lab) for _ in range(rounds)]
        ready, private = (statistics.median(column) for column in zip(*starts, strict=True))
        rates = in_turn(
            {
                "bare": partial(raw.packet_rate, lab, SOURCE, TARGET, 1.0),
                "uet": partial(packets_per_s, "fep", lab, *PLAIN),
                "secured": partial(packets_per_s, "fep", lab, *PLAIN, "--keys", keys.name),
            },
            rounds,
        )
    return {
        "endpoint_ready_s": ready,
        "endpoint_private_mb": private,
        "bare_packets_per_s": statistics.median(rates["bare"]),
        "uet_packets_per_s": statistics.median(rates["uet"]),
        "end_to_end_ratio": ratio(rates["uet"], rates["bare"]),
        "tss_ratio": ratio(rates["secured"], rates["uet"]),
    }


def start_cost(lab: Lab) -> tuple[float, float]:
    """Start a target as a user does: seconds until it serves, and its private memory (MB)."""
    begin = time.perf_counter()
    target = Endpoint("fep", "target", "--gpu", f"{lab.name}:{TARGET}", fresh=True)
    try:
        target.wait_for("start")
        return time.perf_counter() - begin, private_octets(target.process.pid) / 1e6
    finally:
        target.end(signal.SIGTERM)


def private_octets(pid: int) -> int:
    """Memory of process ``pid`` that no other process shares (``smaps_rollup``)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.M)))


def packets_per_s(verb: str, lab: Lab, *words: str) -> float:
    """Data packets a second of 16 writes of 4 MiB, all posted at once, by two processes.

    Retransmissions are not counted.  ``words`` are options of both.
    """
    with serving(verb, lab, TARGET, *words):
        source = Endpoint(
            *(verb, "initiator", "--gpu", f"{lab.name}:{SOURCE}", *words, "--in-flight", "0"),
            *("--peer" if verb == "fep" else "--connect", TARGET, "write:4M,count=16,step=0"),
        )
        assert source.end() == 0, (source.events, source.error)
    last = max(completion["elapsed_us"] for completion in source.completions())
    return source.counters["tx_data_packets"] / (last * 1e-6 * lab.dilation)


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each of ``ways``, one after the other, ``rounds`` times."""
    measured = [{name: way() for name, way in ways.items()} for _ in range(rounds)]
    return {name: [values[name] for values in measured] for name in ways}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of what was measured in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
