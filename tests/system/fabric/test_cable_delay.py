"""Cables of kernels that have netem: as long for ping as they are, and no hindrance to endpoints.

Debian's kernel has netem.  Where the running one has not, ``test_stock_kernel.py`` boots that.
"""

import os
import re
from pathlib import Path

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.kernel.port_counters import PortCounters
from tests.harness.lab.traffic import blast, kill, within
from tests.system.conftest import LabFactory
from topologies.routing.paths import path_delays

pytestmark = pytest.mark.root

RTT = re.compile(r"time=([\d.]+) ms")


@pytest.fixture(autouse=True)
def _netem() -> None:
    if os.geteuid() == 0 and not capabilities.has("netem"):
        pytest.skip(
            "the kernel has no netem; tests/system/machine/test_stock_kernel.py boots one that has"
        )


def test_netem_is_chosen_for_kernel_traffic() -> None:
    assert for_kernel_traffic() == "netem"


def test_ping_takes_as_long_as_the_cables_are(lab: LabFactory) -> None:
    dilation = 50_000
    small = lab(dilation=dilation, cable_delay="netem")
    for address, delay_ns in path_delays(small.topology, "h0g0").items():
        cables_ms = 2 * delay_ns * dilation / 1e6
        times: list[float] = []

        def near(to: str = address, ms: float = cables_ms, times: list[float] = times) -> bool:
            out = small.exec("h0g0", ["ping", "-c3", "-i0.2", "-W10", to]).stdout
            times += map(float, RTT.findall(out))
            return min(times) < 1.2 * ms

        # what a busy machine adds does not multiply with the dilation
        within(20, near, f"a ping of {address} within a fifth of {cables_ms} ms")
        assert min(times) >= cables_ms


def test_control_goes_before_data_behind_the_delay_too(lab: LabFactory) -> None:
    small = lab(dilation=10_000, cable_delay="netem")
    senders = [blast(small, "h0g0", "10.0.1.3", size=1400, tos=tos) for tos in (0, 0xB8)]

    def port() -> PortCounters:
        return small.counters()["h0g0:eth0"]

    try:
        within(
            20,
            lambda: port().data.backlog_bytes > 20_000 and port().control.backlog_bytes > 20_000,
            "both waiting",
        )
        begin = port()

        def ahead() -> bool:
            """While its sender keeps up, ten times as much control leaves as data.  A busy machine
            keeps the sender waiting at times: then nothing is in front of the data."""
            nonlocal begin
            now = port()
            control = now.control.packets - begin.control.packets
            if control < 200:
                return False
            data = now.data.packets - begin.data.packets
            begin = now
            return control > 10 * data

        within(40, ahead, "control goes first")
    finally:
        kill(*senders)


def test_the_seed_of_hashing_is_found_where_it_is() -> None:
    setting = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")
    assert capabilities.has("multipath-hash-seed") == setting.exists()
