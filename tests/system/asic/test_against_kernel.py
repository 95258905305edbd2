"""ECN marks and faults against those of the kernel's own RED and netem, for the same packets.

Kernels without these skip this file; it is among what runs on Debian's (test_stock_kernel.py).
Nothing here depends on time: packets wait in a queue that does not move while they are marked, or
pass at once.  The kernel draws numbers of its own, so what it does is held against what it should
do within five standard deviations, and ours against the same.

**RED.**  Two differences are known and accounted for.

Average.  RED marks by a moving average of the depth, q += W (depth - q); tc(8) derives W from
``burst``.  A data-center switch, and ours, marks by the depth of the moment, which is W = 1: the
kernel takes that (a logarithm of 0), though tc never asks for it.

Spacing.  Floyd and Jacobson (1993, section 7) give two methods to mark with probability p.  Ours is
the first: each packet by itself, so 1/p packets from mark to mark on average.  The kernel's is the
second: the distance from mark to mark is uniform on 1 ... 1/p, which clumps less, and its mean is
only about half as long (:func:`spacing`).  So it is not the share of marked packets that has to
agree, but the p that each share stands for.
"""

import os
import secrets
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from math import sqrt

import pytest
from pyroute2.netlink import NLM_F_CREATE
from pyroute2.netlink.rtnl import RTM_NEWQDISC

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.netlink import U32, attribute, nested, text
from emulator.dataplane.kernel.shaping import TCA_KIND, TCA_OPTIONS, TCMSG
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_counters import reset
from tests.harness.asic.port_bench import LAST, NEAR, Bench, number_of, numbered, profile, udp

pytestmark = pytest.mark.root

SO_SNDBUFFORCE = 32
ETHERNET_AND_WIRE = 24  # what ours counts of a frame besides its length (FCS, preamble, gap)
SMALLEST = 84
CONGESTED = 3
DEVIATIONS = 5


@pytest.fixture(scope="module")
def both() -> Iterator[Bench]:
    """One port for all comparisons: the program is loaded once."""
    if not capabilities.has("netem"):
        pytest.skip("this kernel has neither RED nor netem")
    with ExitStack() as stack:
        lab = f"t{secrets.token_hex(5)}"
        stack.callback(asic_program.remove, lab)
        bench = Bench(stack.enter_context(asic_program.load(lab)), stack)
        bench.out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 256 << 20)
        yield bench


@pytest.fixture
def bench(both: Bench) -> Iterator[Bench]:
    """The port without settings and without a queueing discipline of its own."""
    reset(both.program, NEAR)
    both.program.settings.put(struct.pack("=I", NEAR), bytes(both.program.settings.value_bytes))
    yield both
    tc(both, "qdisc", "del", "dev", f"p{NEAR}", "root", check=False)


def tc(bench: Bench, *arguments: str, check: bool = True) -> None:
    bench.near.inside(
        lambda: subprocess.run(["tc", *arguments], check=check, capture_output=not check)
    )


def send(bench: Bench, frames: list[bytes]) -> None:
    """In order, which frames that two processors pass on at the same time do not keep."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        for frame in frames:
            bench.out.send(frame)
    finally:
        os.sched_setaffinity(0, before)


# --- RED ---------------------------------------------------------------------------------------

FILL = udp(4000, dscp=20, ecn=2)
PROBE = udp(18, dscp=20, ecn=2)  # small: many of them hardly change the depth
PROBES = 1000
KMIN, KMAX = 60, 1060  # in frames like FILL
PMAX = 0.8
#: Where to ask, as shares of the way from Kmin to Kmax.
DEPTHS = (-0.04, 0.1, 0.35, 0.6, 0.85, 1.05)
#: How far the two p may be apart besides by chance: the program counts a smallest frame as 84
#: octets and the kernel as 60, so its probes find the queue a little deeper.
BAND = 0.025
TCA_RED_PARMS, TCA_RED_STAB, TCA_RED_MAX_P, TC_RED_ECN = 1, 2, 3, 1


def spacing(p: float) -> float:
    """Mean distance from mark to mark when it is the least n with n * p >= u, u uniform on 0..1.

    The sum over n of the probability that it is greater, 1 - n p.
    """
    count = int(1 / p)
    return 1 + count - p * count * (count + 1) / 2


def uniform_probability(share: float) -> float:
    """The p of Floyd and Jacobson's second method that marks ``share`` of all packets."""
    low, high = 1e-6, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / spacing(middle) < share else (low, middle)
    return low


