"""The messages of a source, in the order in which their packets leave and are answered."""

from typing import Any

from uet.pds.semantics import Outbound
from uet.pds.source import OutboundMessages

MOST_SHORT = 2


class Ends:
    """Notes how messages end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, str | None]] = []

    def message_end(self, message: Any, now: int) -> None:
        self.heard.append(("end", message.id, message.error))

    def message_unsent(self, message: Any) -> None:
        self.heard.append(("unsent", message.id, message.error))


def posted(*packets: int) -> tuple[OutboundMessages, list[Outbound], Ends]:
    """Messages of so many ``packets`` in the queue."""
    ends = Ends()
    messages = OutboundMessages(ends, MOST_SHORT)  # type: ignore[arg-type]  # a stand-in of a Pdc
    made = [Outbound(n, 3, count) for n, count in enumerate(packets)]
    for message in made:
        message.ready = 1 << 30
        messages.post(message)
    return messages, made, ends


def test_messages_begin_in_the_order_of_their_posting() -> None:
    messages, made, _ = posted(1, 5, 2)
    assert messages.unsent_packets == 8
    begun = [messages.begin() for _ in made]
    assert begun == made
    assert list(messages.open.values()) == made
    assert messages.unsent_packets == 0


def test_packets_of_the_one_under_way_are_unsent_until_they_leave() -> None:
    messages, _, _ = posted(4, 3)
    messages.current = messages.begin()
    assert messages.unsent_packets == 7
    messages.current.sent = 3
    assert messages.unsent_packets == 4


def test_a_long_message_counts_until_its_last_packet_has_left() -> None:
    messages, made, _ = posted(MOST_SHORT, MOST_SHORT + 1)
    assert messages.long_unsent
    messages.begin()
    assert messages.long_unsent
    messages.current = messages.begin()
    assert messages.current is made[1]
    assert messages.long_unsent
    messages.current = None
    assert not messages.long_unsent


def test_what_is_taken_back_is_not_sent_here() -> None:
    messages, made, ends = posted(1, 5, 9)
    messages.begin()
    assert messages.take_back() == made[1:]
    assert messages.unsent_packets == 0
    assert not messages.long_unsent
    assert not messages.queue
    assert list(messages.open.values()) == made[:1]
    assert ends.heard == []


def test_a_message_that_is_cancelled_under_way_is_not_continued() -> None:
    messages, made, ends = posted(5)
    messages.current = messages.begin()
    messages.finish(made[0], 7)
    assert messages.current is None
    assert messages.open == {}
    assert ends.heard == [("end", 0, None)]


def test_messages_that_may_go_elsewhere_are_given_back_at_the_end() -> None:
    """Messages are given back of which nothing was sent, or nothing was carried out."""
    messages, made, ends = posted(2, 2, 2, 2)
    for _ in range(3):
        messages.current = messages.begin()
    made[1].error = "CANCELLED"
    messages.abandon("GONE", 7, frozenset({id(made[2])}))
    assert ends.heard == [
        ("unsent", 3, None),
        ("end", 0, "GONE"),
        ("end", 1, "CANCELLED"),
        ("unsent", 2, "GONE"),
    ]
    assert messages.current is None
    assert messages.open == {}
    assert messages.unsent_packets == 0
