"""Many DCQCN senders, one port: what becomes of rates and queue, in virtual time."""

import pytest

from emulator.rocev2.congestion.dcqcn_parameters import DcqcnParameters
from tests.harness.nightly import nightly_beyond
from tests.harness.rocev2.rate_bottleneck import Marking, Measured, RateBottleneck

US, MS = 1_000, 1_000_000
G = 10**9
#: Zhu et al., SIGCOMM 2015, for 40 Gb/s; the ns-3 model of HPCC for 100 Gb/s.
PAPER = Marking(k_min=5_000, k_max=200_000, p_max=0.01)
HPCC = Marking(k_min=400_000, k_max=1_600_000, p_max=0.2)


def at_40(senders: int, *, seed: int = 1, gap: int = 100 * US) -> Measured:
    """The second half of 200 ms with the paper's parameters; senders begin ``gap`` apart."""
    bottleneck = RateBottleneck(
        DcqcnParameters.named("paper", 40 * G),
        PAPER,
        starts=[gap * sender for sender in range(senders)],
        line_rate=40 * G,
        one_way=4 * US,
        mtu=1_024,
        seed=seed,
    )
    return bottleneck.run(200 * MS, 100 * MS, MS)


def at_100(name: str, senders: int, *, seed: int = 1, gap: int = 100 * US) -> Measured:
    """The second half of 80 ms with a NIC's parameters."""
    bottleneck = RateBottleneck(
        DcqcnParameters.named(name, 100 * G),
        HPCC,
        starts=[gap * sender for sender in range(senders)],
        line_rate=100 * G,
        one_way=2 * US,
        seed=seed,
    )
    return bottleneck.run(80 * MS, 40 * MS, MS)


def fair_and_full(measured: Measured, pfc_threshold: int, full: float = 0.97) -> None:
    assert measured.utilisation >= full
    assert measured.jain >= 0.99
    assert measured.longest < pfc_threshold
    mean = sum(measured.delivered) / len(measured.delivered)
    if len(measured.delivered) == 2:
        assert max(measured.delivered) < 1.1 * mean


@pytest.mark.conformance("R-041")
@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
def test_two_flows_share_with_the_paper_s_parameters(seed: int) -> None:
    """The second comes 10 ms late and finds the line taken; PFC would begin at 400 kB."""
    fair_and_full(at_40(2, seed=seed, gap=10 * MS), 400_000)


@pytest.mark.conformance("R-041")
@pytest.mark.parametrize(("name", "full"), [("mlx", 0.94), ("simai", 0.97)])
@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
def test_two_flows_share_with_the_parameters_of_nics(name: str, full: float, seed: int) -> None:
    """Rises by octets bring more CNPs, and so a queue that runs empty now and then."""
    fair_and_full(at_100(name, 2, seed=seed, gap=5 * MS), 1_600_000, full)


def steady_incast(unit: int, seed: int) -> Measured:
    """Eight senders at 400 Gb/s with the firmware's set and SimAI's marks, from 1 to 4 ms."""
    bottleneck = RateBottleneck(
        DcqcnParameters.named("mlx", 400 * G, byte_unit=unit),
        Marking(k_min=800_000, k_max=3_200_000, p_max=0.2),
        starts=[0] * 8,
        line_rate=400 * G,
        one_way=2 * US,
        seed=seed,
    )
    return bottleneck.run(4 * MS, MS, 50 * US)


@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
def test_the_unit_of_the_byte_counter_decides_over_a_steady_incast(seed: int) -> None:
    """32767 octets bring a rate back in microseconds, 2 MB later than the timer does."""
    by_octets, by_64 = steady_incast(1, seed), steady_incast(64, seed)
    assert by_octets.utilisation >= 0.95
    assert by_octets.jain >= 0.93
    assert by_64.utilisation <= 0.9
    assert by_64.utilisation < by_octets.utilisation - 0.1


@pytest.mark.conformance("R-041")
@pytest.mark.parametrize("senders", nightly_beyond(1, [8, 16]))
def test_many_flows_share(senders: int) -> None:
    measured = at_40(senders)
    fair_and_full(measured, 400_000)
    assert measured.cnps > 0


def test_without_marks_the_queue_grows_without_end() -> None:
    """What the tests above measure is DCQCN's doing: two lines into one, unmarked."""
    bottleneck = RateBottleneck(
        DcqcnParameters.named("paper", 40 * G),
        Marking(k_min=1 << 40, k_max=1 << 41, p_max=1.0),
        starts=[0, 0],
        line_rate=40 * G,
        one_way=4 * US,
        mtu=1_024,
    )
    measured = bottleneck.run(2 * MS, MS, MS)
    assert measured.cnps == 0
    assert measured.longest > 4_000_000


def test_one_flow_is_not_slowed() -> None:
    measured = at_40(1)
    assert measured.cnps == 0
    assert measured.utilisation >= 0.999


@pytest.mark.conformance("R-042")
@pytest.mark.parametrize("name", ["paper", "simai"])
def test_a_stretched_network_is_the_same_network(name: str) -> None:
    """All times times four, all rates a quarter: queue and rates as they were."""

    def run(factor: int) -> Measured:
        line = 100 * G // factor
        bottleneck = RateBottleneck(
            DcqcnParameters.named(name, 100 * G).stretched(factor),
            Marking(k_min=100_000, k_max=400_000, p_max=0.2),
            starts=[40 * US * factor * sender for sender in range(4)],
            line_rate=line,
            one_way=2 * US * factor,
            seed=7,
            grain=factor,
        )
        return bottleneck.run(4 * MS * factor, 0, 50 * US * factor)

    real, stretched = run(1), run(4)
    assert real.cnps > 20
    assert stretched.cnps == real.cnps
    assert stretched.delivered == real.delivered
    assert [queue for queue, _ in stretched.trace] == [queue for queue, _ in real.trace]
    for (_, ours), (_, theirs) in zip(stretched.trace, real.trace, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_the_steps_of_pollara_suit_400_gbps() -> None:
    """AMD recommends them for that NIC; its queue pairs rise by 160 Mb/s in each microsecond."""
    bottleneck = RateBottleneck(
        DcqcnParameters.named("pollara", 400 * G),
        Marking(k_min=800_000, k_max=3_200_000, p_max=0.2),
        starts=[0] * 8,
        line_rate=400 * G,
        one_way=2 * US,
        on_arrival=True,
    )
    measured = bottleneck.run(5 * MS, 2 * MS, MS)
    assert measured.utilisation > 0.88
    assert measured.jain > 0.99
