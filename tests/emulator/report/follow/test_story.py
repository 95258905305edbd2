"""A packet is found, followed from port to port, and what became of it is said."""

import json
import re
from pathlib import Path

import pytest
import vl_convert  # noqa: F401  # now, as it cannot be loaded twice where a test ends its loading
from click.testing import CliRunner
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from emulator.cli.reports.follow_verb import command
from emulator.dataplane.switch import pause as pause_frames
from emulator.errors import UserError
from emulator.report.follow import search
from emulator.report.follow.capture import CaptureStream
from emulator.report.follow.ladder import ladder_spec, ladder_svg
from emulator.report.follow.search import PacketWish
from emulator.report.follow.story import (
    PacketStory,
    StoryChoice,
    as_data,
    heading,
    story_rows,
    tell,
)
from emulator.rocev2.wire.codes import CNP_OPCODE
from emulator.rocev2.wire.layers import AETH, BTH
from tests.harness.runs.written_folder import (
    BEGAN_US,
    SPEC,
    directed_capture,
    result,
    row,
    write_folder,
)
from topologies import catalogue
from uet.wire import pds, ses
from uet.wire.codes import ControlType, NackCode

SENDER, RECEIVER = "10.0.1.3", "10.0.1.2"
PORTS = ["h1g0:eth0", "rail0:down1", "rail0:down0", "rail0:up0", "h0g0:eth0"]
FORTH = ["h1g0:eth0 out", "rail0:down1 in", "rail0:down0 out", "h0g0:eth0 in"]
BACK = ["h0g0:eth0 out", "rail0:down0 in", "rail0:down1 out", "h1g0:eth0 in"]
PSN, FULL = 70_001, 4194

Placed = list[tuple[float, str, bytes, int]]


def packet(
    inner: Packet,
    *,
    back: bool = False,
    ecn: int = 2,
    dscp: int = 0,
    port: int = 4793,
    udp_length: int | None = None,
) -> bytes:
    ends = (RECEIVER, SENDER) if back else (SENDER, RECEIVER)
    ip = IP(src=ends[0], dst=ends[1], tos=dscp << 2 | ecn)
    return bytes(Ether() / ip / UDP(sport=50000, dport=port, len=udp_length) / inner)


def request(psn: int = PSN, *, retx: int = 0, spdcid: int = 5, ecn: int = 2) -> bytes:
    head = pds.UET_RUD_REQ(psn=psn, spdcid=spdcid, dpdcid=6, retx=retx)
    return packet(head / ses.UET_SES_STD(message_id=9) / bytes(32), ecn=ecn)


def trimmed() -> bytes:
    """Return what is left of a packet whose UDP header still has its length (UES 4.1)."""
    head = pds.UET_RUD_REQ(psn=PSN, spdcid=5, dpdcid=6)
    return packet(head, dscp=10, udp_length=FULL - 34)


def ack(cumulative: int = PSN) -> bytes:
    return packet(pds.UET_ACK(cack_psn=cumulative, spdcid=6, dpdcid=5), back=True)


def nack() -> bytes:
    refused = pds.UET_NACK(nack_code=NackCode.TRIMMED, nack_psn=PSN, spdcid=6, dpdcid=5)
    return packet(refused, back=True)


def passing(times: list[float], places: list[str], octets: bytes, length: int = FULL) -> Placed:
    """Return a frame at each of ``places``; times count from the last iteration's begin (us)."""
    pairs = zip(times, places, strict=False)
    return [(BEGAN_US + time, place, octets, length) for time, place in pairs]


def story(
    tmp_path: Path, frames: Placed, *, psn: int | None = PSN, message: int | None = None
) -> PacketStory:
    folder = folder_of(tmp_path, frames)
    return tell(folder, StoryChoice(wish=PacketWish(psn=psn, message=message)), None)


def folder_of(tmp_path: Path, frames: Placed, ports: list[str] = PORTS) -> Path:
    folder = write_folder(tmp_path / "run", result(row()))
    (folder / "capture.pcapng").write_bytes(directed_capture(ports, sorted(frames)))
    return folder


def trimmed_once() -> Placed:
    """Return the frames of a packet that is trimmed, refused, repeated, marked and acknowledged."""
    return [
        *passing([1.0, 1.5], FORTH, request()),
        *passing([2.5, 2.75], FORTH[2:], trimmed(), 58),
        *passing([2.75, 3.0, 3.0, 3.25], BACK, nack(), 58),
        *passing([3.5, 4.0], FORTH, request(retx=1)),
        *passing([4.25, 4.75], FORTH[2:], request(retx=1, ecn=3)),
        *passing([4.75, 5.0, 5.0, 5.25], BACK, ack(), 58),
        *passing([5.5, 5.75, 5.75, 6.0], BACK, ack(PSN + 3), 58),  # of later packets
    ]


