"""Secured endpoints that start again at their addresses, with the key file they had (UES 3.7)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.utils import RawPcapNgReader

from tests.harness.lab.fep_wire import ADDRESSES, Wire, assert_all_ok, decoded, initiate, target
from tests.harness.uet.tss_vectors import parts

pytestmark = pytest.mark.root

KEY = bytes(range(32)).hex()
COUNT = "fetch:sum,operand=5"


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with Wire().up() as made:
        yield made


def seals(capture: Path) -> dict[tuple[bytes, int, bytes], bytes]:
    """Return what was sealed, by what must be unique under one key: source, AN and TSC."""
    found = {}
    for frame, _ in RawPcapNgReader(str(capture)):
        prefix, packet, _ = parts(frame)
        assert packet[0] >> 3 == 1
        found[prefix[:4], packet[0] & 1, packet[4:12]] = packet
    return found


@pytest.mark.conformance("C-131", "C-142")
@pytest.mark.parametrize("mode", ["direct", "cluster"])
def test_restarts_with_one_key_file(wire: Wire, tmp_path: Path, mode: str) -> None:
    """Initiators that end and are killed, a target that is killed: all work on, nothing repeats."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"sdi": 1, "mode": mode, "keys": {"0": KEY}}]))
    captures: list[Path] = []

    def secured() -> tuple[str, ...]:
        captures.append(tmp_path / f"{len(captures)}.pcapng")
        return "--keys", str(keys), "--pcap", str(captures[-1])

    for life in range(2):
        with target(wire, *secured(), "--region", "default:64k,fill=uint64:1000") as there:
            for number in range(2):
                expected = 1000 + 5 * number
                assert_all_ok(initiate(wire, *secured(), f"{COUNT},expect={expected}"))
            there.process.send_signal(signal.SIGTERM if life else signal.SIGKILL)
            there.process.wait()
    packets: dict[tuple[bytes, int, bytes], bytes] = {}
    for capture in captures:
        for stamp, packet in seals(capture).items():
            assert packets.setdefault(stamp, packet) == packet
        # Each capture has its keys beside it, and opens with them.
        assert not [frame for frame in decoded(capture) if frame["errors"]]
    sources = {source for source, _, _ in packets}
    assert (len(sources), len(packets) > 20) == (2, True)


@pytest.mark.conformance("C-141")
def test_two_ends_with_one_identifier_are_told(wire: Wire, tmp_path: Path) -> None:
    """Else the user saw no more than retransmissions that run out."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"sdi": 1, "mode": "cluster", "ssi": 7, "keys": {"0": KEY}}]))
    words = ("--keys", str(keys))
    with target(wire, *words, "--region", "default:4k", fresh=True) as there:
        initiate(wire, *words, "--rto", "5ms", "--retries", "1", "write:100")
    assert f"{ADDRESSES[4][0]} sends under SSI 7, which is this endpoint's own" in there.error
    assert there.error.count("SSI 7") == 1
