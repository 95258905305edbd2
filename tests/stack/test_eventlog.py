"""The event log: free when off, true to what happens when on, and as its schema says."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.stack.network import MACS, MACS6, Impairment, Network, flip
from uet.config import FepConfig
from uet.eventlog.endpoint import TracedEndpoint, create
from uet.eventlog.packets import sack_ranges
from uet.eventlog.schema import EVENTS, json_schema, violations
from uet.eventlog.sequence import (
    JsonSequence,
    TraceError,
    milliseconds,
    nanoseconds,
    read,
)
from uet.fep import FabricEndpoint
from uet.ses.requests import MessageError
from uet.transport import Read, Receive, Request, Send, Write
from uet.tss.domain import SecureDomain
from uet.wire.frame import decode_frame

KEY = 7
DOMAIN_KEY = bytes(range(32))
LOSSY = Impairment(loss=0.08, duplicate=0.03, jitter_ns=2_000)
REQUESTS = {"RUD_REQ", "ROD_REQ", "RUDI_REQ", "UUD_REQ"}


def config(address: str, **parameters: Any) -> FepConfig:
    macs = MACS if address in MACS else MACS6
    others = {peer: mac for peer, mac in macs.items() if peer != address}
    parameters.setdefault("payload_mtu", 1024)
    return FepConfig(address=address, mac=macs[address], neighbours=others, **parameters)


@dataclass
class Pair:
    """Two traced endpoints and the network between them."""

    network: Network
    logs: dict[str, list[dict[str, Any]]]
    memory: bytearray = field(default_factory=lambda: bytearray(65_536))

    def __post_init__(self) -> None:
        self.there.register(memoryview(self.memory), key=KEY)

    @property
    def here(self) -> FabricEndpoint:
        return next(iter(self.network.endpoints.values()))

    @property
    def there(self) -> FabricEndpoint:
        return list(self.network.endpoints.values())[1]

    @property
    def log(self) -> list[dict[str, Any]]:
        return next(iter(self.logs.values()))

    @property
    def other_log(self) -> list[dict[str, Any]]:
        return list(self.logs.values())[1]

    def post(self, *requests: Request) -> None:
        for request in requests:
            self.here.post(request)

    def finish(self) -> None:
        """Until everything is answered, and every PDC closed."""
        for fep in self.network.endpoints.values():
            fep.close()
        feps = self.network.endpoints.values()
        assert self.network.run(lambda: all(fep.closed for fep in feps))


def pair(
    impairment: Impairment | None = None,
    *,
    addresses: tuple[str, str] = ("10.0.1.1", "10.0.1.2"),
    tap: Callable[..., Any] | None = None,
    seed: int = 5,
    **parameters: Any,
) -> Pair:
    logs: dict[str, list[dict[str, Any]]] = {address: [] for address in addresses}
    endpoints: dict[str, FabricEndpoint] = {
        address: create(config(address, **parameters), seed=k, log=logs[address].append)
        for k, address in enumerate(addresses)
    }
    network = Network(
        endpoints, random.Random(seed), impairment or Impairment(), tap=tap, keep=True
    )
    return Pair(network, logs)


def write(peer: str, octets: int, **more: Any) -> Write:
    payload = memoryview(random.Random(octets).randbytes(octets))
    return Write(peer=peer, key=KEY, offset=0, payload=payload, **more)


def exchange(impairment: Impairment, **parameters: Any) -> Pair:
    """Writes, a read and sends over an impaired network, and an orderly close."""
    both = pair(impairment, **parameters)
    peer = both.there.config.address
    for k in range(3):
        both.there.post_receive(Receive(memory=memoryview(bytearray(9_000)), context=k))
    both.post(
        write(peer, 40_000, header_data=5, context="first"),
        Read(peer=peer, key=KEY, offset=0, memory=memoryview(bytearray(5_000))),
        *(Send(peer=peer, payload=memoryview(bytes(9_000 - k)), context=k) for k in range(3)),
    )
    both.finish()
    done = both.network.completions[both.here.config.address]
    assert len(done) == 5
    assert {each.error for each in done} == {None}
    return both


def named(log: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [e["data"] for e in log if e["name"].removeprefix("uet:") in names]


def assert_valid(log: list[dict[str, Any]]) -> None:
    assert log
    assert [sentence for event in log for sentence in violations(event)] == []
    times = [event["time"] for event in log]
    assert times == sorted(times)
    assert json.loads(json.dumps(log)) == log
    assert log[0]["name"] == "uet:parameters_set"


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


def assert_caused(log: list[dict[str, Any]]) -> int:
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


@pytest.mark.parametrize("parameters", WAYS.values(), ids=WAYS)
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
        told = Counter(
            (address, p["header"]["psn"])
            for address, log in both.logs.items()
            for p in named(log, "packet_sent")
            if "psn" in p["header"]
        )
        assert told == wire
    # What arrives was sent, and what was sent again is what the counters say.
    gone = [p["header"] for p in named(both.log, "packet_sent")]
    assert all(p["header"] in gone for p in named(both.other_log, "packet_received"))
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
    """The same frames leave at the same times, whether anybody watches or not."""

    def frames(log: Callable[[dict[str, Any]], object] | None) -> list[bytes]:
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

    assert frames(None) == frames([].append)


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
    both.there.post_receive(Receive(memory=memoryview(bytearray(100))))
    both.post(*(write("10.0.1.2", 3_000 + k, delivery="rudi") for k in range(5)))
    both.post(Send(peer="10.0.1.2", payload=memoryview(b"hello"), delivery="uud"))
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
    log: list[dict[str, Any]] = []
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
    assert all("header" not in p for p in named(both.other_log, "packet_dropped"))
    assert named(both.other_log, "domain_latched") == [{"sdi": 9, "failures": 3}]


def test_a_message_that_waits_for_a_pdc() -> None:
    both = pair(max_pdcs=2)
    both.post(write("10.0.1.2", 100), write("10.0.1.2", 100, delivery="rod"))
    both.finish()
    assert_valid(both.log)
    (waiting,) = named(both.log, "message_waiting")
    assert waiting == {"peer": "10.0.1.2", "delivery": "rod", "trigger": "no_pdc"}
    assert len(named(both.log, "message_started")) == 2


def test_a_refused_request_is_no_event() -> None:
    log: list[dict[str, Any]] = []
    fep = create(config("10.0.1.1"), seed=1, log=log.append)
    with pytest.raises(MessageError):
        fep.post(write("10.9.9.9", 1))
    assert log == []


# -- the file ------------------------------------------------------------------------------------


def test_a_trace_is_a_json_sequence_of_which_a_kill_loses_one_event() -> None:
    writes: list[str] = []
    log: list[dict[str, Any]] = []
    sequence = JsonSequence(writes.append, name="node1/gpu0", title="a test", group_id="run-1")

    def both(event: dict[str, Any]) -> None:
        log.append(copy.deepcopy(event))
        sequence(event)

    fep = create(config("10.0.1.1"), seed=1, log=both)
    fep.post(write("10.0.1.2", 3_000, context="é\n"))
    fep.transmit(12_345_678, 10)
    assert len(writes) == 1 + len(log)
    assert all(w[0] == "\x1e" and w[-1] == "\n" and "\n" not in w[:-1] for w in writes)
    text = "".join(writes)
    first, events = read(text)
    assert events == log
    assert first["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    assert first["serialization_format"] == "application/qlog+json-seq"
    trace = first["trace"]
    assert trace["vantage_point"] == {"name": "node1/gpu0", "type": "unknown"}
    assert trace["common_fields"]["reference_time"] == {
        "clock_type": "monotonic",
        "epoch": "unknown",
    }
    assert nanoseconds(events[-1]["time"]) == 12_345_678
    for cut in range(1, len(writes[-1])):
        assert read(text[:-cut]) == (first, events[:-1])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "separator"),
        ('{"a": 1}\n', "separator"),
        ("\x1e{}\n", "file schema"),
        ("\x1e{", "file schema"),
        ("\x1e{\n\x1e{}\n", "record 1"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(text: str, word: str) -> None:
    with pytest.raises(TraceError, match=word):
        read(text)


@pytest.mark.parametrize("ns", [0, 1, 999_999, 12_345_678_901, 8_639_999_999_999_999])
def test_times_come_back_to_the_nanosecond(ns: int) -> None:
    assert nanoseconds(json.loads(json.dumps(milliseconds(ns)))) == ns


# -- the schema ----------------------------------------------------------------------------------


def test_the_schema_is_json_and_names_every_event() -> None:
    schema = json.loads(json.dumps(json_schema()))
    names = {each["properties"]["name"]["const"] for each in schema["oneOf"]}
    assert names == {f"uet:{name}" for name in EVENTS}


RTO = {"time": 1.0, "name": "uet:rto_expired", "data": {"pdc": 1, "psn": 5, "timeouts": 1}}
SENT = {
    "time": 1.0,
    "name": "uet:packet_sent",
    "data": {"raw": {"length": 90}, "header": {"type": "ACK", "sack_bitmap": "0x" + "0" * 16}},
}


@pytest.mark.parametrize(
    ("event", "path", "value", "word"),
    [
        (RTO, ("name",), "uet:rto", "no event"),
        (RTO, ("time",), -1, "less"),
        (RTO, ("time",), "1", "type"),
        (RTO, ("data", "pdc"), 65_536, "more"),
        (RTO, ("data", "pdc"), True, "type"),
        (RTO, ("data", "psn"), 1.5, "type"),
        (RTO, ("data", "speed"), 1, "not in the schema"),
        (RTO, ("extra",), 1, "not in the schema"),
        (SENT, ("data", "raw"), {}, "lacks length"),
        (SENT, ("data", "header", "type"), "ACKK", "fits none"),
        (SENT, ("data", "header", "clear_psn_offset"), -32_769, "less"),
        (SENT, ("data", "header", "sack_bitmap"), "0x0", "not like"),
        (SENT, ("data", "header", "flags"), ["syn", "fin"], "none of"),
    ],
)
def test_the_check_finds_what_is_wrong(
    event: dict[str, Any], path: tuple[str, ...], value: object, word: str
) -> None:
    assert violations(event) == []
    wrong = copy.deepcopy(event)
    at: Any = wrong
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (sentence,) = violations(wrong)
    assert word in sentence
