"""Congestion control at the endpoint: CNPs out and in, and frames spaced by the rate."""

from itertools import pairwise
from typing import Any

import pytest

from emulator.rocev2.config import RECOVERIES
from emulator.rocev2.congestion.dcqcn_parameters import DcqcnParameters
from emulator.rocev2.congestion.pacing import Pacer
from emulator.rocev2.wire.codes import timeout_ns
from tests.harness.rocev2.ends import KEY, THERE, adapter, qpn
from tests.harness.rocev2.lone import Lone
from topologies.ethernet import FRAMING_OCTETS
from uet.config_checks import ConfigurationError
from uet.transport import WriteRequest

MTU = 1024
LINE = 10 * 10**9
CE, ECT0 = 3, 2
FRAME = 14 + 20 + 8 + 12 + MTU + 4


def dcqcn(**parameters: Any) -> Lone:
    end = Lone(cc="dcqcn", line_rate=LINE, **parameters)
    end.hca.register(memoryview(bytearray(64 * MTU)), key=KEY)
    return end


def marked(end: Lone, number: int, *, tos: int = CE, qp: int = 0) -> bytes:
    return end.write(end.psn + number, b"x", key=KEY, tos=26 << 2 | tos, ask=False, dqpn=qpn(0, qp))


@pytest.mark.conformance("R-038", "R-001")
@pytest.mark.parametrize("dscp", [48, 46])
def test_a_cnp(dscp: int) -> None:
    end = dcqcn(dscp_cnp=dscp)
    assert end.ask(marked(end, 0, tos=ECT0)) == []
    (cnp,) = end.ask(marked(end, 1))
    assert (cnp.opcode, cnp.dqpn, cnp.psn, cnp.ackreq) == (0x81, qpn(1), 0, 0)
    assert cnp.bth["becn"] == 1
    assert cnp.bth["fecn"] == cnp.bth["solicited"] == cnp.bth["padcount"] == 0
    assert cnp.frame[54:70] == bytes(16)
    assert (len(cnp.frame), cnp.tos >> 2) == (74, dscp)
    assert end.hca.counts["tx_cnps"] == 1
    assert end.hca.counts["rx_ecn_marked_packets"] == 1


@pytest.mark.conformance("R-037")
def test_cnps_of_queue_pairs_are_apart_and_independent() -> None:
    end = dcqcn(qps=2)
    interval = DcqcnParameters.named("mlx", LINE).cnp_interval
    times: dict[int, list[int]] = {qpn(1, 0): [], qpn(1, 1): []}
    step = interval // 7
    for number in range(100):
        end.now = number * step
        for qp in range(2):
            for cnp in end.ask(marked(end, number, qp=qp)):
                times[cnp.dqpn].append(end.now)
    for several in times.values():
        apart = [later - earlier for earlier, later in pairwise(several)]
        assert apart
        assert interval <= min(apart)
        assert max(apart) <= interval + step
    assert times[qpn(1, 0)] == times[qpn(1, 1)]


def test_queue_pairs_of_a_port_can_share_the_spacing_of_cnps() -> None:
    end = dcqcn(qps=2, dcqcn={"cnp_per_port": 1})
    interval = DcqcnParameters.named("mlx", LINE).cnp_interval
    answered = []
    for number in range(10):
        end.now = number * interval // 2
        for qp in (number % 2, 1 - number % 2):
            answered += [(number, cnp.dqpn) for cnp in end.ask(marked(end, number, qp=qp))]
    assert answered == [(number, qpn(1, 0)) for number in range(0, 10, 2)]
    other = dcqcn(dcqcn={"cnp_per_port": 1})
    assert len(other.ask(marked(other, 0))) == 1


def test_marks_on_what_is_out_of_sequence_count_too() -> None:
    end = dcqcn()
    answers = end.ask(marked(end, 5))
    assert sorted(packet.opcode for packet in answers) == [0x11, 0x81]


def test_a_marked_acknowledgement_draws_no_cnp() -> None:
    """Who sent it has no rate to reduce; its mark is counted."""
    end = dcqcn()
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(b"x")))
    end.take()
    end.give(end.frame(0x11, end.first, {"syndrome": 0x1F, "msn": 1}, tos=26 << 2 | CE))
    assert [c.error for c in end.done()] == [None]
    assert end.take() == []
    assert end.hca.counts["rx_ecn_marked_packets"] == 1
    assert end.hca.counts["tx_cnps"] == 0


def test_without_congestion_control_nobody_is_told() -> None:
    end = Lone()
    end.hca.register(memoryview(bytearray(MTU)), key=KEY)
    assert end.ask(marked(end, 0)) == []
    assert end.hca.counts["rx_ecn_marked_packets"] == 1
    assert "tx_cnps" not in end.hca.counters()
    assert dcqcn().hca.counters()["tx_cnps"] == 0  # nobody had to be told yet


class Fixed:
    """A limiter whose rate the test sets."""

    def __init__(self, rate_bps: float) -> None:
        self.rate_bps = rate_bps
        self.limited = True
        self.octets = 0

    def on_cnp(self, now: int) -> None:
        self.rate_bps /= 2

    def on_sent(self, octets: int, now: int) -> None:
        self.octets += octets

    def next_deadline(self) -> int | None:
        return None

    def advance(self, now: int) -> None: ...


def paced(rate: float, burst: int) -> tuple[Lone, Fixed]:
    end = Lone(timeout=0)
    limiter = Fixed(rate)
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    qp.pacer = Pacer(limiter, burst)
    return end, limiter