def test_every_hop_has_its_wait_and_what_the_switch_changed(tmp_path: Path) -> None:
    told = story(tmp_path, trimmed_once())
    first, refusal, second, answer = told.journeys
    assert [str(step.end) for step in first.steps] == [place.split()[0] for place in FORTH]
    assert [step.wait_us for step in first.steps] == [None, None, 1.0, None]
    assert first.steps[2].changes == ("trimmed by rail0:down0 from 4194 octets",)
    assert [step.t_us for step in second.steps] == [3.5, 4.0, 4.25, 4.75]
    assert second.steps[2].changes == ("marked CE by rail0:down0",)
    assert (refusal.kind.value, refusal.words, refusal.fate) == (
        "NACK",
        "NACK TRIMMED",
        "delivered",
    )
    assert answer.number == PSN
    assert [one.fate for one in told.journeys] == ["delivered"] * 4
    assert (told.source, told.destination, told.message) == ("h1g0", "h0g0", 9)
    assert str(told.iteration) == "row 1, iteration 2"
    assert f"uet.pds.psn in {{{PSN}}} && uet.pds.spdcid == 5" in told.display_filter
    assert "--event-log h1g0" in " ".join(told.notes)


def test_the_latency_of_the_pipeline_is_no_wait(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", result(row(switch="shallow:latency=250ns")))
    content = directed_capture(PORTS, passing([1.0, 1.5, 2.5, 3.0], FORTH, request()))
    (folder / "capture.pcapng").write_bytes(content)
    (journey,) = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None).journeys
    assert [step.wait_us for step in journey.steps] == [None, None, 0.75, None]


def test_the_event_log_says_why_a_packet_was_repeated(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, trimmed_once())
    (folder / "event-logs").mkdir()
    entry = {"pdc": 5, "psn": PSN, "trigger": "nack", "peer": RECEIVER}
    events = [
        {"time": (BEGAN_US + 3.5) / 1000, "name": "uet:packet_retransmitted", "data": entry},
        {"time": 0, "name": "uet:packet_retransmitted", "data": entry | {"pdc": 4}},
    ]
    lines = ["\x1e" + json.dumps(one, separators=(",", ":")) for one in events]
    (folder / "event-logs" / "h1g0.1.sqlog").write_text("\n".join([*lines, f'{{"psn":{PSN}']))
    told = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    assert [one.cause for one in told.journeys] == ["", "", "repeated after NACK", ""]
    assert "--event-log" not in " ".join(told.notes)


def test_a_drop_a_loss_and_an_unseen_end_differ(tmp_path: Path) -> None:
    dropped, lost = story(
        tmp_path,
        [
            *passing([1.0, 1.5], FORTH, request()),
            *passing([9.0, 9.5, 9.75], FORTH, request(retx=1)),
        ],
    ).journeys
    assert (dropped.fate, lost.fate) == ("dropped", "lost")
    assert "rail0" in dropped.ending
    assert "h0g0:eth0" in lost.ending
    folder = folder_of(tmp_path, passing([1.0, 1.5], FORTH, request()), PORTS[:2])
    unseen = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    assert unseen.journeys[0].fate == "unseen"
    assert "--capture all" in " ".join(unseen.notes)
    assert "No acknowledgement" in " ".join(unseen.notes)


def test_attempts_with_equal_octets_are_told_apart_by_their_places(tmp_path: Path) -> None:
    """RoCEv2 repeats a packet as it was; here the first attempt waits while the second is sent."""
    data = packet(BTH(opcode=8, psn=PSN, dqpn=7) / bytes(64), port=4791)
    back = packet(BTH(opcode=17, psn=PSN, dqpn=3) / AETH(syndrome=0x1F), back=True, port=4791)
    told = story(
        tmp_path,
        [
            *passing([1.0, 1.5], FORTH, data),
            *passing([6.0], FORTH, data),
            *passing([6.25, 6.75], FORTH[2:], data),
            *passing([7.0], FORTH[1:], data),
            *passing([8.0, 8.5], FORTH[2:], data),
            *passing([8.5, 8.75, 8.75, 9.0], BACK, back, 62),
        ],
    )
    first, second, answer = told.journeys
    assert [step.t_us for step in first.steps] == [1.0, 1.5, 6.25, 6.75]
    assert [step.t_us for step in second.steps] == [6.0, 7.0, 8.0, 8.5]
    assert answer.words == "ACKNOWLEDGE"
    assert "infiniband.bth.destqp in {7, 3}" in told.display_filter


