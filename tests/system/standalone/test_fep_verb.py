"""``uetemu fep`` in namespaces: every operation, encapsulation and role, on good and bad wires."""

import json
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.harness.lab.fep_wire import (
    Wire,
    assert_all_ok,
    decoded,
    initiate,
    target,
)
from uet.eventlog.sequence import read
from uet.wire.codes import ControlType

pytestmark = pytest.mark.root

#: Every kind of operation; the target must have what :data:`OFFERS` says.
OPERATIONS = (
    "write:5000,offset=8k,header_data=0xa1a2",
    "read:5000,offset=8k,expect=reference",
    "read:12,offset=8k,expect=reference",
    "send:3000,index=0",
    "send:3000,index=1,header_data=7",
    "send:700,delivery=rod,index=2",
    "tsend:2500,tag=0x15,header_data=0x77",
    "atomic:sum,operand=5",
    "fetch:sum,operand=5,expect=1005/1010,count=2",
    "cswap,operand=7,compare=1015,expect=1015",
    "mswap,operand=0xff,compare=0xf0,expect=7",
    "write:2500,key=0xc000000000000123,delivery=rudi",
    "read:2500,key=0xc000000000000123,delivery=rudi,expect=reference",
    "noop",
    "datagram:700,index=3",
)
OFFERS = (
    "--region", "default:64k,fill=uint64:1000",
    "--region", "0xc000000000000123:4k",
    "--receive", "4096x4,expect=reference",
    "--receive", "4096,tag=0x11,ignore=0xf,expect=reference",
)  # fmt: skip
NATIVE = ("--encapsulation", "native", "--crc")
PROVIDER = (*NATIVE, "--compat", "reference-provider")
KEY = "07e9724958d9e1f710f594e18e11fd8d4a3582c256ccfecfc5eb1902e556bed4"


@pytest.mark.parametrize(
    ("version", "options"),
    [(4, ()), (6, NATIVE), (4, PROVIDER), (6, ("--crc",))],
    ids=["udp4", "native6-crc", "native4-provider", "udp6-crc"],
)
def test_every_operation(wire: Wire, tmp_path: Path, version: int, options: Sequence[str]) -> None:
    pcaps = [tmp_path / "target.pcapng", tmp_path / "initiator.pcapng"]
    family = f"-{version}"
    fresh = not options  # once from beginning to end; the others are forked
    with target(wire, family, *options, *OFFERS, "--pcap", str(pcaps[0]), fresh=fresh) as there:
        here = initiate(
            wire, *options, *OPERATIONS, "--pcap", str(pcaps[1]), version=version, fresh=fresh
        )
    assert_all_ok(here, there)
    assert len(here.completions()) == len(OPERATIONS) + 1  # one operation has two messages
    assert [item["tag"] for item in there.completions("receive") if "tag" in item] == ["0x15"]
    (announced,) = there.completions("remote_write")
    assert (announced["length"], announced["offset"]) == (5000, 8192)
    assert announced["header_data"] == "0xa1a2"
    for pcap in pcaps:
        frames = decoded(pcap)
        assert len(frames) > 40
        assert not [frame for frame in frames if frame["errors"]]
    assert len(decoded(pcaps[0])) == len(decoded(pcaps[1]))


def test_a_message_that_finds_no_receive_is_sent_again(wire: Wire) -> None:
    late = ("--receive", "4096,expect=reference", "--receive-after", "300ms", "--count", "1")
    with target(wire, *PROVIDER, *late) as there:
        here = initiate(wire, *PROVIDER, "--delivery", "rod", "send:2500")
        there.end()
    assert_all_ok(here, there)
    assert here.counters["tx_message_restarts"] > 0


def test_a_deferred_send_is_asked_for_when_its_receive_is_posted(wire: Wire) -> None:
    late = ("--receive", "16k,expect=reference", "--receive-after", "300ms", "--count", "1")
    with target(wire, *PROVIDER, *late) as there:
        here = initiate(wire, *PROVIDER, "send:10000")
        there.end()
    assert_all_ok(here, there)
    assert here.counters["tx_message_restarts"] == 1
    own = [item for item in there.events if item["event"] == "pdc" and item["initiator"]]
    assert own[0]["what"] == "created"  # the target asks on a PDC of its own


def test_a_rendezvous_send_is_fetched(wire: Wire) -> None:
    with target(wire, "--receive", "64k,expect=reference", "--count", "1") as there:
        here = initiate(wire, "send:30000,protocol=rendezvous", "--set", "eager_size=4096")
        there.end()
    assert_all_ok(here, there)


