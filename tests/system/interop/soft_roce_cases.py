"""``uetemu hca`` against Soft-RoCE: what runs inside the machine that test_soft_roce.py boots.

::

    this namespace                                namespace "far"
    rxe0 -- e0 10.98.0.2, fd98::2  --- veth ---  e0 10.98.0.1, fd98::1 -- uetemu hca
            m0 10.97.0.2           --- veth ---  m0 10.97.0.1             (cards are exchanged)

Soft-RoCE of this kernel works in the first namespace only.  All cases held against that of Debian's
6.1.176-1 with rdma-core 44.0-2.  Each case leaves what came of it in
``results.json``; a case that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import emulator.cli.endpoints.hca_verb
import emulator.dataplane.cleanup
import emulator.lab.standalone.rocev2_endpoint
from tests.harness.lab.endpoint_process import Endpoint

if TYPE_CHECKING:
    from tests.system.interop.verbs_peer import VerbsPeer

#: What an endpoint would spend most of its time on.
_PRELOADED = (
    emulator.dataplane.cleanup,
    emulator.cli.endpoints.hca_verb,
    emulator.lab.standalone.rocev2_endpoint,
)
OUT = Path("/run/out")
NAMESPACE = "far"
OURS, THEIRS = {4: "10.98.0.1", 6: "fd98::1"}, {4: "10.98.0.2", 6: "fd98::2"}
MEET_OURS, MEET_THEIRS, MEET_PORT = "10.97.0.1", "10.97.0.2", 18516
LINK_MTU = 4500
#: Of hundreds of packets each way: that none of a kind is lost happens once in ten thousand runs.
LOSS, LOSSY_OCTETS = "4%", 250_003
#: PSNs that wrap during a case.
OUR_PSN, THEIR_PSN = 0xFF_FFF0, 0xFF_FF80
SIZE = 1 << 20
OUR_KEY, OUR_ADDRESS, OUR_SIZE = 0x4321_0000, 0x7000_0000_0000, 1 << 20
BUDGET = 90.0
#: Retry timers of 67 ms where frames are lost, and of 4 s, which no slow machine runs out of.
SHORT, LONG = 14, 20


def command(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")


def build() -> None:
    command("modprobe", "rdma_rxe")
    command("ip", "netns", "add", NAMESPACE)
    command("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
    networks = {
        "e0": ((OURS[4] + "/24", THEIRS[4] + "/24"), (OURS[6] + "/64", THEIRS[6] + "/64")),
        "m0": ((MEET_OURS + "/24", MEET_THEIRS + "/24"),),
    }
    for name, addresses in networks.items():
        command("ip", "link", "add", name, "mtu", str(LINK_MTU), "type", "veth",
                "peer", "name", name, "mtu", str(LINK_MTU), "netns", NAMESPACE)  # fmt: skip
        for ours, theirs in addresses:
            nodad = ("nodad",) if ":" in ours else ()
            command("ip", "-n", NAMESPACE, "addr", "add", ours, "dev", name, *nodad)
            command("ip", "addr", "add", theirs, "dev", name, *nodad)
        command("ip", "-n", NAMESPACE, "link", "set", name, "up")
        command("ip", "link", "set", name, "up")
    command("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "e0")


@contextlib.contextmanager
def loss(rate: str | None) -> Iterator[None]:
    """Frames are lost at random, each way, as the kernel's netem does it."""
    ends = (("tc",), ("tc", "-n", NAMESPACE))
    if rate is not None:
        for end in ends:
            command(*end, "qdisc", "add", "dev", "e0", "root", "netem", "loss", rate)
    try:
        yield
    finally:
        if rate is not None:
            for end in ends:
                command(*end, "qdisc", "del", "dev", "e0", "root")


# -- the two ends ----------------------------------------------------------------------------------


def hca(role: str, version: int, *words: str) -> Endpoint:
    return Endpoint(
        "hca", role, "-n", NAMESPACE, "-i", "e0", f"-{version}", "--psn", str(OUR_PSN), *words
    )


