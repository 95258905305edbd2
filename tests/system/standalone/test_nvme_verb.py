"""``uetemu nvme`` in two namespaces: its traffic as Wireshark reads it, its life, bad input."""

import json
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import emulator.cli.nvme_verb
from tests.harness.lab.endpoint_process import Endpoint
from tests.harness.lab.traffic import within

pytestmark = pytest.mark.root

#: What a process of its own would spend most of its time on.
_PRELOADED = emulator.cli.nvme_verb
ADDRESS, NQN = "10.99.0.1", "nqn.2026-01.example:disk"
#: Severity of expert errors (Wireshark, PI_ERROR); TCP's own window notes lie below.
ERROR = 0x800000
#: Types of PDUs as the specification numbers them.
IC_REQ, IC_RESP, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T = 0, 1, 4, 5, 6, 7, 9


@pytest.fixture(scope="module", name="pair")
def two_namespaces() -> Iterator[tuple[str, str]]:
    """A target's namespace and a host's, with a veth pair between them."""
    tag = secrets.token_hex(4)
    names = (f"nvmet{tag}", f"nvmeh{tag}")
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", "e0", "netns", names[0], "type", "veth",
            "peer", "name", "e0", "netns", names[1])  # fmt: skip
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "e0")
            _ip("-n", name, "link", "set", "e0", "up")
        yield names
    finally:
        for name in made:
            _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def target(pair: tuple[str, str], *words: str, fresh: bool = False) -> Endpoint:
    ours = Endpoint(
        "nvme", "target", "-n", pair[0], "-l", ADDRESS, "-s", NQN, "--format", "json", *words,
        fresh=fresh,
    )  # fmt: skip
    ours.wait_for("start")
    return ours


