"""Packets of RoCEv2: their CRC is the same whichever library computes it."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from emulator.rocev2.wire import packets
from tests import CHECKOUT

_SOURCE = CHECKOUT / "emulator" / "rocev2" / "wire" / "packets.py"
_UDP_AT = 20


@pytest.mark.parametrize("octets", [60, 1_000, 4_150])
def test_icrc_does_not_need_zlib_ng(octets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packet = b"\x45" + bytes(number * 7 & 0xFF for number in range(octets))
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    spec = spec_from_file_location("packets_with_zlib", _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    alone = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "packets_with_zlib", alone)
    spec.loader.exec_module(alone)
    assert alone.icrc(packet, _UDP_AT) == packets.icrc(packet, _UDP_AT)
