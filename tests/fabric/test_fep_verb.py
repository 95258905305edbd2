"""``uetemu fep`` in namespaces: every operation, encapsulation and role, on good and bad wires."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from emulator.endpoint.frame_filter import TransportFrames
from emulator.fabric import namespaces
from emulator.fabric.netlink import KernelRefusal
from emulator.fep import quiet
from tests.fabric.fep_wire import (
    ADDRESSES,
    Endpoint,
    Wire,
    decoded,
    filters,
    initiate,
    ip,
    target,
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="builds namespaces: needs root"),
]

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


@pytest.fixture(scope="module")
def good_wire() -> Iterator[Wire]:
    with Wire().up() as wire:
        yield wire


@pytest.fixture
def wire(good_wire: Wire) -> Iterator[Wire]:
    """A wire that a test may make bad; nothing may be left on its ends."""
    good_wire.policy = None
    yield good_wire
    good_wire.policy = None
    assert filters(good_wire.initiator) == filters(good_wire.target) == ""


def assert_all_ok(*endpoints: Endpoint) -> None:
    for endpoint in endpoints:
        wrong = [item for item in endpoint.completions() if not item["ok"]]
        assert not wrong, endpoint.error
        assert endpoint.events[-1]["status"] == 0, (endpoint.events[-1], endpoint.error)
        assert endpoint.process.returncode == 0


@pytest.mark.parametrize(
    ("version", "options"),
    [(4, ()), (6, NATIVE), (4, PROVIDER), (6, ("--crc",))],
    ids=["udp4", "native6-crc", "native4-provider", "udp6-crc"],
)
def test_every_operation(wire: Wire, tmp_path: Path, version: int, options: Sequence[str]) -> None:
    pcaps = [tmp_path / "target.pcapng", tmp_path / "initiator.pcapng"]
    family = f"-{version}"
    with target(wire, family, *options, *OFFERS, "--pcap", str(pcaps[0])) as there:
        here = initiate(wire, *options, *OPERATIONS, "--pcap", str(pcaps[1]), version=version)
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


def test_the_kernel_sends_no_icmp(wire: Wire) -> None:
    """It has the same address, and neither such a port nor such a protocol."""
    before = _icmp_errors(wire)
    for options in ((), NATIVE):
        with target(wire, *options, "--region", "default:4k") as there:
            here = initiate(wire, *options, "write:1000")
        assert_all_ok(here, there)
    assert _icmp_errors(wire) == before


def _icmp_errors(wire: Wire) -> list[str]:
    """The kernels' counters of ICMP messages, but for neighbour discovery."""
    shown: list[str] = []
    for name in (wire.initiator, wire.target):
        text = ip("netns", "exec", name, "cat", "/proc/net/snmp", "/proc/net/snmp6")
        shown += [
            line
            for line in text.splitlines()
            if line.startswith(("Icmp:", "Icmp6OutDestUnreachs", "Icmp6OutParmProblems"))
        ]
    return shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(wire: Wire, tmp_path: Path, number: int) -> None:
    pcap = tmp_path / "t.pcapng"
    with target(wire, "--region", "default:64k", "--pcap", str(pcap)) as there:
        here = initiate(wire, "--no-close", "--linger", "0", "write:20000,header_data=1")
        there.wait_for("completion")
        assert there.end(number) == 0
    assert here.process.returncode == 0
    assert there.events[-1]["reason"] == signal.Signals(number).name
    frames = decoded(pcap)
    assert len(frames) > 20
    assert not [frame for frame in frames if frame["errors"]]


def test_nothing_is_left_after_sigkill(wire: Wire) -> None:
    with target(wire, "--region", "default:4k") as there:
        assert "bpf" in filters(wire.target)
        there.end(signal.SIGKILL)
        _until_silent(wire.target)


def _until_silent(namespace: str) -> None:
    give_up = time.monotonic() + 10
    while filters(namespace):
        assert time.monotonic() < give_up, filters(namespace)


def test_two_endpoints_on_one_interface_do_not_unsilence_each_other(wire: Wire) -> None:
    ip("-n", wire.target, "addr", "add", "10.99.0.3/24", "dev", "e0")
    with target(wire, "-a", "10.99.0.3", "--region", "default:4k"):
        with target(wire, "-a", "10.99.0.2", "--region", "default:4k"):
            assert filters(wire.target).count("direct-action") == 2
        assert filters(wire.target).count("direct-action") == 1