def test_tagged_atomics_work_on_a_receive(wire: Wire) -> None:
    with target(wire, "--receive", "8x2,tag=0x10,ignore=0xf", "--count", "2") as there:
        here = initiate(
            wire, "atomic:sum,operand=5,tag=0x11", "fetch:sum,operand=6,tag=0x12,expect=0"
        )
        there.end()
    assert_all_ok(here, there)
    assert [(item["tag"], item["data"][:2]) for item in there.completions("receive")] == [
        ("0x11", "05"),
        ("0x12", "06"),
    ]


def test_a_group_of_operations_is_told_of_once(wire: Wire) -> None:
    compat = ("--compat", "sync_operations")
    with target(wire, *compat, "--region", "default:64k", "--count", "1") as there:
        here = initiate(
            wire, *compat, "write:3000,synchronise=7/0", "write:3000,offset=4k,sync=7/0",
            "atomic:sum,offset=8k,operand=5,synchronise=7/3",
        )  # fmt: skip
        there.end()
    assert_all_ok(here, there)
    (reported,) = there.completions("remote_write")
    assert reported["length"] == 6008


def test_a_group_needs_the_extension(wire: Wire) -> None:
    with target(wire, "--region", "default:64k"):
        here = initiate(wire, "write:3000,synchronise=7/1")
    (refused,) = here.completions()
    assert refused["error"] == "REFUSED_HERE"
    assert "sync_operations" in refused["reason"]
    assert here.process.returncode == 1


@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_control_packets_open_pdcs_and_probe_them(
    wire: Wire, tmp_path: Path, delivery: str
) -> None:
    pcap = tmp_path / "i.pcapng"
    wire.policy = drop(1)  # the NEGOTIATION is sent again by itself
    with target(wire) as there:
        here = initiate(
            wire, "--pcap", str(pcap), "probe,error=REFUSED_HERE", f"open,delivery={delivery}",
            f"open,negotiate,delivery={delivery}", "probe,count=2",
        )  # fmt: skip
    assert_all_ok(here, there)
    assert here.counters["rx_probe_acks"] == there.counters["rx_probes"] == 2
    assert len([item for item in here.events if item.get("what") == "created"]) == 1
    kinds = [frame["fields"].get("pds.ctl_type") for frame in decoded(pcap)]
    assert kinds.count(int(ControlType.NOOP)) == 1
    assert (
        kinds.count(int(ControlType.NEGOTIATION)) == 3
    )  # asked twice, since the first was lost, and answered


def test_control_packets_that_nobody_answers_fail(wire: Wire) -> None:
    with target(wire):
        wire.policy = lambda frame, number, forward: () if forward and number else (frame,)
        here = initiate(
            wire, "--rto", "100ms", "--retries", "1", "--set", "close_req_time=500ms",
            "open", "probe,wait=50ms,error=TIMEOUT", "open", "--no-close", "--linger", "0",
        )  # fmt: skip
    assert [item["error"] for item in here.completions() if "error" in item] == [
        "TIMEOUT",
        "RTO_RETRIES_EXHAUSTED",
    ]
    assert here.process.returncode == 1


def test_an_event_log_tells_of_every_packet(wire: Wire, tmp_path: Path) -> None:
    logs = [tmp_path / "target.sqlog", tmp_path / "initiator.sqlog"]
    wire.policy = drop(1)
    with target(wire, "--region", "default:64k", "--event-log", str(logs[0])) as there:
        here = initiate(
            wire, "write:6000", "probe", "read:600,expect=reference", "--event-log", str(logs[1])
        )
    assert_all_ok(here, there)
    for log, endpoint in zip(logs, (there, here), strict=True):
        first, events = read(log.read_text())
        assert first["trace"]["vantage_point"]["name"] == endpoint.events[0]["address"]
        names = [event["name"].partition(":")[2] for event in events]
        assert names[0] == "parameters_set"
        assert names.count("packet_sent") == endpoint.events[-1]["nic"]["frames_out"]
    assert "packet_retransmitted" in names
    again = initiate(wire, "write:6", "--event-log", str(logs[1]))
    assert again.process.returncode == 1
    assert again.error.endswith("initiator.sqlog is there already; choose another file\n")