def sequence() -> Iterator[tuple[float | None, bytes]]:
    """Frames in the order of arrival; a probe's with the place in :data:`DEPTHS` it asks at."""
    depth = 0
    for place in DEPTHS:
        while depth < (KMIN + place * (KMAX - KMIN)) * len(FILL):
            yield None, FILL
            depth += len(FILL)
        for _ in range(PROBES):
            yield place, PROBE
            depth += len(PROBE)


def expected(overhead: int) -> dict[float, float]:
    """The mean probability of the probes at each place, if ``overhead`` octets of a frame count."""
    depth, sums = 0.0, dict.fromkeys(DEPTHS, 0.0)
    full = len(FILL) + overhead
    for place, frame in sequence():
        if place is not None:
            way = (depth - KMIN * full) / ((KMAX - KMIN) * full)
            sums[place] += 0.0 if way <= 0 else 1.0 if way >= 1 else PMAX * way
        depth += max(len(frame) + overhead, SMALLEST if overhead else 0)
    return {place: total / PROBES for place, total in sums.items()}


def marked_shares(arrived: list[bytes]) -> dict[float, float]:
    counts = dict.fromkeys(DEPTHS, 0)
    for (place, sent), frame in zip(sequence(), arrived, strict=True):
        assert len(frame) == len(sent)
        if place is not None:
            counts[place] += frame[15] & 3 == CONGESTED
    return {place: count / PROBES for place, count in counts.items()}


def kernels_red(bench: Bench) -> dict[float, float]:
    """RED under a token bucket that lets nothing pass until it is told to."""
    device = f"p{NEAR}"
    bucket = ("root", "handle", "1:", "tbf", "limit", "256mb")
    tc(bench, "qdisc", "add", "dev", device, *bucket, "rate", "8bit", "burst", "5000")
    octets = len(FILL)
    span = (KMAX - KMIN) * octets
    flat_out = span.bit_length()  # of no effect beside an exact maximal probability
    parameters = struct.pack(
        "=IIIBBBB", 128 << 20, KMIN * octets, KMAX * octets, 0, flat_out, 0, TC_RED_ECN
    )
    options = nested(
        TCA_OPTIONS,
        attribute(TCA_RED_PARMS, parameters),
        attribute(TCA_RED_STAB, bytes(256)),
        attribute(TCA_RED_MAX_P, U32(round(PMAX * 2**32))),
    )
    header = TCMSG.pack(0, 0, 0, NEAR, 0x10_0000, 0x1_0001, 0)
    body = header + text(TCA_KIND, "red") + options
    bench.near.kernel.queue(RTM_NEWQDISC, NLM_F_CREATE, body, "RED")
    bench.near.kernel.flush()
    send(bench, [frame for _, frame in sequence()])
    tc(bench, "qdisc", "change", "dev", device, *bucket, "rate", "100gbit", "burst", "64mb")
    bench.out.send(LAST)  # sets the bucket going; not ECN-capable, RED itself drops it
    return marked_shares([bench.heard.recv(65536) for _ in sequence()])


def ours(bench: Bench) -> dict[float, float]:
    octets = len(FILL) + ETHERNET_AND_WIRE
    rules = profile(
        "deep",
        untrimmed__kmin_bytes=KMIN * octets,
        untrimmed__kmax_bytes=KMAX * octets,
        untrimmed__pmax=PMAX,
        untrimmed__limit_bytes=None,
    )
    bench.configure(rules, seed=2)
    return marked_shares(bench.exchange(frame for _, frame in sequence()))


def test_marking_probability_by_depth(bench: Bench) -> None:
    """At each depth the two p agree within :data:`BAND` and their confidence.

    That is five standard deviations of the difference, as if all packets were marked
    independently (the kernel's are more regular than that).
    """
    mine = ours(bench)
    bench.program.settings.put(struct.pack("=I", NEAR), bytes(bench.program.settings.value_bytes))
    kernels = kernels_red(bench)
    should_mine, should_kernels = expected(ETHERNET_AND_WIRE), expected(0)
    for place in DEPTHS:
        if not 0 < place < 1:
            assert mine[place] == kernels[place] == (place > 1)
            continue
        p = should_mine[place]
        deviation = sqrt(p * (1 - p) / PROBES)
        assert abs(mine[place] - p) < DEVIATIONS * deviation
        share = 1 / spacing(should_kernels[place])
        assert abs(kernels[place] - share) < DEVIATIONS * sqrt(share * (1 - share) / PROBES) + 0.01
        agree = BAND + DEVIATIONS * sqrt(2) * deviation
        assert abs(uniform_probability(kernels[place]) - mine[place]) < agree


# --- netem -------------------------------------------------------------------------------------

COUNT = 4000