@contextlib.contextmanager
def verbs(version: int, mtu: int, timeout: int) -> Iterator[VerbsPeer]:
    from tests.system.interop.verbs_peer import VerbsPeer  # exists in the machine only

    peer = VerbsPeer(THEIRS[version], mtu=mtu, size=SIZE, psn=THEIR_PSN, timeout=timeout)
    try:
        yield peer
    finally:
        peer.close()


@contextlib.contextmanager
def asking(
    name: str,
    *operations: str,
    version: int = 4,
    mtu: int = 1024,
    timeout: int = LONG,
    words: Sequence[str] = (),
) -> Iterator[tuple[Endpoint, VerbsPeer, Callable[[], dict[str, Any]]]]:
    """Our endpoint as initiator; the third thing lets it begin."""
    listener = socket.create_server((MEET_THEIRS, MEET_PORT))
    listener.settimeout(BUDGET)
    ours = hca(
        "initiator", version, "--connect", f"{MEET_THEIRS}:{MEET_PORT}",
        "--set", f"timeout={timeout}", "--pcap", str(OUT / f"{name}.pcapng"), *words, *operations,
    )  # fmt: skip
    try:
        with listener, verbs(version, mtu, timeout) as theirs:
            yield ours, theirs, lambda: theirs.meet_on(listener)
    finally:
        finish(ours)


@contextlib.contextmanager
def serving(
    name: str, *words: str, version: int = 4, mtu: int = 1024, timeout: int = LONG
) -> Iterator[tuple[Endpoint, VerbsPeer, dict[str, Any]]]:
    """Our endpoint as target, connected; the third thing is its card."""
    ours = hca(
        "target", version, "--listen", f"{MEET_OURS}:{MEET_PORT}",
        "--set", f"timeout={timeout}", "--pcap", str(OUT / f"{name}.pcapng"), *words,
    )  # fmt: skip
    try:
        with verbs(version, mtu, timeout) as theirs:
            card = theirs.meet_at(MEET_OURS, MEET_PORT)
            yield ours, theirs, card
    finally:
        finish(ours)


def finish(ours: Endpoint) -> None:
    if ours.process.poll() is None:
        ours.process.kill()
    if ours.process.stdout is not None and not ours.process.stdout.closed:
        ours.end()


def same(have: bytes, requested_one: bytes, what: str) -> None:
    """Octet for octet."""
    if have != requested_one:
        pairs = enumerate(zip(have, requested_one, strict=False))
        at = next(
            (at for at, (one, other) in pairs if one != other), min(len(have), len(requested_one))
        )
        raise AssertionError(
            f"{what}: {len(have)} octets against {len(requested_one)}, they differ from {at} on"
        )


def ended_well(ours: Endpoint) -> dict[str, int]:
    """Its counters, once it has ended as it should."""
    status = ours.end(budget=BUDGET)
    wrong = [event for event in ours.completions() if not event["ok"]]
    assert status == 0, (wrong, ours.events[-1:], ours.error)
    return ours.counters


def succeeded(done: Sequence[dict[str, Any]]) -> None:
    assert all(wc["status"] == "SUCCESS" for wc in done), done


# -- data both ways ----------------------------------------------------------------------------


