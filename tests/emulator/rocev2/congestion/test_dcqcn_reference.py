"""DCQCN beside an independent simulator with equal parameters: rates and queue over time.

The figures are those of the ns-3 model of Li et al., "HPCC" (SIGCOMM 2019), as
``astra-network-ns3`` keeps it: a star of N + 1 hosts, frames of 4140 octets, no PFC. It marks as
packets leave. For the other rows it was changed to mark as they come; for those of "mlx" to space
CNPs by 4 us for each queue pair, to have IEEE 802.1Qau's byte counter, and to let a rate that
changes move the frame that waits, as the pacer here does. Each range is that of five seeds, from 0
to 1 ms, and 1 to 3 ms.
"""

from typing import NamedTuple

import pytest

from emulator.rocev2.congestion.dcqcn_parameters import DcqcnParameters
from tests.harness.rocev2.rate_bottleneck import Marking, RateBottleneck

US, MS = 1_000, 1_000_000
G = 10**9
#: Part that a value may lie beyond the reference's range, of its middle.
BAND = 0.15
LOOK = 10 * US


class Reference(NamedTuple):
    """What it gave in one window: the longest queue (kB), and the rates' sum over the line's."""

    queue: tuple[float, float]
    rates: tuple[float, float]


CASES = {
    ("hpcc", "arrival", 2): (
        Reference((1_140, 1_339), (0.790, 0.801)),
        Reference((1_335, 1_521), (0.718, 0.768)),
    ),
    ("hpcc", "arrival", 8): (
        Reference((8_293, 9_694), (0.914, 1.033)),
        Reference((7_388, 7_636), (0.833, 0.859)),
    ),
    ("hpcc", "arrival", 32): (
        Reference((49_795, 54_266), (4.515, 4.865)),
        Reference((43_130, 47_654), (0.320, 0.320)),
    ),
    ("hpcc", "departure", 2): (
        Reference((901, 1_161), (0.825, 0.873)),
        Reference((888, 1_058), (0.861, 0.914)),
    ),
    ("hpcc", "departure", 8): (
        Reference((2_570, 2_992), (0.761, 0.844)),
        Reference((1_909, 2_021), (0.759, 0.794)),
    ),
    ("mlx", "arrival", 7): (
        Reference((30_457, 33_230), (0.779, 0.870)),
        Reference((4_520, 5_115), (0.881, 0.924)),
    ),
}


def parameters(name: str) -> tuple[DcqcnParameters, Marking, int, int]:
    """The set, the port, its rate and the delay from one end of a path to the other."""
    if name == "hpcc":
        equal = DcqcnParameters.named("hpcc", 100 * G, cnp_interval=0)
        return equal, Marking(k_min=400_000, k_max=1_600_000, p_max=0.2), 100 * G, 1 * US
    mlx = DcqcnParameters.named("mlx", 400 * G)
    return mlx, Marking(k_min=800_000, k_max=3_200_000, p_max=0.2), 400 * G, US // 2


def within(value: float, reference: tuple[float, float]) -> bool:
    least, most = reference
    slack = BAND * (least + most) / 2
    return least - slack <= value <= most + slack


@pytest.mark.parametrize(("name", "marks", "senders"), CASES)
def test_an_incast_takes_the_reference_s_course(name: str, marks: str, senders: int) -> None:
    chosen, marking, line, one_way = parameters(name)
    bottleneck = RateBottleneck(
        chosen,
        marking,
        starts=[0] * senders,
        line_rate=line,
        one_way=one_way,
        on_arrival=marks == "arrival",
    )
    trace = bottleneck.run(3 * MS, 0, LOOK).trace
    windows = trace[: MS // LOOK], trace[MS // LOOK :]
    for seen, reference in zip(windows, CASES[name, marks, senders], strict=True):
        longest = max(queue for queue, _ in seen) / 1e3
        rates = sum(sum(each) for _, each in seen) / len(seen)
        assert within(longest, reference.queue), longest
        assert within(rates, reference.rates), rates