def kernels_order(bench: Bench, *netem: str) -> list[int]:
    """The numbers of the frames that came through ``netem``, as they came."""
    device = ("dev", f"p{NEAR}", "root", "netem", "limit", "10000")
    tc(bench, "qdisc", "add", *device, *netem)
    send(bench, numbered(COUNT, 64, dscp=20, ecn=0))
    tc(bench, "qdisc", "change", *device)  # or the last frame might be lost, too
    return [number_of(frame) for frame in bench.exchange([])]


def our_order(bench: Bench, faults: Faults) -> list[int]:
    bench.configure(profile("lossless"), seed=3, faults=faults)
    send(bench, numbered(COUNT, 64, dscp=20, ecn=0))
    bench.configure(profile("lossless"))
    return [number_of(frame) for frame in bench.exchange([])]


def lost(order: list[int]) -> list[bool]:
    arrived = set(order)
    return [n not in arrived for n in range(COUNT)]


def test_independent_loss(bench: Bench) -> None:
    p = 0.1
    mine = sum(lost(our_order(bench, Faults(loss=p)))) / COUNT
    bench.configure(profile("lossless"))
    kernels = sum(lost(kernels_order(bench, "loss", "random", f"{p:.0%}"))) / COUNT
    for share in (mine, kernels):
        assert abs(share - p) < DEVIATIONS * sqrt(p * (1 - p) / COUNT)


@pytest.mark.parametrize("in_bad", [1.0, 0.5])
def test_bursts_of_loss(bench: Bench, in_bad: float) -> None:
    """The Gilbert-Elliott model: share of lost packets, number and mean length of bursts.

    netem draws the loss before the change of state and we do after it; that is the same chain seen
    one packet later.  With p and r the chances to enter and to leave the bad state and h' that of
    loss in it: p h' / (p + r) are lost, and the loss goes on after a lost packet with probability
    (1 - r) h'.
    """
    p, r = 0.03, 0.2
    mine = lost(our_order(bench, Faults(burst_begin=p, burst_end=r, burst_loss=in_bad)))
    bench.configure(profile("lossless"))
    model = ("loss", "gemodel", f"{p:.0%}", f"{r:.0%}", f"{in_bad:.0%}")
    kernels = lost(kernels_order(bench, *model))
    bad = p / (p + r)
    share, again = bad * in_bad, (1 - r) * in_bad
    # of a sum over a chain whose correlation falls by 1 - p - r a packet
    memory = (2 - p - r) / (p + r)
    variance = (in_bad**2 * bad * (1 - bad) * memory + bad * in_bad * (1 - in_bad)) / COUNT
    length = 1 / (1 - again)
    for gone in (mine, kernels):
        assert abs(sum(gone) / COUNT - share) < DEVIATIONS * sqrt(variance)
        bursts = [len(list(run)) for value, run in groupby(gone) if value]
        assert len(bursts) > 50
        mean = sum(bursts) / len(bursts)
        assert abs(mean - length) < DEVIATIONS * sqrt(again) * length / sqrt(len(bursts))


def test_duplication(bench: Bench) -> None:
    p = 0.1
    mine = our_order(bench, Faults(duplication=p))
    bench.configure(profile("lossless"))
    kernels = kernels_order(bench, "duplicate", f"{p:.0%}")
    for order in (mine, kernels):
        assert sorted(set(order)) == list(range(COUNT))
        twice = len(order) - COUNT
        assert abs(twice / COUNT - p) < DEVIATIONS * sqrt(p * (1 - p) / COUNT)
        assert max(len(list(run)) for _, run in groupby(sorted(order))) == 2


def test_corruption(bench: Bench) -> None:
    """One bit of a frame each: netem's of all that the sender gave, ours of the IP payload."""
    p = 0.1
    sent = numbered(COUNT, 64, dscp=20, ecn=0)
    bench.configure(profile("lossless"), seed=3, faults=Faults(corruption=p))
    send(bench, sent)
    mine = [bench.heard.recv(65536) for _ in range(COUNT)]
    bench.configure(profile("lossless"))
    device = ("dev", f"p{NEAR}", "root")
    tc(bench, "qdisc", "add", *device, "netem", "limit", "10000", "corrupt", f"{p:.0%}")
    send(bench, sent)
    kernels = [bench.heard.recv(65536) for _ in range(COUNT)]
    assert LAST not in mine + kernels
    for arrived in (mine, kernels):
        bits = [
            (int.from_bytes(before, "big") ^ int.from_bytes(after, "big")).bit_count()
            for before, after in zip(sent, arrived, strict=True)
        ]
        assert set(bits) == {0, 1}
        assert abs(sum(bits) / COUNT - p) < DEVIATIONS * sqrt(p * (1 - p) / COUNT)
