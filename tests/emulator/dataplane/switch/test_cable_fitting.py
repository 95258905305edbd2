"""Retry and credits as a user asks for them, and fitted to cables."""

import pytest

from emulator.dataplane.switch.parameters import CbfcChoice, LlrChoice
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import FittedSwitch, fit
from emulator.errors import UserError
from topologies import catalogue
from topologies.analysis.round_trip import base_rtt_ns, mtu_frame_bytes

RAIL = "rail_clos:hosts=2,gpus_per_host=1,spines=1,nic_delay=200ns,mtu=9000"
FRAME = 9000 + 38


def fitted(switch: str, spec: str = RAIL) -> FittedSwitch:
    return fit(parse(switch), catalogue.load(spec), 1.0, clock="virtual")


def test_everything_that_can_be_said_is_read_and_written() -> None:
    choice = parse(
        "lossless:llr=on,llr_buffer=64KiB,llr_frames=100,llr_timer=20us,llr_replays=7,cbfc=on,"
        "cbfc_buffer=128KiB,cbfc_cell=256,cbfc_overhead=20,cbfc_timer=5us"
    )
    assert choice.llr == LlrChoice(buffer_bytes=65536, frames=100, timer_ns=20_000, replays=7)
    assert choice.cbfc == CbfcChoice(
        buffer_bytes=131072, cell_bytes=256, overhead_bytes=20, timer_ns=5000
    )
    assert choice.pausing is None
    assert choice.virtual_only
    again = parse(choice.spec)
    assert (again.llr, again.cbfc, again.pausing) == (choice.llr, choice.cbfc, None)


@pytest.mark.parametrize("unlimited", ["", ",llr_replays=unlimited", ",llr_replays=255"])
def test_defaults_are_those_of_a_conformance_test(unlimited: str) -> None:
    choice = parse(f"deep:llr=on{unlimited}")
    assert choice.llr == LlrChoice()
    assert (choice.llr.frames, choice.llr.timer_ns, choice.llr.replays) == (2047, 65_535, None)
    assert choice.cbfc is None


def test_what_is_off_leaves_nothing() -> None:
    choice = parse("lossless:llr=off,cbfc=off")
    assert (choice.llr, choice.cbfc) == (None, None)
    assert choice.pausing is not None
    assert not choice.virtual_only
    assert fitted("lossless:llr=off").links == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("shallow:llr=yes", "llr=on or llr=off"),
        ("shallow:llr_timer=1us", "llr_timer says nothing without llr=on"),
        ("lossless:cbfc_cell=64", "cbfc_cell says nothing without cbfc=on"),
        ("shallow:cbfc=on", "the switch shallow has none: take lossless"),
        ("lossless:cbfc=on,pfc=on", "both keep the data class from loss: keep one"),
        ("lossless:cbfc=on,xoff=1MB", "xoff is PFC's, and cbfc=on takes its place"),
        ("shallow:llr=on,llr_frames=0", "give a number of 1 to 524288"),
        ("shallow:llr=on,llr_frames=-1", "give a number of 1 to 524288"),
        ("shallow:llr=on,llr_replays=256", "1 to 255, or unlimited"),
        ("shallow:llr=on,llr_timer=0", "a timer runs for longer than 0"),
        ("shallow:llr=on,llr_buffer=much", "llr_buffer of the switch"),
        ("lossless:cbfc=on,cbfc_cell=31", "give a number of 32 to 2048"),
        ("lossless:cbfc=on,cbfc_overhead=-17", "give a number of -16 to 127"),
    ],
)
def test_what_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse(text)


@pytest.mark.parametrize(
    ("switch", "complaint"),
    [
        ("shallow:llr=on,llr_buffer=9KB", "nothing could ever be sent; raise it"),
        ("shallow:llr=on,llr_timer=500ns", "frames would be replayed that are on their way"),
        ("lossless:cbfc=on,cbfc_buffer=8KB", "nothing could ever be sent; raise it"),
        ("lossless:cbfc=on,cbfc_buffer=2MiB", "its buffer has 1 MiB"),
    ],
)
def test_what_no_cable_can_do_is_refused(switch: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        fitted(switch)


@pytest.mark.parametrize("switch", ["shallow:llr=on", "lossless:cbfc=on"])
def test_the_clock_of_the_host_has_no_link_layer(switch: str) -> None:
    with pytest.raises(UserError, match="takes the virtual clock of a run"):
        fit(parse(switch), catalogue.load(RAIL), 1.0)


def test_credits_do_not_go_with_circles_or_tunnels() -> None:
    with pytest.raises(UserError, match="CBFC can bring this fabric to a standstill"):
        fitted("lossless:cbfc=on", "dragonfly:routing=minimal")
    with pytest.raises(UserError, match="frames change their length"):
        fitted("lossless:cbfc=on", "clos:pods=2,super_spines=2,subnets=stretched")


def test_buffers_follow_from_rate_and_cable() -> None:
    """400 Gb/s over a cable of 200 ns: 50 octets/ns, 20,000 octets both ways."""
    nic = next(
        link for link in catalogue.load(RAIL).links if {end.node for end in link.ends} & {"h0g0"}
    )
    rules = fitted("lossless:llr=on,cbfc=on,latency=100ns").link(nic)
    assert rules is not None
    assert rules.llr is not None
    assert rules.cbfc is not None
    assert rules.llr.buffer_bytes == 20_000 + 8 + 3 * FRAME
    of_frame = -(-9014 // 64)
    assert rules.cbfc.cells_of(FRAME) == of_frame
    # With the pipeline 25,000 octets leave, which are so many frames' cells.
    assert rules.cbfc.cells == -(-25_008 * of_frame // FRAME) + 4 * of_frame


def test_small_buffers_are_warned_of() -> None:
    (warning,) = fitted("shallow:llr=on,llr_buffer=20KB").warnings[-1:]
    assert "the link stops for ACKs" in warning
    (warning,) = fitted("lossless:cbfc=on,cbfc_buffer=20KB").warnings[-1:]
    assert "the link stops for credits" in warning


def test_base_rtt_and_bdp_are_those_without_a_link_layer() -> None:
    """Ordered sets never stand before data of their own direction on an idle fabric."""
    topology = catalogue.load(RAIL)
    expected = base_rtt_ns(topology, mtu_frame_bytes(topology))
    for switch in ("shallow", "shallow:llr=on"):
        assert fitted(switch).base_rtt_ns == expected
    assert fitted("shallow:llr=on").bdp_bytes == fitted("shallow").bdp_bytes


def test_a_port_keeps_what_credits_stand_for() -> None:
    topology = catalogue.load(RAIL)
    cable = topology.links[0]
    pfc, cbfc = fitted("lossless"), fitted("lossless:cbfc=on")
    rules = cbfc.link(cable)
    assert rules is not None
    assert rules.cbfc is not None
    assert cbfc.lossless_bytes(cable) == rules.cbfc.cells * 64
    pauses = pfc.pause(cable)
    assert pauses is not None
    assert pfc.lossless_bytes(cable) == pauses.ceiling_bytes
    assert fitted("shallow").lossless_bytes(cable) is None