def test_several_flows_are_listed_with_the_way_to_choose(tmp_path: Path) -> None:
    frames = [
        *passing([1.0, 1.5], FORTH, request()),
        *passing([2.0, 2.5], FORTH, request(spdcid=11)),
    ]
    folder = folder_of(tmp_path, frames)
    with pytest.raises(UserError, match=r"PDC 5, PSN 70001; .*PDC 11, PSN 70001: .*--pdc"):
        tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    chosen = tell(folder, StoryChoice(wish=PacketWish(psn=PSN, context=11)), None)
    assert chosen.flow.context == 11


def test_the_last_iteration_is_taken_and_another_can_be_chosen(tmp_path: Path) -> None:
    earlier = (51.0, FORTH[0], request(), FULL)
    folder = folder_of(tmp_path, [earlier, *passing([1.0, 1.5], FORTH, request())])
    last = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    assert last.journeys[0].steps[0].t_us == 1.0
    assert "row 1, iteration 1" in " ".join(last.notes)
    first = tell(folder, StoryChoice(wish=PacketWish(psn=PSN), row=1, iteration=1), None)
    assert first.journeys[0].steps[0].t_us == 1.0
    with pytest.raises(UserError, match="other iterations"):
        tell(folder, StoryChoice(wish=PacketWish(psn=PSN), row=2), None)


def test_a_warm_up_behind_an_iteration_is_another_time(tmp_path: Path) -> None:
    """The last iteration lasts 10 us; its repeats belong to it, a new packet does not."""
    frames = [
        *passing([1.0, 1.5], FORTH, request()),
        *passing([10.5, 11.0, 11.0, 11.5], FORTH, request(retx=1)),
        *passing([20.0, 20.5], FORTH, request()),
    ]
    folder = folder_of(tmp_path, frames)
    chosen = tell(folder, StoryChoice(wish=PacketWish(psn=PSN), row=1), None)
    assert [len(one.steps) for one in chosen.journeys] == [2, 4]
    assert "a warm-up" in " ".join(chosen.notes)
    assert tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None) == chosen


def test_ways_are_known_by_who_is_beyond_a_cable(tmp_path: Path) -> None:
    """Captures of the host's clock have no directions, and the rail is one subnet."""
    topology = catalogue.load(SPEC)
    macs = {node.name: node.ports[0].mac for node in topology.gpus}
    octets = bytes(Ether(src=macs["h1g0"], dst=macs["h0g0"]) / IP(src=SENDER, dst=RECEIVER))
    path = tmp_path / "capture.pcapng"
    places = [place.replace(" out", " ?").replace(" in", " ?") for place in FORTH]
    path.write_bytes(directed_capture(PORTS, passing([1.0, 2.0, 3.0, 4.0], places, octets)))
    ways = [(str(one.end), one.leaves) for one in CaptureStream(path, topology).frames()]
    assert ways == [(place.split()[0], place.endswith("out")) for place in FORTH]


def test_a_message_has_all_of_its_packets(tmp_path: Path) -> None:
    frames = [
        *passing([1.0, 1.5, 1.5, 2.0], FORTH, request()),
        *passing([1.1, 1.6, 1.7, 2.1], FORTH, request(PSN + 1)),
        *passing([2.1, 2.4, 2.4, 2.8], BACK, ack(PSN + 1), 58),
    ]
    told = story(tmp_path, frames, psn=None, message=9)
    assert list(told.psns) == [PSN, PSN + 1]
    labels = [(one.label, one.psn) for one in told.journeys]
    assert labels == [("attempt 1", PSN), ("ACK", PSN), ("attempt 1", PSN + 1), ("ACK", PSN + 1)]
    assert any("(70002)" in cells[1] for cells in story_rows(told))


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_FLOWS", 4)
    monkeypatch.setattr("emulator.report.follow.search.MOST_SIGHTINGS", 8)
    frames = [
        one
        for number in range(40)
        for one in passing([1 + number / 10], FORTH, request(spdcid=number))
    ]
    folder = folder_of(tmp_path, frames)
    with pytest.raises(UserError, match="4 flows"):
        tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    again = [one for number in range(40) for one in passing([1 + number / 5], FORTH, request())]
    told = story(tmp_path, again)
    assert sum(len(one.steps) for one in told.journeys) == 8
    assert "32 more sightings" in " ".join(told.notes)