def ours_asks(
    name: str, *, octets: int, version: int = 4, mtu: int = 1024, timeout: int = LONG
) -> dict[str, int]:
    """WRITE, with an immediate too, READ, SEND, atomics of ours at Soft-RoCE."""
    draw = random.Random(name)
    written, more, read = draw.randbytes(octets), draw.randbytes(3001), draw.randbytes(octets - 2)
    sent = [draw.randbytes(length) for length in (1, mtu, 5 * mtu + 1)]
    files = {"written": written, "more": more, "read": read}
    files |= {f"sent{place}": data for place, data in enumerate(sent)}
    for key, data in files.items():
        (OUT / f"{name}-{key}").write_bytes(data)
    at_write, at_more, at_read, at_word = 5, 1 << 18, 5 << 16, 10 << 16
    at_receives = 11 << 16
    operations = [
        f"write:{octets},offset={at_write},pattern=file:{OUT}/{name}-written",
        f"write:3001,offset={at_more},pattern=file:{OUT}/{name}-more,header_data=0xa1b2c3d4",
        "write:0",
        f"read:{octets - 2},offset={at_read},expect=file:{OUT}/{name}-read",
        f"read:1,offset={at_read},expect=file:{OUT}/{name}-read",
        f"fetch:sum,offset={at_word},operand=5,count=3,expect=1000/1005/1010",
        f"cswap,offset={at_word},compare=1015,operand=0x0123456789abcdef,expect=1015",
        f"cswap,offset={at_word},compare=7,operand=8,expect=0x0123456789abcdef",
    ]
    operations += [
        f"send:{len(data)},pattern=file:{OUT}/{name}-sent{place},header_data={place}"
        for place, data in enumerate(sent)
    ]
    words = ("--in-flight", "0", "--timeout", f"{BUDGET:g}")
    with asking(name, *operations, version=version, mtu=mtu, timeout=timeout, words=words) as (
        ours,
        theirs,
        begin,
    ):
        theirs.put(0, bytes(SIZE))
        theirs.put(at_read, read)
        theirs.put(at_word, (1000).to_bytes(8, "little"))
        for place in range(1 + len(sent)):
            theirs.receive(at_receives + (place << 15), 1 << 15)
        begin()
        counters = ended_well(ours)
        done = theirs.completions(1 + len(sent))
        succeeded(done)
        notice, *messages = done
        assert notice["with_write"], notice
        assert notice["immediate"] == 0xA1B2C3D4, notice
        for place, (message, data) in enumerate(zip(messages, sent, strict=True)):
            assert (message["length"], message["immediate"]) == (len(data), place), message
            same(theirs.get(message["id"], len(data)), data, f"message {place}")
        same(theirs.get(at_write, octets), written, "what was written")
        same(theirs.get(0, at_write), bytes(at_write), "what is before it")
        same(theirs.get(at_write + octets, 64), bytes(64), "what is behind it")
        same(theirs.get(at_more, 3001), more, "what was written with an immediate")
        same(theirs.get(at_word, 8), 0x0123456789ABCDEF.to_bytes(8, "little"), "the word")
        reads = [event["sha256"] for event in ours.completions("read")]
        requested = [hashlib.sha256(data).hexdigest() for data in (read, read[:1])]
        assert reads == requested, reads
    return counters


