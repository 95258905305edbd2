"""Every capture of another implementation decodes without a complaint."""

import pytest

from tests.harness.replay.capture import NAMES, packets


def test_there_are_captures() -> None:
    assert len(NAMES) == 46


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_decodes(name: str) -> None:
    for packet in packets(name):  # decoding asserts that there are no errors
        assert packet.decoded.is_uet
        assert not packet.decoded.trimmed
        # Nothing is left over: layers lie one after the other, up to the end of the frame.
        ends = [layer.offset + layer.length for layer in packet.decoded.layers]
        assert ends[-1] <= len(packet.octets)
