"""The page for Prometheus: its values by hand, its form by Prometheus' own reader, its size."""

import re
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from emulator.lab.monitoring.lab_watch import Watched
from emulator.lab.monitoring.metric_page import MOST_PORTS, MetricPage
from tests import CHECKOUT
from tests.harness.runs.watched_lab import watched_lab, watched_run

OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
#: Series of a port, of a tier, and of all else, at most: what emulator/lab/monitoring/README.md
#: states.
MOST_SERIES = 10_000
#: values by name and labels
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values(watched: Watched | None) -> Samples:
    page = MetricPage()
    page.show(watched)
    answer = page.answer(OPENMETRICS)
    assert answer.kind.startswith("application/openmetrics-text; version=1.0.0")
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert found
    return found


def at(found: Samples, name: str, **labels: str) -> float:
    return found[f"uetemu_{name}", frozenset(labels.items())]


def test_ports_and_tiers_by_hand() -> None:
    found = values(watched_lab(sent={"rail0:down0": 100_000}))
    port = {"port": "rail0:down0", "tier": "rail to gpu"}
    assert at(found, "port_transmit_bytes_per_fabric_second", **port) == 1e10  # in 10 us
    assert at(found, "port_utilization_ratio", **port) == pytest.approx(0.2)  # of 400 Gb/s
    assert at(found, "port_ecn_marked_packets_per_fabric_second", **port) == 1e5
    assert at(found, "port_trimmed_packets_total", **port) == 2
    assert at(found, "port_dropped_packets_total", **port) == 3
    assert at(found, "port_queue_peak_bytes", **port) == 900
    assert at(found, "port_pfc_paused_fabric_seconds_total", **port) == 5e-6
    assert at(found, "tier_links", tier="rail to gpu") == 4
    assert at(found, "tier_utilization_max_ratio", tier="rail to gpu") == pytest.approx(0.2)
    assert at(found, "tier_transmit_bytes_total", tier="rail to gpu") == 103_000
    assert at(found, "tier_dropped_packets_total", tier="rail to gpu", reason="tail") == 12
    assert at(found, "tier_dropped_packets_total", tier="gpu to rail", reason="overflow") == 0
    assert at(found, "tier_pfc_pauses_total", tier="gpu to rail") == 8
    assert at(found, "lab_uptime_fabric_seconds") == 1e-5
    assert at(found, "lab_running") == 1
    # a NIC has no ASIC: nobody could count its marks, and no zero stands for that
    of_nics = frozenset({("tier", "gpu to rail")})
    assert ("uetemu_tier_ecn_marked_packets_total", of_nics) not in found
    assert not any(("port", "h0g0:eth0") in labels for _, labels in found)
    assert ("uetemu_dilation_ratio", frozenset()) not in found  # a virtual clock has none


def test_the_run_by_hand() -> None:
    found = values(watched_lab())
    row = {"transport": "uet", "switch": "shallow", "collective": "allreduce", "size_bytes": "1024"}
    assert at(found, "row_bus_bandwidth_bytes_per_fabric_second", **row) == 12.5e9
    assert at(found, "row_duration_fabric_seconds", **row) == pytest.approx(40e-6)
    assert at(found, "run_dropped_packets_total", reason="tail") == 9
    assert at(found, "transport_data_packets_total", transport="uet", kind="retransmitted") == 5
    assert at(found, "transport_events_total", transport="uet", counter="rto_expirations") == 1
    assert at(found, "transport_dropped_packets_total", transport="uet", reason="fragment") == 2
    assert at(found, "run_ended") == 0
    counters = {dict(labels).get("counter") for name, labels in found if "events" in name}
    assert "qp_errors" not in counters  # no counter of this transport


def test_a_lab_that_has_gone_and_none_at_all() -> None:
    found = values(watched_lab(ended="lab demo has been taken down"))
    assert at(found, "lab_running") == 0
    assert at(found, "tier_links", tier="rail to gpu") == 4  # the last values stay
    assert values(None) == {("uetemu_lab_running", frozenset()): 0}


def test_series_are_bounded() -> None:
    huge = values(watched_lab("rail_clos:hosts=64,gpus_per_host=8,spines=8"))
    assert not any("port" in dict(labels) for _, labels in huge)
    assert at(huge, "exported_ports") == 0
    assert (
        at(huge, "aggregated_ports")
        == at(huge, "tier_links", tier="rail to gpu") * 2
        + at(huge, "tier_links", tier="rail to spine") * 2
    )
    assert len(huge) < 200
    most = values(watched_lab("rail_clos:hosts=16,gpus_per_host=4,spines=4"))
    ports = at(most, "exported_ports")
    assert MOST_PORTS / 2 < ports <= MOST_PORTS
    assert len(most) / ports * MOST_PORTS < MOST_SERIES


def test_hostile_names_stay_labels() -> None:
    name = 'x"} 1\n# TYPE owned counter\nowned_total{a="'
    found = values(watched_lab(run=watched_run(transport=name, collective=name)))
    assert at(found, "transport_data_packets_total", transport=name, kind="first") == 100
    assert not any(metric.startswith("owned") for metric, _ in found)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_names_follow_the_conventions_of_prometheus() -> None:
    page = MetricPage()
    page.show(watched_lab())
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page.answer({}).body, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_every_metric_stands_in_the_manual() -> None:
    text = (CHECKOUT / "emulator" / "lab" / "monitoring" / "README.md").read_text()
    written = set(re.findall(r"`(?!P`)([a-z_]+)`", text))
    both = set(re.findall(r"`P`\+`([a-z_]+)`", text))
    known = {f"uetemu_{name}" for name in written - both}
    known |= {f"uetemu_{kind}_{name}" for name in both for kind in ("port", "tier")}
    exported = {name for name, _ in values(watched_lab())}
    assert exported - known == set()