def theirs_asks(
    name: str, *, octets: int, version: int = 4, mtu: int = 1024, timeout: int = LONG
) -> dict[str, int]:
    """WRITE, with an immediate too, READ, SEND, atomics of Soft-RoCE at ours."""
    draw = random.Random(name)
    before = draw.randbytes(OUR_SIZE - 8) + (1000).to_bytes(8, "little")
    written, more = draw.randbytes(octets), draw.randbytes(3001)
    sent = [draw.randbytes(length) for length in (1, mtu, 5 * mtu + 1)]
    (OUT / f"{name}-before").write_bytes(before)
    saved = OUT / f"{name}-saved"
    at_write, at_more, at_read, at_word = 5, 1 << 18, 3 << 17, OUR_SIZE - 8
    more_from, sends, read_to, words_to = 1 << 18, 9 << 15, 7 << 16, 3 << 18
    arrivals = 2 + len(sent)  # a write with an immediate completes a receive, and tells itself
    with serving(
        name,
        "--region", f"{OUR_KEY}:{OUR_SIZE},address={OUR_ADDRESS},fill=file:{OUT}/{name}-before",
        "--receive", f"{1 << 15}x{1 + len(sent)}",
        "--count", str(arrivals),
        "--duration", f"{BUDGET:g}",
        "--save", str(saved),
        version=version,
        mtu=mtu,
        timeout=timeout,
    ) as (ours, theirs, card):  # fmt: skip
        rkey, base = card["rkey"], card["vaddr"]
        assert (rkey, base, card["length"]) == (OUR_KEY, OUR_ADDRESS, OUR_SIZE), card
        theirs.put(0, written)
        theirs.put(more_from, more)
        for place, data in enumerate(sent):
            theirs.put(sends + (place << 15), data)
        theirs.write(0, octets, rkey, base + at_write)
        theirs.write(more_from, len(more), rkey, base + at_more, immediate=0xA1B2C3D4)
        theirs.write(0, 0, rkey, base)
        theirs.read(read_to, octets - 2, rkey, base + at_read)
        theirs.fetch_add(words_to, 5, rkey, base + at_word)
        theirs.fetch_add(words_to + 8, 5, rkey, base + at_word)
        theirs.compare_swap(words_to + 16, 1010, 0x0123456789ABCDEF, rkey, base + at_word)
        theirs.compare_swap(words_to + 24, 7, 8, rkey, base + at_word)
        for place, data in enumerate(sent):
            theirs.send(sends + (place << 15), len(data), immediate=place)
        done = theirs.completions(8 + len(sent), BUDGET)
        succeeded(done)
        counters = ended_well(ours)
        same(theirs.get(read_to, octets - 2), before[at_read : at_read + octets - 2], "the READ")
        words = [theirs.get(words_to + 8 * n, 8) for n in range(4)]
        fetched = [int.from_bytes(word, "little") for word in words]
        assert fetched == [1000, 1005, 1010, 0x0123456789ABCDEF], fetched
    after = bytearray(before)
    after[at_write : at_write + octets] = written
    after[at_more : at_more + len(more)] = more
    after[at_word:] = 0x0123456789ABCDEF.to_bytes(8, "little")
    same((saved / f"region-{OUR_KEY:#x}.bin").read_bytes(), bytes(after), "our memory")
    receives = [event for event in ours.completions("receive") if event["length"]]
    assert [event["header_data"] for event in receives] == ["0x0", "0x1", "0x2"], receives
    for event, data in zip(receives, sent, strict=True):
        same(Path(event["saved"]).read_bytes(), data, event["saved"])
    (notice,) = ours.completions("remote_write")
    assert (notice["header_data"], notice["length"]) == ("0xa1b2c3d4", len(more)), notice
    return counters


def ours_asks_without_loss(name: str, **how: int) -> dict[str, int]:
    """Nothing is repeated, unless one frame overtook another: where two processors serve the two
    ends of a veth pair that happens now and then, and looks like a loss."""
    counters = ours_asks(name, **how)
    assert not {"rx_naks_rnr", "rto_expirations"} & counters.keys(), counters
    if not {"implied_naks", "rx_naks_sequence"} & counters.keys():
        assert "tx_retransmitted_packets" not in counters, counters
    return counters


def theirs_asks_without_loss(name: str, **how: int) -> dict[str, int]:
    counters = theirs_asks(name, **how)
    assert "tx_naks_rnr" not in counters, counters
    if "rx_out_of_order" not in counters:
        assert not {"rx_duplicates", "tx_naks"} & counters.keys(), counters
    return counters


def ours_asks_with_loss(name: str) -> dict[str, int]:
    with loss(LOSS):
        counters = ours_asks(name, octets=LOSSY_OCTETS, timeout=SHORT)
    assert counters.get("tx_retransmitted_packets"), counters
    assert counters.get("rx_naks_sequence"), counters
    return counters


def theirs_asks_with_loss(name: str) -> dict[str, int]:
    with loss(LOSS):
        counters = theirs_asks(name, octets=LOSSY_OCTETS, timeout=SHORT)
    assert counters.get("rx_out_of_order"), counters
    assert counters.get("tx_naks"), counters
    return counters


# -- what is not in order ----------------------------------------------------------------------


def ours_waits_for_a_receive(name: str) -> dict[str, int]:
    """RNR: Soft-RoCE has no receive yet."""
    data = random.Random(name).randbytes(3000)
    (OUT / name).write_bytes(data)
    with asking(name, f"send:3000,pattern=file:{OUT / name}") as (ours, theirs, begin):
        begin()
        ours.wait_for("start", BUDGET)
        time.sleep(0.2)  # for it to be told so; asserted below
        theirs.receive(0, 4096)
        (done,) = theirs.completions(1)
        succeeded([done])
        same(theirs.get(0, 3000), data, "the message")
        counters = ended_well(ours)
    assert counters.get("rx_naks_rnr"), counters
    return counters


