"""Receive queues: the rules one by one, and all together against lists that are searched."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.examples import examples
from uet.ses.matching import (
    Match,
    MatchedMessage,
    MatchingError,
    PostedReceive,
    ReceiveQueue,
    UnexpectedMessage,
)
from uet.wire.codes import ReturnCode

OK, NO_MATCH = ReturnCode.OK, ReturnCode.NO_MATCH
BAD_JOB_ID, UNSUPPORTED_SIZE = ReturnCode.BAD_JOB_ID, ReturnCode.UNSUPPORTED_SIZE
LAST_TAG = (1 << 64) - 1


def receive(tag: int | None = None, size: int = 16, **options: Any) -> PostedReceive:
    return PostedReceive(memoryview(bytearray(size)), tag, **options)


def posted(*receives: PostedReceive) -> ReceiveQueue:
    queue = ReceiveQueue(max_unexpected=8, max_unexpected_octets=64)
    for one in receives:
        assert queue.post(one) == []
    return queue


def tagged(
    queue: ReceiveQueue,
    bits: int,
    length: int = 4,
    initiator: int | None = 1,
    source: str | None = "a",
    job: int | None = 1,
) -> tuple[int, Match | None]:
    return queue.match_tagged(bits, length, initiator, source, job)


def taker(outcome: tuple[int, Match | None]) -> PostedReceive:
    code, match = outcome
    assert code == OK
    assert match is not None
    return match.receive


def test_untagged_first_posted_first() -> None:
    first, second = receive(), receive()
    queue = posted(first, second)
    assert taker(queue.match_untagged(4, 1, "a", 1)) is first
    assert taker(queue.match_untagged(4, 2, "b", 1)) is second
    assert queue.match_untagged(4, 1, "a", 1) == (NO_MATCH, None)
    assert queue.posted == 0


def test_tagged_and_untagged_do_not_meet() -> None:
    queue = posted(receive(), receive(0, ignore=LAST_TAG))
    taker(tagged(queue, 5))
    assert tagged(queue, 0) == (NO_MATCH, None)
    taker(queue.match_untagged(4, 1, "a", 1))
    assert queue.match_untagged(4, 1, "a", 1) == (NO_MATCH, None)
    queue.hold(UnexpectedMessage(4, tag=0))
    assert queue.post(receive()) == []
    queue.hold(UnexpectedMessage(4))
    assert len(queue.post(receive(1, ignore=LAST_TAG))) == 1
    assert queue.unexpected == 1


@pytest.mark.conformance("C-082")
@pytest.mark.parametrize(
    ("tag", "ignore", "bits", "matches"),
    [
        (5, 0, 5, True),
        (5, 0, 4, False),
        (5, 1, 4, True),
        (5, 1, 5, True),
        (5, 1, 6, False),
        (0, LAST_TAG, 12345, True),
        (LAST_TAG, 1 << 63, LAST_TAG >> 1, True),
        (LAST_TAG, 1 << 62, LAST_TAG >> 1, False),
        (0xAB00, 0xFF, 0xABCD, True),  # ignored bits of the tag itself count for nothing
        (0xAB99, 0xFF, 0xABCD, True),
    ],
)
def test_tags(tag: int, ignore: int, bits: int, matches: bool) -> None:
    """(tag ^ bits) & ~ignore == 0, for the message that comes and for the one that waits."""
    queue = posted(receive(tag, ignore=ignore))
    assert (tagged(queue, bits)[0] == OK) == matches
    queue = posted()
    assert queue.hold(UnexpectedMessage(4, tag=bits)) == OK
    assert bool(queue.post(receive(tag, ignore=ignore))) == matches


@pytest.mark.conformance("C-082")
def test_first_posted_wins_among_exact_and_wildcard() -> None:
    exact, wild, later = receive(5), receive(4, ignore=1), receive(5)
    queue = posted(exact, wild, later)
    assert [taker(tagged(queue, 5)) for _ in range(3)] == [exact, wild, later]
    queue = posted(wild, exact, later)
    assert [taker(tagged(queue, 5)) for _ in range(3)] == [wild, exact, later]


@pytest.mark.conformance("C-082")
def test_directed_receives_wait_for_their_sender() -> None:
    by_both = receive(5, initiator=7, source="b")
    by_initiator, by_source, anyone = (
        receive(5, initiator=7),
        receive(5, source="b"),
        receive(5),
    )
    queue = posted(by_both, by_initiator, by_source, anyone)
    assert taker(tagged(queue, 5, initiator=1, source="b")) is by_source
    assert taker(tagged(queue, 5, initiator=7, source="a")) is by_initiator
    assert taker(tagged(queue, 5, initiator=1, source="a")) is anyone
    assert tagged(queue, 5, initiator=1, source="a") == (NO_MATCH, None)
    assert tagged(queue, 5, initiator=None, source="b") == (NO_MATCH, None)
    assert taker(tagged(queue, 5, initiator=7, source="b")) is by_both


def test_directed_untagged_and_wildcard() -> None:
    queue = posted(receive(source="b"), receive(0, ignore=LAST_TAG, initiator=7))
    assert queue.match_untagged(4, 1, "a", 1) == (NO_MATCH, None)
    assert tagged(queue, 3, initiator=1) == (NO_MATCH, None)
    taker(queue.match_untagged(4, 1, "b", 1))
    taker(tagged(queue, 3, initiator=7))


def test_another_job_is_told_and_takes_nothing() -> None:
    """The check comes after matching: a later receive for the right job does not help."""
    bound, open_to_all = receive(5, job_id=9), receive(5)
    queue = posted(bound, open_to_all)
    assert tagged(queue, 5, job=1) == (BAD_JOB_ID, None)
    assert tagged(queue, 5, job=None) == (BAD_JOB_ID, None)
    assert queue.posted == 2
    assert taker(tagged(queue, 5, job=9)) is bound
    assert taker(tagged(queue, 5, job=1)) is open_to_all


def test_a_message_that_does_not_fit_uses_its_receive_up() -> None:
    one, two = receive(5, size=16), receive(5, size=17)
    queue = posted(one, two)
    code, match = tagged(queue, 5, 17)
    assert code == UNSUPPORTED_SIZE
    assert match is not None
    assert (match.receive, match.memory.nbytes, match.released) == (one, 0, True)
    code, match = tagged(queue, 5, 17)
    assert code == OK
    assert match is not None
    assert (match.receive, match.offset, match.memory.nbytes) == (two, 0, 17)
    assert queue.posted == 0


def test_a_datagram_that_does_not_fit_takes_nothing() -> None:
    queue = posted(receive(size=16))
    assert queue.match_untagged(17, 1, "a", 1, must_fit=True) == (UNSUPPORTED_SIZE, None)
    assert queue.posted == 1
    assert queue.match_untagged(16, 1, "a", 1, must_fit=True)[0] == OK


def test_a_receive_that_comes_back_has_its_place_again() -> None:
    for ignore in (0, 1):
        one, two, three = (receive(4, ignore=ignore) for _ in range(3))
        queue = posted(one, two, three)
        assert taker(tagged(queue, 4)) is one
        assert taker(tagged(queue, 4)) is two
        assert queue.post_again(two) == []
        assert queue.post_again(one) == []
        assert [taker(tagged(queue, 4)) for _ in range(3)] == [one, two, three]


def test_messages_land_where_the_match_says() -> None:
    memory = bytearray(16)
    queue = posted(PostedReceive(memoryview(memory), min_multi=6))
    for content, released in ((b"first", False), (b"", False), (b"second", True)):
        code, match = queue.match_untagged(len(content), 1, "a", 1)
        assert code == OK
        assert match is not None
        assert match.released == released
        match.memory[:] = content
    assert memory == b"firstsecond".ljust(16, b"\0")
    assert queue.posted == 0


def test_multi_receive_keeps_its_place() -> None:
    """The receive takes all messages that fit it, and goes once less than min_multi is free."""
    multi, single = receive(min_multi=6), receive(size=64)
    queue = posted(multi, single)
    assert taker(queue.match_untagged(5, 1, "a", 1)) is multi  # 11 are left
    code, match = queue.match_untagged(12, 1, "a", 1)
    assert match is not None
    assert (code, match.receive, match.offset, match.released) == (
        UNSUPPORTED_SIZE, multi, 5, False,
    )  # fmt: skip
    code, match = queue.match_untagged(5, 1, "a", 1)  # 6 are left
    assert match is not None
    assert (code, match.receive, match.offset, match.released) == (OK, multi, 5, False)
    code, match = queue.match_untagged(1, 1, "a", 1)
    assert match is not None
    assert (match.receive, match.offset, match.released) == (multi, 10, True)
    assert taker(queue.match_untagged(5, 1, "a", 1)) is single


def test_cancel_takes_the_first_of_that_context() -> None:
    one, two, three = receive(context="x"), receive(5, context="x"), receive(7, context="y")
    queue = posted(two, one, three)
    assert queue.cancel("z") is None
    assert queue.cancel("x") is two
    assert tagged(queue, 5) == (NO_MATCH, None)
    assert queue.cancel("x") is one
    assert queue.cancel("x") is None
    assert queue.cancel("y") is three
    assert queue.posted == 0
    queue.post(two)
    assert taker(tagged(queue, 5)) is two


def test_a_receive_that_was_used_up_can_be_posted_again() -> None:
    multi = receive(min_multi=12)
    queue = posted(multi)
    taker(queue.match_untagged(8, 1, "a", 1))
    assert queue.post(multi) == []
    _, match = queue.match_untagged(8, 1, "a", 1)
    assert match is not None
    assert (match.offset, match.released) == (0, True)


def test_unexpected_messages_are_met_in_order_of_arrival() -> None:
    queue = posted()
    first, other, second = (
        UnexpectedMessage(4, tag=5, token=1),
        UnexpectedMessage(4, tag=6),
        UnexpectedMessage(4, tag=5, data=memoryview(b"four")),
    )
    for message in (first, other, second):
        assert queue.hold(message) == OK
    assert queue.unexpected_octets == 4
    (meeting,) = queue.post(receive(5))
    assert meeting.message is first
    assert meeting.match is not None
    assert meeting.match.released
    (meeting,) = queue.post(receive(0, ignore=LAST_TAG))
    assert meeting.message is other
    assert queue.post(receive(9)) == []
    assert queue.posted == 1
    (meeting,) = queue.post(receive(5))
    assert meeting.message is second
    assert (queue.unexpected, queue.unexpected_octets, queue.posted) == (0, 0, 1)


def test_a_multi_receive_meets_several() -> None:
    queue = posted()
    messages = [UnexpectedMessage(length) for length in (6, 20, 4, 5, 3)]
    for message in messages:
        queue.hold(message)
    multi = receive(min_multi=4)
    meetings = queue.post(multi)
    assert [m.message for m in meetings] == messages[:4]
    assert [m.code for m in meetings] == [OK, UNSUPPORTED_SIZE, OK, OK]
    assert [m.match and (m.match.offset, m.match.released) for m in meetings] == [
        (0, False),
        (6, False),
        (6, False),
        (10, True),
    ]
    assert (queue.unexpected, queue.posted) == (1, 0)


def test_refused_meetings_leave_the_receive_posted() -> None:
    queue = posted()
    queue.hold(UnexpectedMessage(4, tag=5, job_id=1))
    one = receive(5, job_id=9)
    (meeting,) = queue.post(one)
    assert (meeting.code, meeting.match) == (BAD_JOB_ID, None)
    assert (queue.unexpected, queue.posted) == (0, 1)
    assert taker(tagged(queue, 5, job=9)) is one


def test_only_so_much_is_held() -> None:
    queue = ReceiveQueue(max_unexpected=2, max_unexpected_octets=10)
    eight, three, two = (UnexpectedMessage(n, data=memoryview(bytes(n))) for n in (8, 3, 2))
    assert queue.hold(eight) == OK
    assert queue.hold(three) == NO_MATCH
    assert queue.hold(two) == OK
    assert queue.hold(UnexpectedMessage(100)) == NO_MATCH
    assert queue.discard(eight)
    assert not queue.discard(eight)
    assert not queue.discard(three)
    assert queue.hold(three) == OK
    assert (queue.unexpected, queue.unexpected_octets) == (2, 5)
    assert ReceiveQueue().hold(UnexpectedMessage(0)) == NO_MATCH


def test_what_cannot_be_posted_or_held() -> None:
    queue = posted()
    one, message = receive(), UnexpectedMessage(4, tag=1)
    queue.post(one)
    queue.hold(message)
    with pytest.raises(MatchingError, match="posted already"):
        queue.post(one)
    with pytest.raises(MatchingError, match="held already"):
        queue.hold(message)
    for wrong, text in (
        (PostedReceive(memoryview(b"read-only")), "writable"),
        (PostedReceive(memoryview(bytearray(8)).cast("I")), "flat view"),
        (receive(ignore=1), "need a tag"),
        (receive(1 << 64), "64 bits"),
        (receive(-1), "64 bits"),
        (receive(1, ignore=1 << 64), "64 bits"),
        (receive(min_multi=0), "min_multi"),
        (receive(min_multi=17), "min_multi"),
    ):
        with pytest.raises(MatchingError, match=text):
            queue.post(wrong)
    assert (queue.posted, queue.unexpected) == (1, 1)


def test_nothing_is_left_behind() -> None:
    """A long life with many tags keeps no empty buckets."""
    queue = posted(receive(1))
    for tag in range(2, 500):
        queue.post(receive(tag, context=tag))
        assert queue.cancel(tag) is not None
        message = UnexpectedMessage(1, tag=tag)
        queue.hold(message)
        queue.discard(message)
    assert len(queue._tagged._exact) == 1  # noqa: SLF001  memory alone
    assert not queue._waiting_tagged._by_tag  # noqa: SLF001  memory alone


# -- all together --------------------------------------------------------------------------------

TAGS = st.sampled_from([0, 1, 2, 3, LAST_TAG])
IGNORES = st.sampled_from([0, 0, 0, 1, 2, LAST_TAG])
INITIATORS = st.sampled_from([None, 1, 2])
SOURCES = st.sampled_from([None, "a", "b"])
JOBS = st.sampled_from([None, None, 1, 2])
LENGTHS = st.integers(0, 9)
MOST, MOST_OCTETS = 4, 12


@dataclass(eq=False)
class NaiveReceive:
    real: PostedReceive
    free: int

    def matches(self, tag: int | None, initiator: int | None, source: str | None) -> bool:
        mine = self.real
        if (mine.tag is None) != (tag is None):
            return False
        if mine.tag is not None and tag is not None:
            for bit in range(64):
                if not mine.ignore >> bit & 1 and mine.tag >> bit & 1 != tag >> bit & 1:
                    return False
        return (mine.initiator is None or mine.initiator == initiator) and (
            mine.source is None or mine.source == source
        )

    def take(self, length: int, job: int | None) -> tuple[int, int | None, bool]:
        """Return code, offset, whether that was its last message."""
        if self.real.job_id is not None and self.real.job_id != job:
            return BAD_JOB_ID, None, False
        offset = self.real.memory.nbytes - self.free
        if length > self.free:
            return UNSUPPORTED_SIZE, offset, self.real.min_multi is None
        self.free -= length
        return OK, offset, self.real.min_multi is None or self.free < self.real.min_multi


class QueueModel(RuleBasedStateMachine):
    """One list of receives in posting order, one of messages in order of arrival."""

    @initialize()
    def begin(self) -> None:
        self.queue = ReceiveQueue(max_unexpected=MOST, max_unexpected_octets=MOST_OCTETS)
        self.receives: list[NaiveReceive] = []
        self.messages: list[UnexpectedMessage] = []

    @rule(
        tag=st.one_of(st.none(), TAGS),
        ignore=IGNORES,
        initiator=INITIATORS,
        source=SOURCES,
        job=JOBS,
        multi=st.sampled_from([None, None, 1, 3, 8]),
        size=st.integers(8, 20),
        context=st.integers(0, 5),
    )
    def post(
        self,
        tag: int | None,
        ignore: int,
        initiator: int | None,
        source: str | None,
        job: int | None,
        multi: int | None,
        size: int,
        context: int,
    ) -> None:
        real = PostedReceive(
            memoryview(bytearray(size)),
            tag,
            0 if tag is None else ignore,
            initiator,
            source,
            job,
            multi,
            context,
        )
        naive = NaiveReceive(real, size)
        expected = []
        last = False
        for message in list(self.messages):
            if not last and naive.matches(message.tag, message.initiator, message.source):
                code, offset, last = naive.take(message.length, message.job_id)
                self.messages.remove(message)
                expected.append((message, code, offset, last))
        if not last:
            self.receives.append(naive)
        meetings = self.queue.post(real)
        assert expected == [
            (
                meeting.message,
                meeting.code,
                meeting.match and meeting.match.offset,
                bool(meeting.match and meeting.match.released),
            )
            for meeting in meetings
        ]
        assert all(isinstance(meeting, MatchedMessage) for meeting in meetings)

    @rule(
        tag=st.one_of(st.none(), TAGS),
        initiator=INITIATORS,
        source=SOURCES,
        job=JOBS,
        length=LENGTHS,
        buffered=st.booleans(),
    )
    def arrive(
        self,
        tag: int | None,
        initiator: int | None,
        source: str | None,
        job: int | None,
        length: int,
        buffered: bool,
    ) -> None:
        """A message is matched, else held, else refused."""
        if tag is None:
            code, match = self.queue.match_untagged(length, initiator, source, job)
        else:
            code, match = self.queue.match_tagged(tag, length, initiator, source, job)
        for naive in self.receives:
            if naive.matches(tag, initiator, source):
                expected, offset, last = naive.take(length, job)
                assert code == expected
                if match is None:
                    assert offset is None
                else:
                    assert match.receive is naive.real
                    assert (match.offset, match.released) == (offset, last)
                    assert match.memory.nbytes == (length if code == OK else 0)
                if last:
                    self.receives.remove(naive)
                return
        assert (code, match) == (NO_MATCH, None)
        data = memoryview(bytes(length)) if buffered else None
        message = UnexpectedMessage(length, tag, initiator, source, job, data=data)
        octets = sum(m.data.nbytes for m in self.messages if m.data is not None)
        room = octets + (length if buffered else 0) <= MOST_OCTETS and len(self.messages) < MOST
        assert self.queue.hold(message) == (OK if room else NO_MATCH)
        if room:
            self.messages.append(message)

    @rule(context=st.integers(0, 5))
    def cancel(self, context: int) -> None:
        found = self.queue.cancel(context)
        expected = next((n for n in self.receives if n.real.context == context), None)
        assert found is (expected and expected.real)
        if expected:
            self.receives.remove(expected)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        message = self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))
        assert self.queue.discard(message)
        assert not self.queue.discard(message)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.posted == len(self.receives)
            assert self.queue.unexpected == len(self.messages)
            assert self.queue.unexpected_octets == sum(
                m.data.nbytes for m in self.messages if m.data is not None
            )


TestQueueModel = pytest.mark.conformance("C-082")(QueueModel.TestCase)
TestQueueModel.settings = examples(120, stateful_step_count=40)
