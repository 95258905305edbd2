"""Test what users write: rates, times and sizes with units, and topology specs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator import scenario
from emulator.lab.standalone.script.phrases import number
from topologies import catalogue, units
from topologies.designs.rail_clos import rail_clos
from topologies.model import TopologyError

GBPS = 10**9


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("400G", 400 * GBPS),
        ("400Gbps", 400 * GBPS),
        ("400 Gbit/s", 400 * GBPS),
        ("3.2Tb/s", 3200 * GBPS),
        ("450GB/s", 3600 * GBPS),
        ("10M", 10**7),
        ("1bps", 1),
    ],
)
def test_rates(text: str, bps: int) -> None:
    assert units.parse_rate(text) == bps


@pytest.mark.parametrize(
    ("text", "ns"), [("600ns", 600), ("1.2us", 1200), ("1.2 µs", 1200), ("2s", 2 * 10**9), ("0", 0)]
)
def test_times(text: str, ns: int) -> None:
    assert units.parse_time_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "octets"),
    [("9000", 9000), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1MB", 10**6), ("0.5KiB", 512)],
)
def test_sizes(text: str, octets: int) -> None:
    assert units.parse_size(text) == octets


@pytest.mark.parametrize(
    "text", ["", "400", "-1G", "4e2G", "400Gx", "400Q", "G", "1..2G", 40 * "9"]
)
def test_bad_rates_show_the_value_and_an_example(text: str) -> None:
    with pytest.raises(units.UnitError) as refusal:
        units.parse_rate(text)
    assert repr(text) in str(refusal.value)
    assert "400G" in str(refusal.value)


@pytest.mark.parametrize("text", ["600", "0.5ns", "1G", "1h", "٦٠٠ns"])
def test_bad_times_are_refused(text: str) -> None:
    with pytest.raises(units.UnitError, match=r"600ns"):
        units.parse_time_ns(text)


@pytest.mark.parametrize("text", ["1.5B", "1ns", "1MiB/s", "1mib", "M", "1e6", "4Mb"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(units.UnitError, match=r"4M or 1MB"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        *[(text, 4 * 2**20) for text in ("4M", "4m", "4Mi", "4mi", "4MiB", "4096k", "4194304")],
        *[("64k", 65536), ("64K", 65536), ("64KiB", 65536), ("64kB", 64_000), ("64KB", 64_000)],
        *[("1G", 2**30), ("1GB", 10**9), ("1.5k", 1536), ("1T", 2**40)],
    ],
)
def test_sizes_are_read_alike_everywhere(text: str, octets: int) -> None:
    assert units.parse_size(text) == octets
    assert number(text, "a size") == octets
    assert scenario.load("allreduce").parameters({"sizes": text}).sizes == (octets,)


@given(st.integers(0, 10**17))
def test_what_is_formatted_is_read_back_exactly(value: int) -> None:
    assert units.parse_rate(units.format_rate(value)) == value
    assert units.parse_time_ns(units.format_time(value)) == value
    assert units.parse_size(units.format_size(value)) == value


@given(st.text(max_size=20))
def test_any_text_is_a_whole_number_or_a_refusal(text: str) -> None:
    for parse in (units.parse_rate, units.parse_time_ns, units.parse_size):
        try:
            assert parse(text) >= 0
        except units.UnitError:
            continue


def test_a_spec_is_the_same_as_the_call() -> None:
    assert catalogue.load() == rail_clos()
    assert catalogue.load("rail_clos") == rail_clos()
    spec = "rail_clos: hosts=8, nic_rate=800G, uplink_delay=0.25us, mtu=4096, uplink_rate=auto"
    built = rail_clos(hosts=8, nic_rate=800 * GBPS, uplink_delay=250, mtu=4096)
    assert catalogue.load(spec) == built


def test_the_spec_of_a_topology_builds_it_again() -> None:
    topology = rail_clos(hosts=3, gpus_per_host=2, nic_rate="12.5G", uplinks_per_spine=1)
    assert catalogue.load(catalogue.spec_of(topology)) == topology


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", r"no topology ''; known are rail_clos"),
        ("rail-clos", r"no topology 'rail-clos'; did you mean rail_clos\?"),
        ("rail_clos:host=3", r"no parameter 'host'; did you mean hosts\?"),
        ("rail_clos:hosts", r"'hosts' in .* is not param=value"),
        ("rail_clos:hosts=", r"'hosts=' in .* is not param=value"),
        ("rail_clos:hosts=2,hosts=3", r"hosts is given twice"),
        ("rail_clos:hosts=auto", r"hosts: 'auto' is not a whole number"),
        ("rail_clos:nic_rate=400Q", r"nic_rate: '400Q' has the unknown unit 'Q'"),
    ],
)
def test_bad_specs_name_the_way_out(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        catalogue.load(spec)


def test_every_parameter_is_described() -> None:
    text = catalogue.describe()
    for design in catalogue.DESIGNS.values():
        assert design.meaning in text
        assert all(f"{name}=" in text for name in design.fields)