def leave(end: Lone, until: int) -> list[int]:
    """Return when frames of requests and responses leave, as an exact loop would have it."""
    times = []
    while end.now < until:
        times += [end.now for packet in end.take() if packet.payload]
        due = end.hca.next_deadline()
        end.now = until if due is None or due > until else max(due, end.now + 1)
    return times


@pytest.mark.parametrize("burst", [1, 8_192])
def test_requests_leave_at_the_rate(burst: int) -> None:
    rate = 10**9
    end, limiter = paced(rate, burst)
    end.hca.post(
        WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(2_000 * MTU)))
    )
    spacing = (FRAME + FRAMING_OCTETS) * 8 * 10**9 // rate
    times = leave(end, 100 * spacing)
    assert len(times) == pytest.approx(100, abs=burst / FRAME + 2)
    apart = [b - a for a, b in pairwise(times[10:])]
    assert min(apart) >= spacing - 200  # the first frame is longer: it has a RETH
    assert max(apart) <= spacing + 200
    assert limiter.octets == pytest.approx(len(times) * (FRAME + FRAMING_OCTETS), rel=0.01)


def test_a_cnp_puts_off_the_frame_that_waits() -> None:
    rate = 10**9
    end, _ = paced(rate, 1)
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(100 * MTU))))
    leave(end, 1)
    before = end.hca.next_deadline()
    end.give(end.frame(0x81, 0, {}))
    end.take()
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    assert qp.pacer is not None
    assert before is not None
    assert qp.pacer.next == pytest.approx(2 * before, abs=2)
    assert end.hca.counts["rx_cnps"] == 1


def test_responses_to_reads_are_paced_at_the_responder() -> None:
    rate = 10**9
    end, _ = paced(rate, 1)
    end.hca.register(memoryview(bytearray(64 * MTU)), key=KEY)
    end.give(end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": 50 * MTU}))
    spacing = (FRAME + FRAMING_OCTETS) * 8 * 10**9 // rate
    times = leave(end, 30 * spacing)
    assert len(times) == pytest.approx(30, abs=2)
    # An acknowledgement does not wait for that.
    assert [p.opcode for p in end.ask(end.frame(0x81, 0, {}))] == []


def test_timers_that_are_put_off_do_not_pile_up() -> None:
    """Each message has a frame that waits for its time, and a retry timer that is put off."""
    end = Lone(timeout=20)
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    qp.pacer = Pacer(Fixed(10**9), 1)
    for number in range(300):
        end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(MTU))))
        end.take()
        end.now = end.hca.next_deadline() or end.now
        end.take()
        end.give(end.ack(end.first + number))
        end.take()
    assert len(end.done()) == 300
    assert len(end.hca._timers) <= 4  # noqa: SLF001  memory alone


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("trouble", ["nak", "timeout"])
def test_what_waits_for_the_rate_does_not_use_up_retries(recovery: str, trouble: str) -> None:
    """A frame at this rate takes longer than all retries would."""
    end = Lone(timeout=5, retry_cnt=2, recovery=recovery)
    limiter = Fixed(10**11)
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    qp.pacer = Pacer(limiter, 1)
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(4 * MTU))))
    assert len(leave(end, 10_000)) == 4
    limiter.rate_bps = 10**6
    qp.pacer.sent(FRAME, end.now)
    due = qp.pacer.next
    assert due - end.now > 4 * timeout_ns(5)
    if trouble == "nak":
        end.give(end.ack(end.first + 1, 0x60))
    assert leave(end, due - 1) == []
    expired = 0 if trouble == "nak" else 1
    assert end.hca.counts["rto_expirations"] == expired
    assert len(leave(end, due + 2)) == 1
    assert end.hca.counts["tx_retransmitted_packets"] == 1
    # From here on an answer is waited for, as often as ever.
    while end.state() != "ERR":
        end.now = max(end.now, end.hca.next_deadline() or 0)
        end.take()
    assert [c.error for c in end.done()] == ["RETRY_EXC_ERR"]
    assert end.hca.counts["rto_expirations"] == 3


def test_a_pause_does_not_become_a_burst() -> None:
    rate = 10**9
    end, _ = paced(rate, 3 * FRAME)
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(100 * MTU))))
    end.take()
    end.now = 10**9
    assert len(end.take()) <= 5


def test_a_sender_under_cnps_slows_down_and_recovers() -> None:
    end = dcqcn(dcqcn_set="paper", timeout=0)
    end.hca.post(
        WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(20_000 * MTU)))
    )
    assert len(end.take(50)) == 50  # nothing limits before the first CNP
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    assert qp.pacer is not None
    for _ in range(5):
        end.give(end.frame(0x81, 0, {}))
        leave(end, end.now + 50_000)
    slow = qp.pacer.rate_bps
    assert slow < 0.2 * LINE
    before = end.now
    sent = len(leave(end, end.now + 54_000))
    assert sent * (FRAME + FRAMING_OCTETS) * 8 == pytest.approx(
        slow * (end.now - before) / 1e9, rel=0.35
    )
    leave(end, end.now + 5_000_000)
    # Back to what it was before the last cut, then additively: too short for hyper increase.
    steps = 5_000_000 // 55_000
    assert qp.pacer.rate_bps == pytest.approx(2 * slow + steps * LINE / 1_000, rel=0.05)


def test_parameters_that_cannot_be() -> None:
    for fields, complaint in (
        ({"dcqcn_set": "mine"}, "no parameter set 'mine'"),
        ({"dcqcn": {"speed": 1}}, "no parameter 'speed'"),
        ({"dcqcn": {"g": 2}}, "dcqcn.g is 2"),
        ({"dcqcn_set": "simai", "line_rate": 10**7}, "must not exceed the line rate, 10000000"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            adapter(0, cc="dcqcn", **fields)
