"""The event log: free when off, and true to what happens when on."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from tests.harness.nightly import nightly
from tests.harness.uet.network import Impairment, Network, flip
from tests.harness.uet.traced import KEY, assert_valid, config, exchange, named, pair, write
from uet.eventlog.logged_packets import sack_ranges
from uet.eventlog.logging_endpoint import TracedEndpoint, create
from uet.eventlog.sequence import Event
from uet.fep import FabricEndpoint
from uet.ses.initiator.requests import MessageError
from uet.transport import ReceiveRequest, SendRequest
from uet.tss.keys import provision_client
from uet.tss.secure_domain import SecureDomain
from uet.wire.frame import decode_frame

DOMAIN_KEY = bytes(range(32))
LOSSY = Impairment(loss=0.08, duplicate=0.03, jitter_ns=2_000)


def is_cause(event: dict[str, Any], again: dict[str, Any]) -> bool:
    """Whether ``event`` is what the trigger of the retransmission ``again`` names."""
    data, name = event["data"], event["name"].removeprefix("uet:")
    if name == "go_back_started":
        return again["trigger"] == "go_back" and data["pdc"] == again["pdc"]
    if name == "pdc_renumbered":
        return again["trigger"] == "renumbered" and data["pdc"] == again["pdc"]
    trigger = {"rto_expired": "rto", "loss_inferred": "loss_inferred", "nack_received": "nack"}
    return trigger.get(name) == again["trigger"] and all(
        data.get(key) == again.get(key) for key in ("pdc", "psn", "pkt_id")
    )


def assert_caused(log: list[Event]) -> int:
    """Each retransmission has its cause in front of it; how many there are."""
    seen = 0
    for at, event in enumerate(log):
        if event["name"] == "uet:packet_retransmitted":
            seen += 1
            assert any(is_cause(earlier, event["data"]) for earlier in log[:at]), event
    return seen


WAYS: dict[str, dict[str, Any]] = {
    "rud": {},
    "without inference": {"infer_loss": False},
    "go-back-N": {"delivery": "rod"},
    "rod with reordering": {"delivery": "rod", "rod_reorder": True},
    "plain ACKs": {"ack_type": "ack"},
    "ACK_CCX": {"ack_type": "ack_ccx"},
    "native with CRC": {"native": True, "crc": True},
    "IPv6": {"addresses": ("fd00::1", "fd00::2")},
    "secured": {
        "domains": (SecureDomain(sdi=9, mode="cluster", keys={0: DOMAIN_KEY}),),
        "sdi": 9,
    },
    "secured, first PSN from the target": {
        "domains": (SecureDomain(sdi=9, mode="direct", keys={0: DOMAIN_KEY}),),
        "sdi": 9,
        "secure_start": "1rtt",
    },
}


@pytest.mark.parametrize(
    "parameters",
    [nightly(way) if name == "go-back-N" else way for name, way in WAYS.items()],
    ids=WAYS,
)
def test_a_trace_reconstructs_a_lossy_exchange(parameters: dict[str, Any]) -> None:
    """Every event fits the schema, every frame is there, and why it was sent again."""
    both = exchange(LOSSY, **parameters)
    for log in both.logs.values():
        assert_valid(log)
    assert assert_caused(both.log) > 0
    # The frames of the wire and the packets of the traces are the same, PSN by PSN.
    sent = [p for log in both.logs.values() for p in named(log, "packet_sent")]
    assert len(sent) == len(both.network.sent)
    assert all("errors" not in packet and "header" in packet for packet in sent)
    if "domains" not in parameters:
        wire = Counter(
            (p.envelope.source, p.fields["pds.psn"])
            for p in map(decode_frame, both.network.sent)
            if "pds.psn" in p.fields
        )
        reported = Counter(
            (address, p["header"]["psn"])
            for address, log in both.logs.items()
            for p in named(log, "packet_sent")
            if "psn" in p["header"]
        )
        assert reported == wire
    # What arrives was sent, and what was sent again is what the counters say.
    gone, arrived = (
        {json.dumps(p["header"], sort_keys=True) for p in named(log, event)}
        for log, event in ((both.log, "packet_sent"), (both.other_log, "packet_received"))
    )
    assert arrived <= gone
    again = [p for p in named(both.log, "packet_retransmitted") if "unknown" in p["trigger"]]
    assert again == []
    first, last = named(both.log, "message_posted")[0], named(both.log, "message_completed")[-1]
    assert (first["context"], first["length"]) == ("first", 40_000)
    assert "error" not in last


@pytest.mark.parametrize("name", ["rud", "go-back-N", "without inference"])
def test_retransmissions_are_those_that_are_counted(name: str) -> None:
    both = exchange(LOSSY, **WAYS[name])
    for fep, log in zip(both.network.endpoints.values(), both.logs.values(), strict=True):
        packets = [
            p for p in named(log, "packet_sent") if p["header"]["type"] in ("RUD_REQ", "ROD_REQ")
        ]
        again = [p for p in packets if "retx" in p["header"].get("flags", ())]
        assert len(again) == fep.counters().get("tx_retransmitted_packets", 0)
        assert len(packets) - len(again) == fep.counters()["tx_data_packets"]
        expired = named(log, "rto_expired")
        assert len(expired) == fep.counters().get("rto_expirations", 0)
    assert named(both.log, "packet_retransmitted")


def test_tracing_changes_nothing() -> None:
    """Frames leave at the same times, whether anybody watches or not."""

    def frames(log: Callable[[Event], object] | None) -> list[bytes]:
        feps: dict[str, FabricEndpoint] = {
            address: create(config(address), seed=3, log=log)
            for address in ("10.0.1.1", "10.0.1.2")
        }
        memory = memoryview(bytearray(65_536))
        feps["10.0.1.2"].register(memory, key=KEY)
        network = Network(feps, random.Random(2), LOSSY, keep=True)
        feps["10.0.1.1"].post(write("10.0.1.2", 50_000))
        feps["10.0.1.1"].close()
        assert network.run(lambda: feps["10.0.1.1"].closed)
        return network.sent

    log: list[Event] = []
    assert frames(None) == frames(log.append)
    assert log


def test_an_endpoint_without_a_log_is_the_ordinary_one() -> None:
    """No method of it knows about logs, and nothing of the event log is even loaded."""
    assert type(create(config("10.0.1.1"), seed=1)) is FabricEndpoint
    assert type(create(config("10.0.1.1"), seed=1, log=print)) is TracedEndpoint
    loaded = "import sys, uet.fep; print([m for m in sys.modules if m.startswith('uet.eventlog')])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_life_of_a_pdc() -> None:
    both = exchange(Impairment())
    for log, role in ((both.log, "initiator"), (both.other_log, "target")):
        states = [s for s in named(log, "pdc_state_updated") if s["role"] == role]
        path = [s.get("old") for s in states[:1]] + [s["new"] for s in states]
        if role == "initiator":
            assert path == [None, "creating", "established", "quiesce", "closing", "closed"]
        else:
            assert path == [None, "established", "closed"]
    assert named(both.log, "endpoint_state_updated") == [{"new": "closing"}, {"new": "closed"}]
    started, ended = named(both.log, "message_started"), named(both.log, "message_ended")
    assert sorted(m["message"] for m in started) == sorted(m["message"] for m in ended)
    assert all(m["acknowledged"] == m["packets"] for m in ended)
    assert [w["room"] for w in named(both.log, "window_updated")][
        -1
    ] == both.here.config.window_bytes


def test_a_sack_says_what_has_arrived() -> None:
    """The first packet is lost: those behind it stand in the ranges, the CACK before it."""
    lost: list[bytes] = []

    def tap(frame: bytes, now: int) -> list[bytes]:
        seen = decode_frame(frame).fields
        if seen.get("pds.flags.syn") and not lost:
            lost.append(frame)
            return []
        return [frame]

    both = pair(tap=tap, infer_loss=False)
    both.post(write("10.0.1.2", 8 * 1024))
    both.finish()
    first = decode_frame(lost[0]).fields["pds.psn"]
    acks = named(both.log, "ack_received")
    assert acks[0]["cack"] == first - 1
    behind = [span for ack in acks for span in ack.get("sack", ()) if ack["cack"] == first - 1]
    assert [first + 1, first + 7] in behind
    (again,) = named(both.log, "packet_retransmitted")
    assert (again["psn"], again["trigger"]) == (first, "rto")
    assert_caused(both.log)
    assert sack_ranges(0xFFFF_FFFF, 0b1011) == [[0xFFFF_FFFF, 0], [2, 2]]


def test_refusals_are_in_both_traces() -> None:
    both = exchange(LOSSY, delivery="rod")
    sent = Counter((n["code"], n["psn"]) for n in named(both.other_log, "nack_sent"))
    received = Counter((n["code"], n["psn"]) for n in named(both.log, "nack_received"))
    assert received
    assert set(received) <= set(sent)
    assert {code for code, _ in sent} == {"ROD_OOO"}


def test_a_target_that_wants_another_first_psn() -> None:
    """The packets that go again under other PSNs are no repeats on the wire, yet repeats."""
    both = pair(**WAYS["secured, first PSN from the target"])
    both.post(write("10.0.1.2", 3_000))
    both.finish()
    (renumbered,) = named(both.log, "pdc_renumbered")
    again = named(both.log, "packet_retransmitted")
    start = renumbered["start_psn"]
    assert [(p["psn"], p["trigger"]) for p in again] == [
        (start + k, "renumbered") for k in range(3)
    ]
    assert {n["code"] for n in named(both.log, "nack_received")} == {"NEW_START_PSN"}


def test_a_trimmed_packet_is_received_and_refused() -> None:
    """A switch cuts one packet to its headers: the NACK is the cause of the repeat."""
    cut: list[int] = []

    def tap(frame: bytes, now: int) -> list[bytes]:
        seen = decode_frame(frame).fields
        if cut or "ses.opcode" not in seen or seen.get("pds.flags.syn", 1):
            return [frame]
        cut.append(seen["pds.psn"])
        short = bytearray(frame[: 14 + 20 + 8 + 24])
        short[15] = 4 << 2  # DSCP; nobody looks at the IP checksum
        short[16:18] = (len(short) - 14).to_bytes(2, "big")
        return [bytes(short)]

    both = pair(tap=tap, dscp_trimmed=4, window_bytes=4_096, infer_loss=False)
    both.post(write("10.0.1.2", 10_000))
    both.finish()
    for log in both.logs.values():
        assert_valid(log)
    (trimmed,) = [p for p in named(both.other_log, "packet_received") if p.get("trimmed")]
    assert trimmed["header"]["psn"] == cut[0]
    assert [(n["psn"], n["code"]) for n in named(both.other_log, "nack_sent")] == [
        (cut[0], "TRIMMED")
    ]
    (again,) = named(both.log, "packet_retransmitted")
    assert (again["psn"], again["trigger"]) == (cut[0], "nack")
    assert_caused(both.log)


def test_silence_is_a_row_of_timeouts_and_an_error() -> None:
    both = pair(tap=lambda frame, now: [], max_rto_retx_cnt=3)
    both.post(write("10.0.1.2", 100, context=11))
    both.here.close()
    assert both.network.run(lambda: both.here.closed)
    both.here.completions()
    assert_valid(both.log)
    assert [e["timeouts"] for e in named(both.log, "rto_expired")] == [1, 2, 3]
    assert [e["time"] for e in both.log if e["name"] == "uet:rto_expired"] == [1.0, 3.0, 7.0]
    assert [e["error"] for e in named(both.log, "pdc_failed")] == ["RTO_RETRIES_EXHAUSTED"]
    ended = [m["error"] for m in named(both.log, "message_ended", "message_completed")]
    assert ended == ["RTO_RETRIES_EXHAUSTED"] * 2
    assert assert_caused(both.log) == 3


def test_packets_without_a_pdc() -> None:
    both = pair(Impairment(loss=0.3))
    both.there.post_receive(ReceiveRequest(memory=memoryview(bytearray(100))))
    both.post(*(write("10.0.1.2", 3_000 + k, delivery="rudi") for k in range(5)))
    both.post(SendRequest(peer="10.0.1.2", payload=memoryview(b"hello"), delivery="uud"))
    both.finish()
    for log in both.logs.values():
        assert_valid(log)
    again = named(both.log, "packet_retransmitted")
    assert len(again) == both.here.counters()["tx_retransmitted_packets"] > 0
    assert assert_caused(both.log) == len(again)
    kinds = Counter(p["header"]["type"] for p in named(both.log, "packet_sent"))
    assert kinds["UUD_REQ"] == 1
    assert kinds["RUDI_REQ"] == 15 + len(again)


def test_every_dropped_packet_has_the_reason_that_is_counted() -> None:
    both = exchange(Impairment(corrupt=0.2), crc=True)
    dropped: Counter[str] = Counter()
    for fep, log in zip(both.network.endpoints.values(), both.logs.values(), strict=True):
        assert_valid(log)
        counted = {n: c for n, c in fep.counters().items() if n.startswith("rx_drop_") and c}
        reasons = Counter(p["trigger"] for p in named(log, "packet_dropped"))
        assert reasons == counted
        dropped += reasons
    assert dropped["rx_drop_bad_crc"] > 0


def test_anything_may_arrive() -> None:
    """Turned, cut and empty frames are events like all others."""
    both = exchange(Impairment())
    frames = both.network.sent
    rng = random.Random(8)
    strange = [flip(f, rng.randrange(len(f) * 8)) for f in frames for _ in range(3)]
    strange += [f[: rng.randrange(len(f))] for f in frames]
    strange += [f[:14] + rng.randbytes(60) for f in frames]
    log: list[Event] = []
    fep = create(config("10.0.1.2"), seed=1, log=log.append)
    fep.receive([memoryview(f) for f in strange], 1)
    fep.transmit(1, 1_000)
    assert_valid(log)
    assert len(named(log, "packet_received", "packet_dropped")) == len(strange)


def test_secured_packets_are_shown_in_clear_and_no_key_is() -> None:
    both = exchange(Impairment(), **WAYS["secured"])
    for log in both.logs.values():
        assert_valid(log)
        assert all(p["header"] and p["tss"]["sdi"] == 9 for p in named(log, "packet_sent"))
        assert named(log, "key_updated") == [{"sdi": 9, "an": 0, "epoch": 0}]
        text = json.dumps(log)
        assert DOMAIN_KEY.hex() not in text
        assert str(DOMAIN_KEY) not in text


def test_tracing_does_not_count_as_an_attempt_to_authenticate() -> None:
    """The domain latches after exactly as many failures as without a log; then all is dropped."""
    domain = SecureDomain(sdi=9, mode="cluster", keys={0: DOMAIN_KEY}, failure_threshold=2)
    both = pair(domains=(domain,), sdi=9)
    both.post(write("10.0.1.2", 100))
    (frame,) = [bytes(h) + bytes(p) for h, p in both.here.transmit(0, 9)]
    bad = memoryview(flip(frame, (len(frame) - 3) * 8))
    both.there.receive([bad] * 2, 1)
    assert named(both.other_log, "domain_latched") == []
    assert both.there.counters()["tss_bad_tag"] == 2
    both.there.receive([bad, memoryview(frame)], 2)
    assert_valid(both.other_log)
    triggers = [p["trigger"] for p in named(both.other_log, "packet_dropped")]
    assert triggers == ["tss_bad_tag"] * 3 + ["tss_latched"]
    # What is forged cannot be read; what a latch keeps out can.
    dropped = named(both.other_log, "packet_dropped")
    assert ["header" in p for p in dropped] == [False] * 3 + [True]
    assert named(both.other_log, "domain_latched") == [{"sdi": 9, "failures": 3}]
    # What is sent is still sealed, and still shown.
    both.there.post(write("10.0.1.1", 100))
    both.there.transmit(3, 9)
    assert [p["header"]["type"] for p in named(both.other_log, "packet_sent")] == ["RUD_REQ"]
    assert both.there.counters()["tss_latched"] == 1


@pytest.mark.parametrize("ssi", [5, None])
def test_a_server_reads_what_it_sends_under_its_clients_names(ssi: int | None) -> None:
    client, server = "10.0.1.1", "10.0.1.2"
    clients = {} if ssi is None else {client: ssi}
    identity = ip_address(client).packed if ssi is None else ssi.to_bytes(4, "big")
    domain = SecureDomain(sdi=9, mode="server", keys={0: DOMAIN_KEY}, clients=clients)
    provisioned = provision_client(domain, 0, identity)
    domains = {
        client: SecureDomain(sdi=9, mode="client", keys={0: provisioned}, ssi=ssi),
        server: domain,
    }
    logs: dict[str, list[Event]] = {client: [], server: []}
    feps: dict[str, FabricEndpoint] = {
        a: create(
            config(a, domains=(domains[a],), sdi=9), seed=1, first_counter=0, log=logs[a].append
        )
        for a in logs
    }
    feps[server].register(memoryview(bytearray(1_000)), key=KEY)
    feps[client].post(write(server, 1_000))
    feps[client].close()
    assert Network(feps, random.Random(1)).run(lambda: feps[client].closed)
    for log in logs.values():
        assert_valid(log)
        assert all("errors" not in p and "header" in p for p in named(log, "packet_sent"))


def test_a_message_that_waits_for_a_pdc() -> None:
    both = pair(max_pdcs=2)
    both.post(write("10.0.1.2", 100), write("10.0.1.2", 100, delivery="rod"))
    both.finish()
    assert_valid(both.log)
    (waiting,) = named(both.log, "message_waiting")
    assert waiting == {"peer": "10.0.1.2", "delivery": "rod", "trigger": "no_pdc"}
    assert len(named(both.log, "message_started")) == 2


def test_a_refused_request_is_no_event() -> None:
    log: list[Event] = []
    fep = create(config("10.0.1.1"), seed=1, log=log.append)
    with pytest.raises(MessageError):
        fep.post(write("10.9.9.9", 1))
    assert log == []
