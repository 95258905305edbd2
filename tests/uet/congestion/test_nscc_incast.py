"""Many senders, one port: what NSCC makes of it (UES 3.6.13), in virtual time."""

import pytest

from tests.harness.uet.bottleneck import Bottleneck, Measured, Port
from uet.congestion.congestion_parameters import NsccParameters
from uet.congestion.controls.nscc import Nscc
from uet.wire.codes import NackCode

MS = 1_000_000
P = NsccParameters()


def port(parameters: NsccParameters, **changes: float) -> Port:
    """Marks from a quarter of a BDP to three quarters, trims (or drops) at one and a half."""
    bdp = parameters.bdp
    return Port(
        mark_from=int(changes.get("mark_from", 0.25) * bdp),
        mark_all=int(changes.get("mark_all", 0.75) * bdp),
        limit=int(changes.get("limit", 1.5) * bdp),
        trimming=parameters.trimming,
    )


def incast(
    senders: int, parameters: NsccParameters = P, *, seed: int = 1, coalesce: int = 1
) -> Measured:
    """Its last half."""
    bottleneck = Bottleneck(senders, parameters, port(parameters), seed=seed, coalesce=coalesce)
    return bottleneck.run(4 * MS, 2 * MS)


@pytest.mark.parametrize("coalesce", [1, 4], ids=["each acked", "four per ACK"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_sixteen_to_one_settles_at_the_target(seed: int, coalesce: int) -> None:
    measured = incast(16, seed=seed, coalesce=coalesce)
    assert measured.utilisation >= 0.98
    assert measured.jain >= 0.95
    assert 0.75 * P.target < measured.delay < 1.25 * P.target
    assert measured.trimmed < 0.01 * sum(measured.delivered) / P.mtu


@pytest.mark.parametrize("senders", [1, 2, 4, 8, 32])
def test_any_number_of_senders(senders: int) -> None:
    measured = incast(senders)
    assert measured.utilisation >= 0.98
    assert measured.jain >= 0.95
    if senders > 1:
        assert 0.7 * P.target < measured.delay < 1.3 * P.target


def test_one_sender_makes_no_queue() -> None:
    """Its window is one and a half BDPs, and its own link holds it to the port's rate."""
    measured = incast(1)
    assert measured.delay < P.near_zero
    assert measured.marked == measured.trimmed == 0


@pytest.mark.parametrize(
    ("rate", "rtt"), [(400, 6_000), (400, 12_000), (800, 12_000), (25, 20_000)]
)
def test_other_networks(rate: int, rtt: int) -> None:
    parameters = NsccParameters(link_rate=rate * 10**9, base_rtt=rtt)
    bottleneck = Bottleneck(16, parameters, port(parameters), seed=1)
    measured = bottleneck.run(200 * rtt, 100 * rtt)
    assert measured.utilisation >= 0.95
    assert measured.jain >= 0.9
    assert measured.delay < 1.5 * parameters.target


def test_a_slow_network_with_its_own_reference() -> None:
    """1 Gb/s and 1 ms: as good as the fast one, because the gains are made for it."""
    parameters = NsccParameters(
        link_rate=10**9, base_rtt=MS, reference_rtt=MS, mtu=4_096, trimming=True
    )
    bottleneck = Bottleneck(8, parameters, port(parameters), seed=1)
    measured = bottleneck.run(300 * MS, 150 * MS)
    assert measured.utilisation >= 0.95
    assert measured.jain >= 0.95
    assert measured.delay < 1.3 * parameters.target


def test_without_trimming_it_works_by_delay_and_loss() -> None:
    parameters = NsccParameters(trimming=False)
    measured = Bottleneck(16, parameters, port(parameters, limit=5), seed=1).run(6 * MS, 3 * MS)
    assert measured.utilisation >= 0.95
    assert measured.jain >= 0.9
    assert measured.dropped < 0.01 * sum(measured.delivered) / P.mtu


def test_the_first_collision_is_over_in_a_few_round_trips() -> None:
    """All start at once with full windows; quick adapt brings the queue down."""
    bottleneck = Bottleneck(16, P, port(P), seed=1, starts=lambda _: 0)
    measured = bottleneck.run(40 * P.base_rtt, 0)
    total = [sum(windows) for windows in measured.windows]
    assert total[0] == 16 * P.max_wnd
    assert max(total[10:]) < 3 * P.bdp
    assert measured.trimmed > 0


def test_a_late_comer_gets_its_share() -> None:
    bottleneck = Bottleneck(2, P, port(P), seed=1, starts=lambda sender: sender * 2 * MS)
    measured = bottleneck.run(6 * MS, 4 * MS)
    assert measured.jain >= 0.95


def test_who_leaves_makes_room() -> None:
    """A window that is small grows back to the whole link."""
    bottleneck = Bottleneck(
        1, P, port(P), seed=1, make=lambda now: _with_window(Nscc(P, now), 2 * P.mtu)
    )
    measured = bottleneck.run(60 * P.base_rtt, 30 * P.base_rtt)
    assert measured.utilisation >= 0.98


def _with_window(nscc: Nscc, window: float) -> Nscc:
    nscc.cwnd = window
    return nscc


# -- what the parts are good for -----------------------------------------------------------------


def test_without_any_control_the_queue_is_always_full() -> None:
    """Sixteen windows of one BDP each, whatever is marked or trimmed."""

    class Still(Nscc):
        def on_ack(self, octets: int, *_: object) -> None:
            self.inflight -= octets

        def on_nack(self, size: int, *_: object) -> None:
            self.inflight -= size

    def still(now: int) -> Nscc:
        return _with_window(Still(P, now), P.bdp)

    fixed = Bottleneck(16, P, port(P), seed=1, make=still).run(4 * MS, 2 * MS)
    steered = incast(16)
    assert fixed.delay > 1.7 * steered.delay
    assert fixed.trimmed > 0.5 * sum(fixed.delivered) / P.mtu
    assert steered.trimmed < 0.01 * sum(steered.delivered) / P.mtu


@pytest.mark.parametrize("quick_adapt", [True, False])
def test_quick_adapt_keeps_windows_from_falling_too_far(quick_adapt: bool) -> None:
    """A deep queue without trimming: marks of the first flight come long after the cut."""
    parameters = NsccParameters(trimming=False, quick_adapt=quick_adapt)
    deep = port(parameters, limit=50)
    bottleneck = Bottleneck(16, parameters, deep, seed=1, starts=lambda _: 0)
    measured = bottleneck.run(100 * P.base_rtt, 0)
    after = measured.windows[15:25]
    mean = sum(sum(windows) for windows in after) / len(after)
    if quick_adapt:
        assert mean > 1.5 * P.bdp
    else:
        assert mean < P.bdp


def test_the_target_decides_the_delay() -> None:
    delays = [
        incast(8, NsccParameters(target_qdelay=target)).delay for target in (6_000, 9_000, 12_000)
    ]
    assert delays == sorted(delays)
    assert delays[2] > 1.2 * delays[0]


def test_additive_growth_is_what_makes_shares_equal() -> None:
    """One begins with the whole link, the other with a packet."""

    def fairness(parameters: NsccParameters) -> float:
        windows = iter((parameters.max_wnd, parameters.mtu))
        bottleneck = Bottleneck(
            2,
            parameters,
            port(parameters),
            seed=1,
            make=lambda now: _with_window(Nscc(parameters, now), next(windows)),
        )
        return bottleneck.run(10 * MS, 9 * MS).jain

    assert fairness(P) > 0.95
    assert fairness(NsccParameters(additive_gain=0)) < 0.8


def test_trims_of_the_last_hop_do_not_cut_where_credit_rules_it() -> None:
    """RCCC is not there to hold them back here, so the windows just stay open."""
    narrow = port(P, limit=1.0)
    narrow.code = int(NackCode.TRIMMED_LASTHOP)
    narrow.mark_from = narrow.mark_all = 10**9  # nor does the last hop mark
    bottleneck = Bottleneck(
        16, P, narrow, seed=1, make=lambda now: Nscc(P, now, credited=True), starts=lambda _: 0
    )
    bottleneck.run(20 * P.base_rtt, 0)
    # Headers do not wait in the queue, so their base RTT is that of a packet without its octets.
    for context in bottleneck.contexts:
        assert isinstance(context, Nscc)
        assert context.cwnd >= context.max_wnd > 0.95 * P.max_wnd
