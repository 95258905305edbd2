"""``uetemu fep`` and the machine: signals, interfaces, files, and what is left behind."""

import errno
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator.dataplane.kernel import namespaces, scoped_icmp_guard
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.netlink import KernelRefusal
from tests.harness.lab.fep_wire import (
    ADDRESSES,
    Endpoint,
    Wire,
    assert_all_ok,
    decoded,
    filters,
    initiate,
    ip,
    target,
)
from uet.pds.destination import Reception, RequestDestination
from uet.pds.pdc import Pdc
from uet.pds.scheduler import PdcScheduler
from uet.transport import Frame

pytestmark = pytest.mark.root

NATIVE = ("--encapsulation", "native", "--crc")


def test_the_kernel_sends_no_icmp(wire: Wire) -> None:
    """The kernel has the same address, and neither such a port nor such a protocol."""
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


def test_an_error_of_its_own_ends_one_pdc(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, shown once and in the exit status; others are served on."""
    take = RequestDestination.on_request

    def broken(self: RequestDestination, reception: Reception) -> None:
        if bytes(reception.packet[-6:]) == b"poison":
            raise IndexError("as a mistake of ours would")
        take(self, reception)

    monkeypatch.setattr(RequestDestination, "on_request", broken)
    with target(wire, "--region", "default:4k") as there:
        for _ in range(2):
            here = initiate(wire, "write:6,pattern=text:poison")
            assert here.completions()[0]["error"] == "CLOSING"
        assert_all_ok(initiate(wire, "write:1000"))
        assert there.end(signal.SIGTERM) == 1
    assert there.counters["internal_error"] == there.counters["pdc_errors"] == 2
    assert there.error.count("IndexError: as a mistake of ours would") == 1
    assert there.error.count("uetemu: ") == 1


def test_an_error_while_it_sends_ends_one_pdc(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = Pdc.attend
    raised: list[int] = []

    def broken(self: Pdc, out: list[Frame], now: int, limit: int) -> None:
        if not raised:
            raised.append(now)
            raise IndexError("as a mistake of ours would")
        attend(self, out, now, limit)

    monkeypatch.setattr(Pdc, "attend", broken)
    with target(wire, "--region", "default:4k") as there:
        monkeypatch.undo()  # the target is another process by now
        assert_all_ok(initiate(wire, "read:600"))  # the SYN packet, sent again, makes another PDC
        assert there.end(signal.SIGTERM) == 1
    assert there.counters["internal_error"] == there.counters["pdc_errors"] == 1
    assert there.error.count("IndexError: as a mistake of ours would") == 1


def test_an_error_of_no_pdc_ends_it(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come again and again."""

    def broken(self: PdcScheduler, *rest: object) -> None:
        raise IndexError("as a mistake of ours would")

    monkeypatch.setattr(PdcScheduler, "serve", broken)
    with target(wire, "--region", "default:4k") as there:
        assert there.end() == 1
    assert "IndexError: as a mistake of ours would" in there.error


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


@pytest.mark.parametrize("change", ["link del e2", "link set e2 mtu 700"])
def test_an_interface_that_is_taken_away_ends_it(wire: Wire, change: str) -> None:
    ip("link", "add", "e2", "netns", wire.initiator, "type", "veth",
       "peer", "name", "e3", "netns", wire.target)  # fmt: skip
    try:
        for end in ((wire.initiator, "e2"), (wire.target, "e3")):
            ip("-n", end[0], "link", "set", end[1], "up")
        here = Endpoint(
            "initiator", "-n", wire.initiator, "-i", "e2", "-a", "10.98.0.1",
            "-p", "10.98.0.2=02:00:00:00:00:02", "--in-flight", "0", "write:3000,count=9",
        )  # fmt: skip
        here.wait_for("start")
        ip("-n", wire.initiator, *change.split())
        assert here.end() == 1
    finally:
        subprocess.run(["ip", "-n", wire.target, "link", "del", "e3"], capture_output=True)
    stated = "e2 is gone" if "del" in change else "exceeds the MTU of its port"
    assert stated in here.error
    assert here.error.count("\n") == 1
    assert here.events[-1]["event"] == "end"
    assert here.events[-1]["operations"]["unfinished"] == 9


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
    ("words", "stated"),
    [
        (("-i", "nope", "-p", "10.99.0.2", "noop"), "there is no interface 'nope'"),
        (("-i", "lo", "-p", "10.99.0.2", "noop"), "no Ethernet interface"),
        (("-i", "e0", "-p", "203.0.113.1", "noop"), "the kernel has no route to 203.0.113.1"),
        pytest.param(
            ("-i", "e0", "-p", "10.99.0.77", "noop"),
            "no MAC address is known for 10.99.0.77",
            marks=pytest.mark.slow,  # as long as a neighbour has for its answer
        ),
        (("-i", "e0", "-p", "10.99.0.1", "noop"), "is the endpoint's own address"),
        (("-i", "e0", "-p", "10.99.0.2", "--mtu", "4096", "noop"), "needs an interface MTU of"),
        (("-i", "e0", "-p", "10.99.0.2", "-a", "fd99::1", "noop"), "not of one IP version"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(wire: Wire, words: Sequence[str], stated: str) -> None:
    here = Endpoint("initiator", "-n", wire.initiator, *words)
    assert here.end() == 1
    assert stated in here.error
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
    assert "1 operation had not ended" in here.error
    assert "the time allowed is over" in here.error


def test_a_region_that_is_not_as_expected_is_said(wire: Wire) -> None:
    with target(wire, "--region", "default:100,expect=reference", "--duration", "100ms") as there:
        assert there.end() == 1
    stated = "region 0x4000000000000123 is not as expected from octet 1 on"
    assert there.error == f"uetemu: {stated}\n"
    assert there.events[-1]["errors"] == [stated]


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
        with scoped_icmp_guard.guarded_interface(
            socket.if_nametoindex("e0"), "e0", TransportFrames()
        ) as mechanism:
            return mechanism, rules()

    monkeypatch.setattr(scoped_icmp_guard, "_make_qdisc", refuse)
    mechanism, meanwhile = namespaces.visitor().inside(namespaces.DIRECTORY / wire.target, inside)
    assert mechanism == "nftables"
    assert 'iifname "e0" meta l4proto 253 drop' in meanwhile
    assert rules() == ""
