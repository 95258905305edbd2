"""PAUSE frames by priority, octet by octet (IEEE 802.1Q 36, IEEE 802.3 31B)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.switch.cable_counters import PauseCounters, change
from emulator.dataplane.switch.cable_fitting import (
    allowance_ns,
    device_ns,
    headroom_bytes,
    reaction_ns,
)
from emulator.dataplane.switch.pause import (
    DESTINATION,
    FRAME_OCTETS,
    LONGEST,
    Gate,
    Pauser,
    PauseRules,
    duration_ns,
    frame,
    quanta,
)
from emulator.dataplane.switch.pfc_agent import STILL_S, Remnants, still_s
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.transports import default_switch
from topologies import catalogue

G = 10**9
SOURCE = bytes.fromhex("020000000001")
#: Class 3 for as long as can be said.
GOLDEN = bytes.fromhex(
    "0180c2000001020000000001880801010008000000000000ffff0000000000000000"
    "0000000000000000000000000000000000000000000000000000"
)


@pytest.mark.conformance("R-043")
def test_the_frame_octet_by_octet() -> None:
    assert len(GOLDEN) == FRAME_OCTETS
    assert frame(SOURCE, {3: LONGEST}) == GOLDEN
    assert quanta(GOLDEN[:6], GOLDEN[14:]) == {3: LONGEST}


@pytest.mark.conformance("R-043")
@given(st.dictionaries(st.integers(0, 7), st.integers(0, LONGEST)))
def test_classes_that_are_not_meant_are_not_in_it(times: dict[int, int]) -> None:
    octets = frame(SOURCE, times)
    assert len(octets) == FRAME_OCTETS
    assert quanta(octets[:6], octets[14:]) == times


@pytest.mark.conformance("R-043")
def test_xon_is_a_time_of_nothing() -> None:
    assert quanta(DESTINATION, frame(SOURCE, {0: 0})[14:]) == {0: 0}


def test_other_mac_control_is_no_pause_by_priority() -> None:
    whole_link = bytes.fromhex("0001ffff").ljust(46, b"\0")  # IEEE 802.3 annex 31B
    assert quanta(DESTINATION, whole_link) is None
    assert quanta(b"\xff" * 6, GOLDEN[14:]) is None


@pytest.mark.parametrize(
    ("rate", "longest_us"),
    [(G, 33_553.92), (10 * G, 3_355.392), (100 * G, 335.5392), (400 * G, 83.8848)],
)
def test_quanta_are_512_bit_times(rate: int, longest_us: float) -> None:
    assert duration_ns(LONGEST, rate) == pytest.approx(longest_us * 1000, abs=1)
    assert duration_ns(0, rate) == 0
    assert duration_ns(1, rate) == -(-512 * G // rate)


@pytest.mark.parametrize(
    ("rate", "metres", "kilobytes"),
    [(10, 100, 20.7), (40, 100, 32.2), (100, 5, 70.1), (100, 100, 82.0), (100, 300, 107)],
)
def test_headroom_of_usual_links(rate: int, metres: int, kilobytes: float) -> None:
    """5 ns a metre; frames of 9216 octets, lossless ones of 4200, check sequence included."""
    room = headroom_bytes(rate * G, 5 * metres, 9216 - 18, lossless_mtu=4200 - 18)
    assert room / 1000 == pytest.approx(kilobytes, rel=0.005)


def test_headroom_covers_what_the_emulator_lets_pass() -> None:
    for rate in (G, 25 * G, 50 * G, 200 * G, 400 * G, 800 * G):
        for delay in (0, 300, 5_000):
            for response in (0, device_ns(rate), 20_000):
                late = reaction_ns(delay, response_ns=response) + allowance_ns(rate, 9_000)
                passing = rate * late / 8e9 + 9_038
                assert headroom_bytes(rate, delay, 9_000, response_ns=response) >= passing


US = 1_000
RATE = 400 * 10**9
WHOLE = duration_ns(LONGEST, RATE)
RULES = PauseRules(
    priority=3,
    rate_bps=RATE,
    xoff_bytes=60_000,
    xon_bytes=40_000,
    headroom_bytes=100_000,
    needed_bytes=100_000,
    reaction_ns=1_200,
)
GUARDED = replace(RULES, watchdog_ns=50 * US)


def gate(rules: PauseRules = RULES) -> tuple[Gate, PauseCounters]:
    counters = PauseCounters()
    return Gate(rules, counters), counters


# --- asking ---------------------------------------------------------------------------------------


def test_a_pause_is_asked_for_again_at_half_its_time() -> None:
    counters = PauseCounters()
    pauser = Pauser(RATE, counters)
    assert pauser.next_deadline() is None
    assert pauser.ask(0) == LONGEST
    assert pauser.asserted
    assert pauser.ask(10) is None
    due = pauser.next_deadline()
    assert due == WHOLE // 2
    assert pauser.ask(due) == LONGEST
    assert pauser.let_go() == 0
    assert pauser.let_go() is None
    assert pauser.next_deadline() is None
    assert (counters.xoff_sent, counters.xon_sent) == (2, 1)


# --- obeying --------------------------------------------------------------------------------------


@pytest.mark.conformance("R-044")
def test_a_pause_takes_effect_after_the_reaction_and_ends_with_its_time() -> None:
    queue, counters = gate()
    queue.on_frame(100, 5_000)
    assert not queue.closed
    assert queue.next_deadline() == 6_200
    queue.advance(6_199)
    assert not queue.closed
    queue.advance(6_200)
    assert queue.closed
    assert queue.closed_at == 6_200
    end = 6_200 + duration_ns(100, RATE)
    assert queue.next_deadline() == end
    queue.advance(end - 1)
    assert queue.closed
    queue.advance(end)
    assert not queue.closed
    assert queue.next_deadline() is None
    assert counters.paused_ns == counters.longest_pause_ns == duration_ns(100, RATE)


@pytest.mark.conformance("R-044")
def test_xon_ends_a_pause_early() -> None:
    queue, counters = gate()
    queue.on_frame(LONGEST, 0)
    queue.advance(10 * US)
    queue.on_frame(0, 20 * US)
    queue.advance(20 * US + 1_199)
    assert queue.closed
    queue.advance(20 * US + 1_200)
    assert not queue.closed
    assert counters.paused_ns == 20 * US
    assert (counters.xoff_received, counters.xon_received, counters.pauses) == (1, 1, 1)


def test_a_frame_replaces_the_rest_of_the_one_before() -> None:
    queue, counters = gate()
    queue.on_frame(LONGEST, 0)
    queue.on_frame(10, 2 * US)  # less, not more
    queue.advance(2 * US + 1_200)
    assert queue.next_deadline() == 2 * US + 1_200 + duration_ns(10, RATE)
    queue.on_frame(LONGEST, 2 * US + 1_200)
    queue.advance(500 * US)
    assert not queue.closed
    # first to second effect, its own time; the third one's effect came after that had run out
    assert counters.pauses == 2
    assert counters.paused_ns == 2 * US + duration_ns(10, RATE) + WHOLE


def test_a_leap_of_time_does_everything_in_order() -> None:
    queue, counters = gate()
    for at in range(0, 200, 20):
        queue.on_frame(LONGEST, at * US)
        queue.on_frame(0, (at + 10) * US)
    queue.advance(1_000 * US)
    assert not queue.closed
    assert counters.pauses == 10
    assert counters.paused_ns == 100 * US
    assert counters.longest_pause_ns == 10 * US


def test_a_pause_that_was_slept_through_is_told() -> None:
    """The delay is counted, so how late it was must be: the queue was never stopped."""
    queue, counters = gate()
    queue.on_frame(LONGEST, 0)
    queue.on_frame(0, 500)
    assert queue.advance(1_000) is False
    assert queue.advance(10 * US) is True
    assert not queue.closed
    assert (queue.closed_at, counters.pauses, counters.paused_ns) == (1_200, 1, 500)
    queue.on_frame(LONGEST, 20 * US)
    assert queue.advance(22 * US) is True
    queue.on_frame(LONGEST, 30 * US)  # goes on
    assert queue.advance(32 * US) is False


def test_a_pause_that_goes_on_is_counted_so_far() -> None:
    queue, counters = gate()
    queue.on_frame(LONGEST, 0)
    queue.advance(11_200)
    queue.settle(11_200)
    assert counters.paused_ns == 10 * US
    queue.on_frame(0, 20_000)
    queue.advance(30_000)
    assert counters.paused_ns == 20 * US
    assert counters.longest_pause_ns == 20 * US


# --- the watchdog ---------------------------------------------------------------------------------


@pytest.mark.conformance("R-047")
def test_a_storm_is_found_ignored_and_forgotten() -> None:
    queue, counters = gate(GUARDED)
    queue.on_frame(LONGEST, 0)
    queue.on_frame(LONGEST, 30 * US)
    found = 1_200 + 50 * US
    queue.advance(found - 1)
    assert queue.closed
    assert not queue.ignoring
    queue.advance(found)
    assert not queue.closed
    assert queue.ignoring
    queue.on_frame(LONGEST, found + 1)
    queue.advance(found + 5 * US)
    assert not queue.closed
    restored = found + 1 + 100 * US  # twice the detection time without a pause
    assert queue.next_deadline() == restored
    queue.advance(restored)
    assert not queue.ignoring
    assert counters.watchdog_storms == 1
    assert counters.watchdog_ns == restored - found
    queue.on_frame(LONGEST, restored + US)
    queue.advance(restored + 3 * US)
    assert queue.closed


@pytest.mark.conformance("R-047")
def test_a_queue_that_gets_on_is_no_storm() -> None:
    queue, counters = gate(GUARDED)
    for at in range(0, 400, 40):
        queue.on_frame(LONGEST, at * US)
        queue.on_frame(0, (at + 35) * US)
        queue.advance((at + 39) * US)
    assert counters.pauses == 10
    assert counters.watchdog_storms == 0


def test_without_a_watchdog_a_storm_lasts() -> None:
    queue, counters = gate()
    for at in range(0, 4_000, 40):
        queue.on_frame(LONGEST, at * US)
        queue.advance(at * US)
    assert queue.closed
    assert counters.pauses == 1
    assert counters.watchdog_storms == 0


def test_counters_of_a_span() -> None:
    before = PauseCounters(xoff_sent=3, longest_pause_ns=9)
    after = PauseCounters(xoff_sent=5, longest_pause_ns=9, paused_ns=4)
    assert change(before, after) == PauseCounters(xoff_sent=2, longest_pause_ns=9, paused_ns=4)
    assert change(None, after) == after


# --- thresholds -----------------------------------------------------------------------------------

SPEC = "rail_clos:hosts=4,gpus_per_host=2,spines=2"


@pytest.mark.conformance("R-046")
@pytest.mark.parametrize("extra", ["", ",buffer=2MiB", ",mtu=4200"])
def test_marking_begins_before_pausing(extra: str) -> None:
    """Marking begins first also where one port makes up the whole queue."""
    fitted = fit(parse("lossless"), catalogue.load(SPEC + extra), 1000)
    (rules,) = fitted.pauses.values()
    (profile,) = fitted.profiles.values()
    assert profile.data.kmin_bytes < rules.xon_bytes < rules.xoff_bytes
    assert fitted.warnings == ()


def test_a_queue_holds_what_all_ports_may_have_sent_there() -> None:
    topology = catalogue.load(SPEC)
    fitted = fit(parse("lossless"), topology, 1000)
    (rules,) = fitted.pauses.values()
    (profile,) = fitted.profiles.values()
    ports = max(len(switch.ports) for switch in topology.switches)
    assert profile.data.limit_bytes == ports * rules.ceiling_bytes


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        ("lossless:xoff=1MiB", r"needs xoff \(1 MiB.*raise the topology's buffer"),
        ("lossless:xoff=1000", "at least a frame of 9038 octets"),
        ("lossless:xoff=60KiB,xon=61KiB", "xon of the switch is 61 KiB, above xoff of 60 KiB"),
        ("lossless:pfc_response=30us", "shorten the cables"),
    ],
)
def test_what_cannot_be_is_told(switch: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as reported:
        fit(parse(switch), catalogue.load(SPEC), 1000)
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize(
    ("switch", "priority"),
    [
        ("lossless", 0),
        ("lossless:pfc_priority=6", 6),
        (default_switch("rocev2", catalogue.load(SPEC)), 3),  # of DSCP 26
    ],
)
def test_pauses_name_the_priority_of_the_data_they_stop(switch: str, priority: int) -> None:
    (rules,) = fit(parse(switch), catalogue.load(SPEC), 1000).pauses.values()
    assert rules.priority == priority


def test_too_little_headroom_is_a_warning() -> None:
    fitted = fit(parse("lossless:headroom=20KiB"), catalogue.load(SPEC), 1000)
    (warning,) = fitted.warnings
    assert warning.startswith("the headroom of 20 KiB is less than the 258960 B")


# --- what was lost below --------------------------------------------------------------------------


def test_a_buffer_that_stands_still_for_no_reason_is_empty() -> None:
    remnants = Remnants()
    free, stopped = {1: False, 2: False}, {1: True, 2: False}
    assert remnants.find({1: 5_000, 2: 0}, free, 0.0) == []
    assert remnants.find({1: 5_000, 2: 0}, free, STILL_S - 0.1) == []
    assert remnants.find({1: 4_000, 2: 9}, free, STILL_S) == []  # it gets on
    assert remnants.find({1: 4_000, 2: 9}, stopped, STILL_S + 1) == []  # a pause holds it
    assert remnants.find({1: 4_000, 2: 9}, free, 2 * STILL_S) == [2]
    assert remnants.find({1: 4_000, 2: 0}, free, 3 * STILL_S) == [1]
    assert remnants.find({1: 0, 2: 0}, free, 9 * STILL_S) == []


def test_a_frame_may_wait_for_a_whole_switch_to_empty_itself() -> None:
    """Sixteen full buffers before it at the slowest port."""
    ports = [RULES] * 15 + [replace(RULES, rate_bps=RATE // 4)]
    octets = 16 * 160_000
    drained_s = octets * 8 / (RATE / 4)
    patient = still_s([[RULES], ports], 100_000)
    assert patient > drained_s * 100_000 > STILL_S
    assert still_s([[RULES]], 1_000) == STILL_S
    remnants = Remnants(patient)
    assert remnants.find({1: 5_000}, {1: False}, 0.0) == []
    assert remnants.find({1: 5_000}, {1: False}, drained_s * 100_000) == []
    assert remnants.find({1: 5_000}, {1: False}, patient) == [1]