def test_the_ladder_has_a_column_for_each_node_and_ends_in_svg(tmp_path: Path) -> None:
    told = story(tmp_path, trimmed_once())
    drawn = ladder_svg(told)
    assert re.match(r'<svg style="max-width:100%;height:auto" [^>]*viewBox=', drawn)
    for word in ("h1g0", "rail0", "h0g0", "waits 1.000 us, trimmed", "4.750 us", "NACK TRIMMED"):
        assert word in drawn
    layers = ladder_spec(told)["layer"]
    heights = [one["y"] for one in layers[2]["data"]["values"]]
    assert heights == sorted(heights)


def test_json_has_all_that_the_table_has(tmp_path: Path) -> None:
    told = story(tmp_path, trimmed_once())
    data = json.loads(json.dumps(as_data(told)))
    steps = [step for one in data["journeys"] for step in one["steps"]]
    assert len(steps) == len(list(story_rows(told))) == 16
    assert data["journeys"][0]["steps"][2] == {
        "t_us": 2.5, "port": "rail0:down0", "way": "out", "octets": 58, "wait_us": 1.0,
        "wire_us": None, "changes": ["trimmed by rail0:down0 from 4194 octets"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--psn or --message"),
        (["--psn", "1"], "no captured packet"),
        (["--message", "1"], "RoCEv2 has no message ID"),
        (["--psn", str(PSN), "--source", "h7g0"], "no GPU or address"),
        (["--psn", str(PSN), "--flow", "h1g0"], "GPU:GPU"),
        (["--psn", str(PSN), "--flow", "h0g0:h1g0"], "no captured packet"),
        (["--psn", str(PSN), "--qp", "x"], "no number"),
        (["--psn", str(PSN), "--qp", "1", "--pdc", "1"], "give one of them"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    folder = folder_of(tmp_path, trimmed_once())
    refusal = CliRunner().invoke(command, [str(folder), *options]).exception
    assert isinstance(refusal, UserError)
    assert words in str(refusal)


def test_captures_that_say_too_little_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, trimmed_once())
    path = folder / "capture.pcapng"
    whole = path.read_bytes()
    path.write_bytes(b"\0" * 40)
    with pytest.raises(UserError, match="damaged"):
        tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    path.write_bytes(whole[:-8])
    cut = "capture.pcapng ends in the middle of a packet"
    told = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)
    assert told.journeys
    assert cut in told.notes[0]
    with pytest.raises(UserError, match=f"PSN 1 here; {cut}"):
        tell(folder, StoryChoice(wish=PacketWish(psn=1)), None)
    path.unlink()
    with pytest.raises(UserError, match="--capture all"):
        tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None)


def control(kind: ControlType, psn: int) -> bytes:
    return packet(pds.UET_CP(ctl_type=kind, psn=psn, spdcid=5, dpdcid=6))


def test_a_drop_has_its_port_class_and_reason(tmp_path: Path) -> None:
    """The telemetry counts a drop at rail0:down0 at 5 us; the row has one reason."""
    (journey,) = story(tmp_path, passing([3.0, 3.5], FORTH, request())).journeys
    assert journey.fate == "dropped"
    assert journey.ending == (
        "it does not leave rail0: dropped at rail0:down0, class data: the queue was at its limit"
    )


def test_a_drop_that_no_counter_shows_has_no_reason(tmp_path: Path) -> None:
    frames = passing([0.0, 0.0], FORTH, request())  # before the sample at which nothing was lost
    frames = [(at - 1, place, octets, length) for at, place, octets, length in frames]
    (journey,) = story(tmp_path, frames).journeys
    assert journey.ending.endswith("dropped there, or the capture ends")


def test_several_reasons_are_listed_with_their_counts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, passing([3.0, 3.5], FORTH, request()))
    path = folder / "events.jsonl"
    path.write_text(
        path.read_text().replace('"dropped_tail": 3', '"dropped_tail": 2, "dropped_loss": 1')
    )
    (journey,) = tell(folder, StoryChoice(wish=PacketWish(psn=PSN)), None).journeys
    assert journey.ending.endswith("that it counted in this row, tail (2), loss (1)")


def pause(quanta: int) -> bytes:
    return pause_frames.frame(bytes(6), {3: quanta})


