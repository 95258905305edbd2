"""Sends and receives that find each other."""

from emulator.torch_backend.calls import ANY, RECEIVE, SEND, Call
from emulator.torch_backend.message_sides import MessageSides

_MEMBERS = (4, 5, 6)


def _call(kind: str, rank: int, other: int, number: int = 1, tag: int = 0) -> Call:
    """Return one side of a message; ``other`` is the position of the other side."""
    return Call(
        rank=rank,
        number=number,
        clock_ns=0,
        kind=kind,
        group="0",
        members=_MEMBERS,
        octets=8,
        source=0,
        source_octets=8,
        result_octets=8,
        root=other,
        tag=tag,
    )


def test_a_receive_from_any_rank_takes_the_first_send_that_is_there() -> None:
    sides = MessageSides()
    sends = [_call(SEND, rank, 0) for rank in (6, 5)]
    assert [sides.partner(one) for one in sends] == [None, None]
    assert sides.partner(_call(RECEIVE, 4, ANY)) is sends[0]
    assert sides.partner(_call(RECEIVE, 4, ANY)) is sends[1]
    assert sides.partner(_call(RECEIVE, 4, ANY)) is None


def test_a_send_takes_the_first_receive_that_it_fits() -> None:
    sides = MessageSides()
    others = _call(RECEIVE, 4, 1), _call(RECEIVE, 4, ANY, 2, tag=7), _call(RECEIVE, 5, ANY)
    named, open_ = _call(RECEIVE, 4, 2, 3), _call(RECEIVE, 4, ANY, 4)
    for one in (*others, open_, named):
        assert sides.partner(one) is None
    assert sides.partner(_call(SEND, 6, 0)) is open_
    assert sides.partner(_call(SEND, 6, 0)) is named
    assert sides.open == list(others)