def test_the_neighbour_may_be_a_gateway(wire: Wire) -> None:
    ip("-n", wire.target, "addr", "add", "192.0.2.7/32", "dev", "e0")
    ip("-n", wire.initiator, "route", "add", "192.0.2.0/24", "via", ADDRESSES[4][1])
    with target(wire, "-a", "192.0.2.7", "--region", "default:4k") as there:
        here = Endpoint(
            "initiator", "-n", wire.initiator, "-i", "e0", "-p", "192.0.2.7", "write:100"
        )
        here.end()
    assert_all_ok(here, there)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-i", "nope", "-p", "10.99.0.2", "noop"), "there is no interface 'nope'"),
        (("-i", "lo", "-p", "10.99.0.2", "noop"), "no Ethernet interface"),
        (("-i", "e0", "-p", "203.0.113.1", "noop"), "the kernel has no route to 203.0.113.1"),
        (("-i", "e0", "-p", "10.99.0.77", "noop"), "10.99.0.77 does not answer"),
        (("-i", "e0", "-p", "10.99.0.1", "noop"), "is the endpoint's own address"),
        (("-i", "e0", "-p", "10.99.0.2", "--mtu", "4096", "noop"), "needs an interface MTU of"),
        (("-i", "e0", "-p", "10.99.0.2", "-a", "fd99::1", "noop"), "not of one IP version"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(wire: Wire, words: Sequence[str], said: str) -> None:
    here = Endpoint("initiator", "-n", wire.initiator, *words)
    assert here.end() == 1
    assert said in here.error
    assert here.error.count("\n") == 1
    assert not here.events


def test_data_that_arrives_is_saved(wire: Wire, tmp_path: Path) -> None:
    save = ("--save", str(tmp_path), "--count", "2")
    with target(
        wire, "--region", "default:100,expect=reference", "--receive", "99", *save
    ) as there:
        here = initiate(wire, "write:100,header_data=1", "send:50,pattern=text:hello")
        there.end()
    assert_all_ok(here, there)
    (sent,) = there.completions("receive")
    assert Path(sent["saved"]).read_bytes() == b"hello" * 10
    assert (tmp_path / "region-0x4000000000000123.bin").read_bytes()[:2] == b"\x00\x0d"


def test_what_does_not_come_is_a_failure(wire: Wire) -> None:
    with target(wire, "--receive", "99", "--count", "1", "--duration", "200ms") as there:
        assert there.end() == 1
    assert there.error == "uetemu: 1 of the completions to wait for did not come\n"
    here = initiate(wire, "--timeout", "200ms", "write:1,after=9s")
    assert here.process.returncode == 1
    assert here.events[-1]["operations"]["unfinished"] == 1
    assert "the time allowed is over" in here.error


def test_a_reader_that_goes_away_ends_it(wire: Wire) -> None:
    there = Endpoint("target", "-n", wire.target, "-i", "e0", "--region", "default:4k")
    there.wait_for("start")
    assert there.process.stdout is not None
    there.process.stdout.close()
    here = initiate(wire, "write:100,header_data=1", "--no-close", "--linger", "0",
                    "--rto", "10ms", "--retries", "1")  # fmt: skip
    assert here.events
    assert there.process.wait(timeout=20) != 0


def test_a_script_from_standard_input(wire: Wire) -> None:
    script = [
        {"op": "write", "size": 3000, "count": 2},
        {"op": "read", "size": 3000, "offset": 3000, "expect": "reference", "index": 1},
        "noop",
    ]
    with target(wire, "--region", "default:8k") as there:
        here = initiate(wire, "--in-flight", "1", "--script", "-", stdin=json.dumps(script))
    assert_all_ok(here, there)
    assert [item["number"] for item in here.completions()] == [0, 1, 2, 3]


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs the nft command")
def test_nftables_stand_in_for_a_missing_classifier(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(netlink: object, index: int) -> bool:
        raise KernelRefusal(errno.ENOENT, "clsact")

    def rules() -> str:
        return ip("netns", "exec", wire.target, "nft", "list", "ruleset")

    def inside() -> tuple[str, str]:
        with quiet.quiet(socket.if_nametoindex("e0"), "e0", TransportFrames()) as mechanism:
            return mechanism, rules()

    monkeypatch.setattr(quiet, "_make_qdisc", refuse)
    mechanism, meanwhile = namespaces.visitor().inside(namespaces.DIRECTORY / wire.target, inside)
    assert mechanism == "nftables"
    assert 'iifname "e0" meta l4proto 253 drop' in meanwhile
    assert rules() == ""
