"""The generated dissector, with all that it can do switched on, against frames made to break it."""

import random
from pathlib import Path

import pytest

from tests.harness.wire import golden
from tests.harness.wire.tshark import CAPTURES, TSHARK, read_pcap, tshark, write
from tests.uet.wire.wireshark.test_tunnels_dissected import ADDRESSES, TUNNELS, WRITE, carried
from uet.wire.wireshark import dissector

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

EVERYTHING = (
    *("-o", "uet.links:TRUE", "-o", "uet.reference_provider:TRUE", "-o", "uet.dscp:10-12"),
    *("-o", "udp.try_heuristic_first:TRUE"),
)


def hostile(rng: random.Random, count: int) -> list[bytes]:
    """Frames with octets changed anywhere behind the Ethernet header, cut, or stretched."""
    good = [vector.frame for vector in golden.ALL]
    good += [carried(name, ADDRESSES / WRITE) for name in TUNNELS]
    for capture in sorted(CAPTURES.glob("*sync*.pcap")):
        good += read_pcap(capture)
    frames = []
    for _ in range(count):
        frame = bytearray(rng.choice(good))
        for _ in range(rng.randint(0, 4)):
            frame[rng.randrange(14, len(frame))] = rng.choice((0, 0xFF, rng.randrange(256)))
        kept = rng.choice((len(frame), len(frame), rng.randrange(14, len(frame))))
        frames.append(bytes(frame[:kept]) + rng.randbytes(rng.choice((0, 0, 3, 40))))
    return frames


@pytest.mark.parametrize("mode", [("-V",), (), ("-Y", "uet.pds.psn || uet.ses.opcode || uet.crc")])
def test_no_frame_stops_the_script(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """:func:`tshark` looks for Lua's errors in what is shown."""
    script = tmp_path / "uet.lua"
    script.write_text(dissector.dissector())
    frames = hostile(random.Random(len(mode)), 1_500)
    wire = [len(frame) + (n % 5 == 0) * 30 for n, frame in enumerate(frames)]
    capture = write(tmp_path / "hostile.pcap", frames, wire=wire)
    shown = tshark(script, capture, *EVERYTHING, *mode)
    assert shown.count("Ultra Ethernet" if mode == ("-V",) else " UET ") > 700
    stopped = tshark(script, capture, *EVERYTHING, "-Y", "_ws.lua.error")
    assert stopped == ""