def test_a_pause_that_held_a_packet_is_shown(tmp_path: Path) -> None:
    """100 quanta of 512 bit at 400 Gb/s are 128 ns."""
    frames = [
        *passing([1.0], ["h1g0:eth0 in"], pause(0xFFFF), 64),
        *passing([1.5], ["h1g0:eth0 in"], pause(0), 64),
        *passing([1.5, 2.0], FORTH, request()),
        *passing([2.25], ["rail0:down0 in"], pause(100), 64),
        *passing([3.0, 3.5], FORTH[2:], request()),
    ]
    (journey,) = story(tmp_path, frames).journeys
    assert journey.steps[0].changes == (
        "PFC of rail0:down1 had stopped priority 3 for 0.500 us before",
    )
    assert journey.steps[2].changes == ("PFC of h0g0:eth0 stopped priority 3 for 0.128 us of that",)


def test_a_control_packet_is_followed_and_stands_beside_its_packet(tmp_path: Path) -> None:
    told = story(
        tmp_path,
        passing([1.0, 1.5, 1.75, 2.0], FORTH, control(ControlType.CLOSE_CMD, 80_001)),
        psn=80_001,
    )
    (journey,) = told.journeys
    assert (journey.kind.value, journey.words, journey.fate) == (
        "control", "CP CLOSE_CMD", "delivered",
    )  # fmt: skip
    probe = passing([1.0, 1.5, 1.5, 2.0], FORTH, control(ControlType.PROBE, 0))
    probe += passing([2.0, 2.5, 2.5, 3.0], BACK, ack(PSN), 58)  # of data, and not of PSN 0
    told = story(tmp_path / "unnumbered", probe, psn=0)
    assert [one.label for one in told.journeys] == ["attempt 1"]
    frames = [
        *passing([1.0, 1.5], FORTH, request()),
        *passing([5.0, 5.5, 5.5, 6.0], FORTH, control(ControlType.PROBE, PSN)),
    ]
    told = story(tmp_path / "probed", frames)
    assert [one.label for one in told.journeys] == ["attempt 1", "control"]
    assert told.journeys[1].words == "CP PROBE"
    assert "No acknowledgement" in " ".join(told.notes)


def test_the_cnp_behind_a_marked_packet_is_shown_once(tmp_path: Path) -> None:
    write = BTH(opcode=10, dqpn=0x12, psn=77) / bytes(32)
    cnp = packet(BTH(opcode=CNP_OPCODE, dqpn=0x34) / bytes(16), back=True, port=4791)
    frames = [
        *passing([0.5, 0.7, 0.7, 0.8], BACK, cnp, 64),  # before the mark
        *passing([1.0, 1.5], FORTH, packet(write, port=4791)),
        *passing([2.0, 2.5], FORTH[2:], packet(write, port=4791, ecn=3)),
        *passing([2.5, 3.0, 3.0, 3.5], BACK, cnp, 64),
        *passing([7.5, 8.0, 8.0, 8.5], BACK, cnp, 64),
    ]
    told = story(tmp_path, frames, psn=77)
    assert [one.label for one in told.journeys] == ["attempt 1", "CNP"]
    assert [step.t_us for step in told.journeys[1].steps] == [2.5, 3.0, 3.0, 3.5]


def test_rudi_is_followed_by_its_packet_id(tmp_path: Path) -> None:
    ask = packet(pds.UET_RUDI_REQ(pkt_id=90_001) / ses.UET_SES_STD(message_id=4) / bytes(32))
    answer = packet(pds.UET_RUDI_RESP(pkt_id=90_001) / bytes(12), back=True)
    frames = [
        *passing([1.0, 1.5, 1.5, 2.0], FORTH, ask),
        *passing([2.0, 2.5, 2.5, 3.0], BACK, answer),
    ]
    told = story(tmp_path, frames, psn=90_001)
    assert [(one.label, one.words, one.fate) for one in told.journeys] == [
        ("attempt 1", "RUDI_REQ som eom", "delivered"),
        ("ACK", "RUDI_RESP", "delivered"),
    ]
    assert heading(told).startswith("UET packet ID 90001 from h1g0 to h0g0, RUDI, which has no PDC")
    assert "uet.pds.rudi.pkt_id in {90001}" in told.display_filter
    assert as_data(told)["pdc"] is None


def test_uud_is_followed_by_its_message_id_only(tmp_path: Path) -> None:
    datagram = packet(pds.UET_UUD_REQ() / ses.UET_SES_STD(message_id=411) / bytes(32))
    frames = passing([1.0, 1.5, 1.5, 2.0], FORTH, datagram)
    told = story(tmp_path, frames, psn=None, message=411)
    assert [one.fate for one in told.journeys] == ["delivered"]
    assert not any("acknowledgement" in note for note in told.notes)
    with pytest.raises(UserError, match="no captured packet of data has PSN 411"):
        story(tmp_path / "again", frames, psn=411)