def theirs_waits_for_a_receive(name: str) -> dict[str, int]:
    """RNR: our endpoint has no receive yet."""
    data = random.Random(name).randbytes(3000)
    words = ("--receive", "4096", "--receive-after", "200ms", "--count", "1")
    with serving(name, *words, "--save", str(OUT / f"{name}-saved")) as (ours, theirs, _):
        theirs.put(0, data)
        theirs.send(0, 3000)
        succeeded(theirs.completions(1))
        counters = ended_well(ours)
    (event,) = ours.completions("receive")
    same(Path(event["saved"]).read_bytes(), data, "the message")
    assert counters.get("tx_naks_rnr"), counters
    return counters


def ours_is_refused(name: str) -> dict[str, int]:
    """A key that Soft-RoCE does not know, and a message that is too long for its receive.

    To the second it answers with a remote operational error, not the invalid request of IBA
    9.9.3.1; for us both end the connection.
    """
    with asking(name, "write:3000,key=0x99,error=REM_ACCESS_ERR") as (ours, _, begin):
        begin()
        ended_well(ours)
    with asking(name + "-long", "send:3000,error=REM_OP_ERR") as (ours, theirs, begin):
        theirs.receive(0, 100)
        begin()
        return ended_well(ours)


def theirs_is_refused(name: str) -> dict[str, int]:
    """A key that we do not know, a place outside of a region, a message that is too long."""
    region = ("--region", f"{OUR_KEY}:4096,address={OUR_ADDRESS}")
    for place, (rkey, address) in enumerate(((1, OUR_ADDRESS), (OUR_KEY, OUR_ADDRESS + 4000))):
        with serving(f"{name}-{place}", *region) as (ours, theirs, _):
            theirs.read(0, 100, rkey, address)
            (done,) = theirs.completions(1)
            assert done["status"] == "REM_ACCESS_ERR", done
            ours.end(signal.SIGTERM, budget=BUDGET)
            assert ours.counters["qp_errors"] == 1, ours.counters
    with serving(f"{name}-long", "--receive", "100") as (ours, theirs, _):
        theirs.send(0, 3000)
        (done,) = theirs.completions(1)
        assert done["status"] == "REM_INV_REQ_ERR", done
        ours.end(signal.SIGTERM, budget=BUDGET)
        (event,) = ours.completions("receive")
        assert event["error"] == "LOC_LEN_ERR", event
    return ours.counters


CASES: dict[str, Callable[[str], dict[str, int]]] = {
    "ours_asks": lambda name: ours_asks_without_loss(name, octets=100_003),
    "theirs_asks": lambda name: theirs_asks_without_loss(name, octets=100_003),
    "ours_asks_with_loss": ours_asks_with_loss,
    "theirs_asks_with_loss": theirs_asks_with_loss,
    "ours_asks_ipv6_4096": lambda name: ours_asks_without_loss(
        name, octets=60_001, version=6, mtu=4096
    ),
    "theirs_asks_ipv6_4096": lambda name: theirs_asks_without_loss(
        name, octets=60_001, version=6, mtu=4096
    ),
    "ours_waits_for_a_receive": ours_waits_for_a_receive,
    "theirs_waits_for_a_receive": theirs_waits_for_a_receive,
    "ours_is_refused": ours_is_refused,
    "theirs_is_refused": theirs_is_refused,
}


def main(requested: Sequence[str]) -> None:
    """Run those cases, or all."""
    build()
    from tests.system.interop.verbs_peer import counters

    results = {}
    for name in requested or CASES:
        began, before = time.monotonic(), counters()
        reported: dict[str, Any] = {"ok": False}
        try:
            reported["ours"] = CASES[name](name)
            reported["ok"] = True
        except Exception:  # noqa: BLE001  # the others shall run all the same
            reported["story"] = traceback.format_exc()
        reported["theirs"] = {
            key: value - before[key] for key, value in counters().items() if value != before[key]
        }
        reported["seconds"] = round(time.monotonic() - began, 1)
        results[name] = reported
        sys.stdout.write(f"{name}: {json.dumps(reported)}\n")
        sys.stdout.flush()
        (OUT / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