def ask(pair: tuple[str, str], verb: str, *words: str, status: int = 0) -> Endpoint:
    disk = () if verb == "discover" else ("-s", NQN)
    ours = Endpoint("nvme", verb, "-n", pair[1], "--format", "json", ADDRESS, *disk, *words)
    assert ours.end() == status, ours.error
    return ours


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is missing")
@pytest.mark.parametrize("digests", ["none", "both"])
def test_wireshark_reads_every_pdu(pair: tuple[str, str], tmp_path: Path, digests: str) -> None:
    capture, source, copy = (tmp_path / name for name in ("capture.pcap", "in", "out"))
    source.write_bytes(random.Random(1).randbytes(300 << 10))
    sniffer = subprocess.Popen(
        ["ip", "netns", "exec", pair[0], "tcpdump", "-i", "e0", "-B", "65536", "-s", "0",
         "-U", "--immediate-mode", "-w", str(capture), "tcp", "port", "4420"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert sniffer.stderr is not None
    while "listening on" not in sniffer.stderr.readline():
        assert sniffer.poll() is None
    there = target(pair, "--memory", "4M")
    ask(pair, "discover", "--digests", digests)
    ask(pair, "write", "--digests", digests, "--offset", "8k", str(source))
    ask(pair, "read", "--digests", digests, "--offset", "8k", "--length", "300k",
        "-o", str(copy))  # fmt: skip
    small = ("--count", "20", "--depth", "4", "--pattern", "randwrite", "--verify")
    ask(pair, "bench", "--digests", digests, *small)
    there.end(signal.SIGTERM)
    assert [event for event in there.events if "fault" in event] == []
    answered = there.counters["commands"]
    within(20, lambda: dissected(capture)[0][RESPONSE] == answered, "the capture has all responses")
    sniffer.send_signal(signal.SIGINT)
    told = sniffer.communicate()[1]
    assert "\n0 packets dropped by kernel" in told, told
    assert copy.read_bytes() == source.read_bytes()

    kinds, experts = dissected(capture)
    for kind in (IC_REQ, IC_RESP, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T):
        assert kinds[kind], f"no PDU of type {kind} in {kinds}"
    assert set(kinds) == {IC_REQ, IC_RESP, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T}
    assert kinds[IC_REQ] == kinds[IC_RESP] == there.counters["connections"] == 7
    assert kinds[RESPONSE] == answered
    # Async Event Requests are the only commands that stay without an answer: one a controller
    assert kinds[COMMAND] == answered + there.counters["controllers"]
    assert experts == []


def dissected(capture: Path) -> tuple[Counter[int], list[str]]:
    """How many PDUs of each type tshark finds, and the errors of its experts."""
    command = ["tshark", "-n", "-r", str(capture), "-d", "tcp.port==4420,nvme-tcp",
               "-o", "nvme-tcp.check_hdgst:TRUE",
               "-o", "nvme-tcp.check_ddgst:TRUE", "-Y", "nvme-tcp",
               "-T", "fields", "-e", "nvme-tcp.type", "-e", "_ws.expert.severity",
               "-e", "_ws.expert.message", "-e", "_ws.malformed"]  # fmt: skip
    done = subprocess.run(
        command, check=True, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nowhere"},
    )  # fmt: skip
    kinds: Counter[int] = Counter()
    experts = []
    for line in done.stdout.splitlines():
        types, severities, message, malformed = line.split("\t")
        kinds.update(int(one, 0) for one in types.split(",") if one)
        if any(int(one, 0) >= ERROR for one in severities.split(",") if one):
            experts.append(message)
        if malformed:
            experts.append(malformed)
    return kinds, experts


def test_a_file_is_made_kept_and_served_again(pair: tuple[str, str], tmp_path: Path) -> None:
    disk, source = tmp_path / "disk.img", tmp_path / "in"
    source.write_bytes(random.Random(2).randbytes(64 << 10))
    there = target(pair, str(disk), "--size", "1M", "--block-size", "4096", fresh=True)
    ask(pair, "write", "--offset", "64k", str(source))
    assert there.end(signal.SIGTERM) == 0
    assert there.events[-1]["reason"] == "signal"
    assert disk.stat().st_size == 1 << 20
    assert disk.read_bytes()[64 << 10 : 128 << 10] == source.read_bytes()

    there = target(pair, str(disk), "--read-only", "--memory", "1M")
    controller, first, second = ask(pair, "identify").events
    assert controller["model"] == "uetemu NVMe/TCP"
    assert (first["write_protected"], second["write_protected"]) == (True, False)
    refused = ask(pair, "write", str(source), status=1)
    assert "namespace_write_protected" in refused.error
    ask(pair, "write", "--nsid", "2", str(source))
    there.end(signal.SIGTERM)


def test_a_host_waits_for_a_target_that_was_killed(pair: tuple[str, str], tmp_path: Path) -> None:
    disk = tmp_path / "disk.img"
    there = target(pair, str(disk), "--size", "16M")
    here = Endpoint(
        "nvme", "bench", "-n", pair[1], "--format", "json", ADDRESS, "-s", NQN,
        "--pattern", "randwrite", "--verify", "--depth", "8", "--count", "4000",
    )  # fmt: skip
    give_up = time.monotonic() + 20
    while disk.stat().st_blocks < 200 and time.monotonic() < give_up:
        assert here.process.poll() is None
        time.sleep(0.01)
    there.end(signal.SIGKILL)
    there = target(pair, str(disk))
    assert here.end() == 0, here.error
    counters = here.events[-1]["counters"]
    assert here.events[-1]["wrong"] == 0
    assert (counters["reconnects"], counters["lost_connections"]) == (1, 1)
    assert counters["retries"] > 0
    there.end(signal.SIGTERM)


def test_noise_ends_its_connection_alone(pair: tuple[str, str]) -> None:
    there = target(pair, "--memory", "1M")
    noise = (
        "import socket; one = socket.create_connection(('" + ADDRESS + "', 4420));"
        "one.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n' * 20); print(len(one.recv(4096)))"
    )
    done = subprocess.run(
        ["ip", "netns", "exec", pair[1], "python3", "-c", noise],
        check=True, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert int(done.stdout) >= 24  # C2HTermReq
    ask(pair, "identify")
    there.end(signal.SIGTERM)
    assert there.counters["bad_pdus"] == 1
    assert [event["fault"] for event in there.events if "invalid" in event.get("fault", "")] == [
        "invalid_header_field: type 0x47"
    ]


def test_io_goes_on_by_the_other_path(pair: tuple[str, str]) -> None:
    """Two cables and a listener at the end of each; the one in use is pulled while blocks go."""
    second = "10.99.1.1"
    _ip("link", "add", "e1", "netns", pair[0], "type", "veth",
        "peer", "name", "e1", "netns", pair[1])  # fmt: skip
    for number, name in enumerate(pair, start=1):
        _ip("-n", name, "addr", "add", f"10.99.1.{number}/24", "dev", "e1")
        _ip("-n", name, "link", "set", "e1", "up")
    there = target(pair, "-l", second, "--memory", "64M")
    enough = _sent_octets(pair[1], "e0") + 4_000_000
    ours = Endpoint(
        "nvme", "bench", "-n", pair[1], "--format", "json", f"{ADDRESS},{second}", "-s", NQN,
        "--pattern", "randwrite", "--verify", "--depth", "8", "--count", "16000",
        "--timeout", "0.5", "--ctrl-loss", "60",
    )  # fmt: skip
    try:
        within(30, lambda: _sent_octets(pair[1], "e0") > enough, "blocks are under way")
        ours.process.send_signal(signal.SIGSTOP)  # so that most are left, however long it takes
        _ip("-n", pair[0], "link", "set", "e0", "down")
        ours.process.send_signal(signal.SIGCONT)
        assert ours.end() == 0, ours.error
        (result,) = ours.events
        assert result["wrong"] == 0
        assert result["counters"]["failovers"] >= 1
        assert result["counters"]["lost_connections"] >= 1
        assert _sent_octets(pair[1], "e1") > 4_000_000
    finally:
        _ip("-n", pair[0], "link", "set", "e0", "up")
    there.end(signal.SIGTERM)


def _sent_octets(namespace: str, device: str) -> int:
    words = ["ip", "-n", namespace, "-s", "-j", "link", "show", "dev", device]
    (link,) = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return int(link["stats64"]["tx"]["bytes"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("target", "-s", NQN), "nothing is to be served; give a FILE, or --memory SIZE"),
        (("target", "-s", "disk", "--memory", "1M"), "is no NQN; write for example"),
        (("target", "-s", NQN, "/nowhere/disk"), "say --size SIZE and it is made"),
        (("target", "-s", NQN, "--memory", "100"), "less than a block"),
        (("target", "-s", NQN, "--memory", "1M", "--block-size", "520"), "use one of"),
        (("target", "-s", NQN, "--memory", "1M", "-l", "192.0.2.77"), "an address of this"),
        (("target", "-s", NQN, "--memory", "1M", "-l", ":99999"), "--listen: the port"),
        (("target", "-s", NQN, "--memory", "1M", "-n", "nobody"), "no network namespace"),
        (("discover", "host.example"), "is not an IP address"),
        (("discover", "127.0.0.1,127.0.0.2"), "give one address"),
        (("identify", "127.0.0.1,127.0.0.2", "-s", NQN), "give one address"),
        (("bench", "127.0.0.1,", "-s", NQN), "the target has no address"),
        (("read", "127.0.0.1:1", "-s", NQN), "Connection refused; start the target"),
        (("write", "127.0.0.1", "-s", NQN, "/nowhere"), "give a readable file"),
    ],
)
def test_bad_input(words: tuple[str, ...], sentence: str) -> None:
    ours = Endpoint("nvme", *words)
    assert ours.end() == 1
    assert ours.error.startswith("uetemu: ")
    assert len(ours.error.splitlines()) == 1
    assert sentence in ours.error


def test_who_may_not_connect(pair: tuple[str, str]) -> None:
    there = target(pair, "--memory", "1M", "--allow", "nqn.2026-01.example:friend")
    ask(pair, "identify", "--host", "nqn.2026-01.example:friend")
    assert "give --host NQN" in ask(pair, "identify", status=1).error
    there.end(signal.SIGTERM)
    there = target(pair, "--memory", "1M")
    ours = Endpoint("nvme", "identify", "-n", pair[1], ADDRESS, "-s", "nqn.2026-01.example:none")
    assert ours.end() == 1
    assert "uetemu nvme discover lists the subsystems" in ours.error
    there.end(signal.SIGTERM)


def test_ranges_that_cannot_be(pair: tuple[str, str], tmp_path: Path) -> None:
    there = target(pair, "--memory", "1M")
    out = tmp_path / "out"
    for words, sentence in (
        (("--offset", "3"), "no whole blocks of 512"),
        (("--offset", "1M", "--length", "512"), "do not lie in the namespace"),
        (("--nsid", "3"), "there is no namespace 3; there are: 1"),
    ):
        assert sentence in ask(pair, "read", *words, "-o", str(out), status=1).error
        assert not out.exists()
    there.end(signal.SIGTERM)