@pytest.mark.parametrize("option", ["--event-log", "--pcap"])
def test_a_full_disk_ends_it_with_one_sentence(wire: Wire, tmp_path: Path, option: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        with target(wire, "--region", "default:64k"):
            here = initiate(wire, option, str(tmp_path / "out"), "write:60000,count=20")
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert here.process.returncode == 1
    assert (
        here.error == f"uetemu: cannot write {tmp_path}/out: No space left on device; make room\n"
    )


def drop(*numbers: int) -> Callable[[bytes, int, bool], Sequence[bytes]]:
    return lambda frame, number, forward: () if forward and number in numbers else (frame,)


def twice(frame: bytes, number: int, forward: bool) -> Sequence[bytes]:
    return (frame, frame)


class Swap:
    """Every frame to the target with an odd number comes before the one in front of it."""

    def __init__(self) -> None:
        self.held: bytes | None = None

    def __call__(self, frame: bytes, number: int, forward: bool) -> Sequence[bytes]:
        if not forward:
            return (frame,)
        if self.held is None and number % 2 == 0 and number < 8:
            self.held = frame
            return ()
        held, self.held = self.held, None
        return (frame,) if held is None else (frame, held)


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("options", [(), PROVIDER], ids=["standard", "provider"])
def test_lost_requests_are_sent_again(
    wire: Wire, tmp_path: Path, delivery: str, options: Sequence[str]
) -> None:
    wire.policy = drop(1, 4)
    pcap = tmp_path / "i.pcapng"
    with target(wire, *options, "--region", "default:64k,fill=zero") as there:
        here = initiate(
            wire, *options, "--delivery", delivery, "--pcap", str(pcap),
            "write:6000,count=2", "read:6000,expect=reference",
        )  # fmt: skip
    assert_all_ok(here, there)
    assert here.counters["tx_retransmitted_packets"] >= 2
    again = [frame for frame in decoded(pcap) if frame["fields"].get("pds.flags.retx")]
    assert again


def test_lost_answers_are_given_again(wire: Wire) -> None:
    wire.policy = lambda frame, number, forward: (
        () if not forward and number in (0, 3) else (frame,)
    )
    with target(wire, "--region", "default:64k") as there:
        here = initiate(
            wire, "write:1500,count=3", "fetch:sum,offset=8k,operand=5,count=3,expect=0/5/10"
        )
    assert_all_ok(here, there)


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("bad", [twice, Swap], ids=["duplicates", "reordering"])
def test_atomics_happen_once_on_a_bad_wire(wire: Wire, delivery: str, bad: object) -> None:
    wire.policy = bad() if isinstance(bad, type) else bad  # type: ignore[assignment]
    with target(wire, "--region", "default:64k", "--receive", "4096x2,expect=reference") as there:
        here = initiate(
            wire, "--delivery", delivery, "write:5000,offset=8k",
            "fetch:sum,operand=5,count=4,expect=0/5/10/15", "send:3000,index=0",
            "read:5000,offset=8k,expect=reference",
        )  # fmt: skip
    assert_all_ok(here, there)
    assert len(there.completions("receive")) == 1


class Chaos:
    """One frame in twenty is lost, one doubled, one held until the next of its direction."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._held: dict[bool, list[bytes]] = {True: [], False: []}

    def __call__(self, frame: bytes, number: int, forward: bool) -> Sequence[bytes]:
        fate, held = self._rng.random(), self._held[forward]
        if fate < 0.05:
            return ()
        if fate < 0.10:
            return (frame, frame)
        if fate < 0.15:
            held.append(frame)
            return ()
        out = [frame, *held]
        held.clear()
        return out


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("manner", ["standard", "provider", "secured", "secured-provider"])
def test_everything_arrives_once_on_a_very_bad_wire(
    wire: Wire, tmp_path: Path, delivery: str, manner: str
) -> None:
    wire.policy = Chaos(f"{manner} {delivery}")
    options = ["--rto", "20ms", "--retries", "9"]
    if "provider" in manner:
        options += PROVIDER
    if "secured" in manner:
        domain = {"sdi": 1, "mode": "cluster", "keys": {"0": KEY}}
        (tmp_path / "keys.json").write_text(json.dumps(domain))
        options += ["--keys", str(tmp_path / "keys.json"), "--secure-start", "1rtt"]
    offers = (
        "--region", "default:128k,fill=uint64:1000", "--region", "0xc000000000000123:8k",
        "--receive", "16k,expect=reference", "--receive", "16k,expect=reference,index=1",
        "--receive", "16k,tag=0x11,ignore=0xf,expect=reference",
    )  # fmt: skip
    with target(wire, *options, *offers) as there:
        here = initiate(
            wire, *options, "--delivery", delivery,
            "write:20000,count=2,offset=8k", "read:20000,offset=8k,expect=reference",
            "fetch:sum,operand=5,count=6,expect=1000/1005/1010/1015/1020/1025",
            "cswap,operand=7,compare=1030,expect=1030", "send:3000,count=2",
            "tsend:9000,tag=0x15", "write:2500,key=0xc000000000000123,delivery=rudi",
            "read:2500,key=0xc000000000000123,delivery=rudi,expect=reference",
        )  # fmt: skip
    assert_all_ok(here, there)
    assert [item["length"] for item in there.completions("receive")] == [3000, 3000, 9000]


@pytest.mark.parametrize("mode", ["direct", "cluster"])
@pytest.mark.parametrize("start", ["0rtt", "1rtt"])
@pytest.mark.parametrize("options", [NATIVE[:2], PROVIDER, ()], ids=["native", "provider", "udp"])
def test_secured(wire: Wire, tmp_path: Path, mode: str, start: str, options: Sequence[str]) -> None:
    domain = {"sdi": 1, "mode": mode, "keys": {"0": KEY}}
    if mode == "cluster":
        domain |= {"rekey_mask": "0xff00", "rekey_shift": 8}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([domain]))
    pcap = tmp_path / "i.pcapng"
    secured = (*options, "--keys", str(keys), "--secure-start", start)
    offers = ("--region", "default:64k", "--receive", "4096,expect=reference")
    with target(wire, *secured, *offers) as there:
        here = initiate(
            wire, *secured, "--pcap", str(pcap), "write:2500", "read:2500,expect=reference",
            "send:2500", "fetch:sum,offset=8k,operand=5,expect=0",
        )  # fmt: skip
    assert_all_ok(here, there)
    frames = decoded(pcap, "--keys", str(keys))
    assert not [frame for frame in frames if frame["errors"]]
    assert {"tss"} <= set(frames[0]["layers"])


def test_security_is_demanded(wire: Wire, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"sdi": 1, "mode": "direct", "keys": {"0": KEY}}))
    with target(wire, "--keys", str(keys), "--region", "default:4k") as there:
        here = initiate(wire, "--rto", "20ms", "--retries", "1", "write:100", "--set",
                        "close_req_time=100ms")  # fmt: skip
    assert here.process.returncode == 1
    assert not here.completions()[0]["ok"]
    assert there.counters["tss_clear_refused"] > 0


@pytest.mark.parametrize("mode", ["direct", "server"])
def test_domains_that_ipv6_cannot_have_are_refused_at_once(
    wire: Wire, tmp_path: Path, mode: str
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"sdi": 5, "mode": mode, "keys": {"0": KEY}}))
    here = initiate(wire, "--keys", str(keys), "write:100", version=6)
    assert here.process.returncode == 1
    assert not here.events
    assert here.error.startswith("uetemu: secure domain (sdi 5) has no ssi")
    assert here.error.endswith(f"to its entry in {keys}\n")
    assert here.error.count("\n") == 1


def test_rudi_with_defaults(wire: Wire) -> None:
    with target(wire, "--region", "default:64k,idempotent") as there:
        here = initiate(
            wire, "write:100,delivery=rudi", "read:100,delivery=rudi,expect=reference",
            "read:100,idempotent,expect=reference",
        )  # fmt: skip
    assert_all_ok(here, there)


def test_rudi_without_idempotent_memory_is_explained(wire: Wire) -> None:
    with target(wire, "--region", "default:64k") as there:
        here = initiate(
            wire, "write:100,delivery=rudi,error=OP_VIOLATION",
            "write:100,delivery=rudi,idempotent=no,error=OP_VIOLATION",
        )  # fmt: skip
    assert_all_ok(here, there)
    first, second = here.completions()
    assert "has no idempotent-safe region 0xc000000000000123" in first["reason"]
    assert "not idempotent-safe" in second["reason"]
    assert [
        (item["what"], item["peer"]) for item in there.events if item["event"] == "refused"
    ] == [("rx_requests_refused", "10.99.0.1")]
    assert there.counters["rx_requests_refused"] == 2


def test_refusals_can_be_what_is_expected(wire: Wire) -> None:
    with target(wire, "--region", "default:4k") as there:
        here = initiate(
            wire, "write:300,key=0x99,error=BAD_MKEY", "write:300,job_id=77,error=BAD_JOB_ID",
            "write:300,resource_index=99,error=UNDELIVERABLE", "write:5000,error=BAD_ADDR",
        )  # fmt: skip
    assert_all_ok(here, there)


def test_a_refusal_that_was_not_expected_fails(wire: Wire) -> None:
    with target(wire, "--region", "default:4k"):
        here = initiate(wire, "write:300,key=0x99", "read:10,expect=counter")
    assert here.process.returncode == 1
    assert [item["ok"] for item in here.completions()] == [False, False]
    assert here.completions()[0]["error"] == "BAD_MKEY"
    assert here.completions()[1]["first_difference"] == 1
    assert here.events[-1]["failed"] == 2


def test_another_address(wire: Wire) -> None:
    identity = ("--job-id", "0xabcde", "--pid-on-fep", "37", "--resource-index", "683")
    with target(wire, *identity, "--region", "default:4k") as there:
        here = initiate(
            wire, "--job-id", "0xabcde", "--initiator-id", "0x1001", "--peer-pid-on-fep", "37",
            "--peer-resource-index", "683", "write:1200,header_data=1",
        )  # fmt: skip
    assert_all_ok(here, there)
