"""Many senders, one port, and a receiver that grants credit (UES 3.6.14), in virtual time."""

import random

import pytest

from tests.harness.uet.bottleneck import Bottleneck, Measured, Port
from uet.congestion.congestion_parameters import NsccParameters, RcccParameters
from uet.congestion.context import CongestionContext
from uet.congestion.controls.nscc import Nscc
from uet.congestion.receiver_credit import CreditPacer, CreditSource
from uet.congestion.spraying.paths import RoundRobin
from uet.wire.codes import NackCode

MS = 1_000_000
P = NsccParameters()
LASTHOP = int(NackCode.TRIMMED_LASTHOP)


class CreditedSender:
    """A context with credit, with NSCC beside it or without, and one flow; never out of data."""

    def __init__(self, *, nscc: bool, now: int) -> None:
        self.context = CongestionContext(
            window=Nscc(P, now, credited=True) if nscc else None,
            credit=CreditSource(RcccParameters()),
            paths=RoundRobin(random.Random(1)),
        )
        self.flow = self.context.flow()
        self.flow.waits(1 << 30)
        self.room = self.context.room
        self.wants_ack = self.context.wants_ack

    @property
    def cwnd(self) -> float:
        return self.context.window_octets

    def on_send(self, size: int) -> None:
        self.flow.on_send(size)

    def on_ack(self, octets: int, marked: bool, rtt: int, now: int) -> None:
        self.flow.on_ack(None, octets, 0, marked, rtt, now)

    def on_nack(self, size: int, code: int, now: int, rtt: int) -> None:
        self.flow.on_nack(size, code, 0, False, now, rtt)

    def on_loss(self, size: int) -> None:
        self.flow.on_loss(size, 0, 0)


class CreditedBottleneck(Bottleneck):
    """Data packets carry ``credit_target``; one CREDIT in so many is lost."""

    def __init__(self, senders: int, port: Port, *, seed: int, nscc: bool, loss: float = 0) -> None:
        super().__init__(
            senders,
            P,
            port,
            seed=seed,
            make=lambda now: CreditedSender(nscc=nscc, now=now),
        )
        self.pacer: CreditPacer[int] = CreditPacer(RcccParameters())
        self.loss = loss
        self.next_tick = -1

    def received(self, sender: int, now: int, *, trimmed: bool) -> None:
        # The target that the packet left with, or a newer one: it only grows.
        word = self.of(sender).context.credit_word()
        self.pacer.on_target(sender, word & 0xFF_FFFF)
        if trimmed:
            self.pacer.on_trim(sender, self.size)
        else:
            self.pacer.on_arrival(sender, self.size)
        self.plan(now)

    def tick(self, now: int) -> None:
        if now == self.next_tick:
            self.next_tick = -1
        for sender, granted in self.pacer.grants(now):
            if self.rng.random() >= self.loss:
                self.send_credit(sender, granted, now)
        self.plan(now)

    def credit(self, sender: int, granted: int) -> None:
        self.of(sender).context.on_credit(0, granted)

    def plan(self, now: int) -> None:
        deadline = self.pacer.next_deadline()
        if deadline is not None and self.next_tick < 0:
            self.next_tick = max(deadline, now)
            self.tick_at(self.next_tick)

    def of(self, sender: int) -> CreditedSender:
        context = self.contexts[sender]
        assert isinstance(context, CreditedSender)
        return context


def lasthop(limit: float = 1.5) -> Port:
    """The receiver's own port: it trims as the last hop, and marks nothing."""
    return Port(mark_from=10**9, mark_all=10**9, limit=int(limit * P.bdp), code=LASTHOP)


def run(senders: int, seed: int, *, nscc: bool, loss: float = 0) -> tuple[Measured, list[int]]:
    bottleneck = CreditedBottleneck(senders, lasthop(), seed=seed, nscc=nscc, loss=loss)
    measured = bottleneck.run(4 * MS, 1 * MS)
    return measured, [int(context.cwnd) for context in bottleneck.contexts]


@pytest.mark.conformance("C-102")
@pytest.mark.parametrize("nscc", [False, True], ids=["credit", "credit and window"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_credit_leaves_no_queue_at_the_last_hop(seed: int, nscc: bool) -> None:
    """After the first collision, which nobody could know of: the queue of NSCC is 9 us long."""
    measured, _ = run(16, seed, nscc=nscc)
    assert measured.utilisation >= 0.97
    assert measured.jain >= 0.99
    assert measured.delay < 0.25 * P.target
    assert measured.trimmed == 0


@pytest.mark.conformance("C-098")
def test_windows_stay_open_for_the_network() -> None:
    """The first collision's trims at the last hop cut none of them."""
    bottleneck = CreditedBottleneck(16, lasthop(limit=1), seed=1, nscc=True)
    measured = bottleneck.run(10 * P.base_rtt, 0)
    assert measured.trimmed > 100
    assert all(context.cwnd > 0.95 * P.max_wnd for context in bottleneck.contexts)


@pytest.mark.conformance("C-101")
@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_lost_credit_costs_next_to_nothing(loss: float) -> None:
    measured, _ = run(8, 1, nscc=True, loss=loss)
    assert measured.utilisation >= 0.95
    assert measured.jain >= 0.98
