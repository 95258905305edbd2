"""A target's answers against those of the UEC reference provider, request by request.

Only the semantic sublayer is at work here: the requests of each capture go straight to a target,
and what it answers must be, octet for octet, the SES part of the ACK that the provider sent.
"""

import pytest

from tests.harness.replay.capture import NAMES, TARGET, Packet, packets
from tests.harness.uet.deliveries import SMALL_KEY, TargetBench
from uet.compatibility import REFERENCE_PROVIDER
from uet.pds.semantics import ACCEPTED, Answer
from uet.ses.target.rma_target import ReturnData
from uet.wire import headers
from uet.wire.codes import ResponseOpcode, ReturnCode

KEYS = (SMALL_KEY, 1 << 63 | SMALL_KEY)
TAG = 0x1122334455667788
#: When late receives were posted (ns since the first frame).
LATE = 150_000_000
#: The response to a duplicate says NULL there; that one is for PDS to make.
NULL = bytes(headers.SES_RESPONSE.size)
CAPTURES = [name for name in NAMES if not name.startswith("tss_")]


def ses(packet: Packet) -> bytes:
    """The SES header and all that follows it."""
    (layer, *_) = [x for x in packet.decoded.layers if x.name.startswith("ses.")]
    end = packet.decoded.layers[-1]
    return packet.octets[layer.offset : end.offset if end.name == "crc" else len(packet.octets)]


def has_ses(packet: Packet) -> bool:
    return any(name.startswith("ses.") for name in packet.decoded.layer_names)


def ready(name: str) -> tuple[TargetBench, bytearray]:
    """A target with the memory and addressing of a capture."""
    where = {}
    if name == "rud_write_addr":
        where = {"job_id": 0xABCDE, "pid_on_fep": 37, "resource_index": 683}
    bench = TargetBench(compatibility=REFERENCE_PROVIDER, **where)
    memory = bytearray(4096 if name == "err_msg_too_long" else 65_536)
    bench.table.unregister(SMALL_KEY)
    for key in KEYS:
        bench.register(memory, key)
    if "read" in name:
        memory[:2500] = bytes((13 * j + j // 256) % 256 for j in range(2500))
    elif any(word in name for word in ("atomic", "fetch", "cswap")):
        memory[:8] = (1000).to_bytes(8, "little")
    bench.pdc.ordered = "rod_" in name
    return bench, memory


def agrees(answer: Answer | None, captured: bytes) -> bool:
    if answer == ACCEPTED:  # then the response is for PDS to make
        default = (int(ResponseOpcode.DEFAULT_RESPONSE), int(ReturnCode.OK))
        return tuple(captured[:2]) == default or captured == NULL
    return answer is not None and not isinstance(answer, int) and answer.octets == captured


@pytest.mark.conformance("C-074", "C-075", "C-076", "C-077", "C-078", "C-079")
@pytest.mark.parametrize("name", CAPTURES)
def test_every_answer(name: str) -> None:
    frames = [packet for packet in packets(name) if has_ses(packet)]
    answers: dict[int, bytes] = {}
    returned = []
    for packet in frames:
        if packet.side != TARGET:
            continue
        if packet.kind == "rudi_resp":
            answers[packet.fields["pds.pkt_id"]] = ses(packet)
        elif packet.kind.startswith("ack"):
            answers.setdefault(packet.decoded.derived["ack_psn"], ses(packet))
        elif any("response_data" in layer for layer in packet.decoded.layer_names):
            returned.append(ses(packet))
    bench, _ = ready(name)
    late = "nomatch" in name or "_rtr" in name
    posted = False
    seen: set[int] = set()
    compared = 0
    for packet in frames:
        if not posted and (not late or packet.time > LATE):
            posted = True
            for k in range(1 if late else 3):
                bench.receive(16_384, tag=TAG + k if "tsend" in name else None)
        if packet.side == TARGET or not packet.is_request:
            continue
        number = packet.fields.get("pds.psn", packet.fields.get("pds.pkt_id", len(seen)))
        if number in seen or packet.fields["pds.next_hdr"] > 3:
            continue  # PDS hands nothing over twice
        seen.add(number)
        request = (packet.fields["pds.next_hdr"], ses(packet))
        if packet.kind in ("rudi_req", "uud_req"):
            answer: Answer | None = bench.connectionless(packet.kind[:-4], request)
        else:
            bench.psn = number - 1
            answer = bench.give(request)
        if number in answers:
            assert agrees(answer, answers[number]), (answer, answers[number].hex())
            compared += 1
    assert compared or name.startswith("uud")
    sent = []
    for message in bench.pdc.posted:
        assert isinstance(message, ReturnData)
        header, data = message.packet(0)
        sent.append(header + bytes(data))
    assert sent == returned
    receives = [c for c in bench.completions if c.kind == "receive"]
    assert all(c.error is None for c in bench.completions)
    assert bool(receives) == ("send" in name)
