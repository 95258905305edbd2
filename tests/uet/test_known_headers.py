"""An opener that has seen an IP header takes the next packet with it for what it is."""

import pytest

from tests.harness.uet.network import flip
from tests.uet.test_envelopes import (
    KINDS,
    TRIMMED,
    Kind,
    encapsulation,
    envelope,
    joined,
    named,
    write_request,
)
from uet.carrier_codec import Decapsulator


def other_end(kind: Kind) -> Decapsulator:
    return Decapsulator(encapsulation(kind, here=False), TRIMMED)


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_changed_cut_and_padded_frames_are_judged_as_ever(kind: Kind) -> None:
    frame = joined(envelope(kind).wrap(2, 50_000, write_request(8), b"12345678"))
    variants = [frame[:size] for size in range(len(frame))]
    variants += [flip(frame, bit) for bit in range(8 * len(frame))]
    variants += [frame + bytes(6), frame]
    seasoned = other_end(kind)
    assert not isinstance(seasoned.open(memoryview(frame)), str)
    for variant in variants:
        found = seasoned.open(memoryview(variant))
        assert found == other_end(kind).open(memoryview(variant))
        assert found == other_end(kind).open_any(memoryview(variant))


def test_made_up_headers_are_not_kept_for_ever() -> None:
    """A hostile sender has any number of source addresses, all of which are opened."""
    kind = (4, False, False)
    seasoned = other_end(kind)
    template = bytearray(joined(envelope(kind).wrap(2, 50_000, write_request(0))))
    for number in range(10_000):
        template[26:30] = number.to_bytes(4, "big")
        found = seasoned.open(memoryview(bytes(template)))
        assert not isinstance(found, str)
        assert found[0] == number.to_bytes(4, "big")
    assert len(seasoned._known4) <= 4_096  # noqa: SLF001  memory alone
