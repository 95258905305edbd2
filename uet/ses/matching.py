"""Matching of messages with posted receives: the queues of one resource index (UES 3.4).

Untagged messages take posted receives in the order of posting.  A tagged message takes the first
posted receive with ``(tag ^ match bits) & ~ignore == 0``.  Either kind of receive may be for one
sender only (directed).  A multi-receive stays where it is in the order and takes message after
message, until too little of its memory is left.

A message that finds no receive may be held as unexpected; a receive that is posted later meets
the held messages in the order of their arrival.  So it does not matter which of the two comes
first: each meeting has the outcome that :meth:`ReceiveQueue.match_tagged` would have had.

A message that is longer than the memory of its receive uses the receive up without being placed,
or leaves it posted where ``must_fit`` is set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple, Protocol

from uet.wire.codes import ReturnCode

TAG_BITS: Final = 64
_TAG_MASK: Final = (1 << TAG_BITS) - 1
_OK: Final = int(ReturnCode.OK)
_NO_MATCH: Final = (int(ReturnCode.NO_MATCH), None)
_BAD_JOB_ID: Final = (int(ReturnCode.BAD_JOB_ID), None)
_UNSUPPORTED_SIZE: Final = int(ReturnCode.UNSUPPORTED_SIZE)

#: Match bits, initiator and source address; ``None`` for any
_Key = tuple[int, int | None, str | None]


class MatchingError(ValueError):
    """A receive cannot be posted, or a message held, as requested."""


@dataclass(slots=True, eq=False)
class PostedReceive:
    """Memory that waits for a message.

    Without ``tag`` it is for untagged messages.  Bits set in ``ignore`` may differ from the tag.
    ``initiator`` and ``source`` (a fabric address) restrict it to one sender; ``job_id`` is
    checked when the message has been matched.  ``min_multi`` makes it a multi-receive: it takes
    messages until fewer octets than that are free.  Nothing in it may change while it is queued.
    """

    memory: memoryview
    tag: int | None = None
    ignore: int = 0
    initiator: int | None = None
    source: str | None = None
    job_id: int | None = None
    min_multi: int | None = None
    context: object = None
    #: octets that messages have taken so far
    used: int = field(default=0, init=False)
    #: place in the order of posting; -1 if it is not queued
    sequence: int = field(default=-1, init=False)
    #: its place when it was posted, which it has again when it comes back
    place: int = field(default=-1, init=False)


@dataclass(slots=True, eq=False)
class UnexpectedMessage:
    """A message that waits for a receive.

    ``data`` is what has been buffered of it, and counts against the octets that may be held, so its
    size must not change.  ``token`` is the caller's, for messages to be requested again (deferrable
    sends).  Nothing else may change while it is held.
    """

    length: int
    tag: int | None = None
    initiator: int | None = None
    source: str | None = None
    job_id: int | None = None
    header_data: int | None = None
    data: memoryview | None = None
    token: object = None
    #: place in the order of arrival; -1 if it is not held
    sequence: int = field(default=-1, init=False)


class Match(NamedTuple):
    """The place of a message: ``memory``, which is ``offset`` octets into that of ``receive``.

    ``released``: the receive has left the queue and will take no further message. ``memory`` is
    empty where the message was too long.
    """

    receive: PostedReceive
    offset: int
    memory: memoryview
    released: bool


class MatchedMessage(NamedTuple):
    """The outcome of a held message when a receive was posted; the message is held no longer."""

    message: UnexpectedMessage
    code: int
    match: Match | None


class Watcher(Protocol):
    """Is notified, by context, of each receive that is queued or that a message consumes."""

    def queued(self, context: object) -> None: ...

    def taken(self, context: object) -> None: ...


class ReceiveQueue:
    """Posted receives and unexpected messages of one resource index.

    At most ``max_unexpected`` messages with ``max_unexpected_octets`` of buffered data are held;
    by default none.  With ``must_fit`` a receive that is too small stays posted.
    """

    def __init__(
        self,
        *,
        max_unexpected: int = 0,
        max_unexpected_octets: int = 0,
        must_fit: bool = False,
    ) -> None:
        self._must_fit = must_fit
        self._max_unexpected = max_unexpected
        self._max_octets = max_unexpected_octets
        self._sequence = count()
        self.watcher: Watcher | None = None
        #: how many receives are queued
        self.posted = 0
        self._untagged = _Posted()
        self._tagged = _Posted()
        self._waiting_untagged = _Unexpected()
        self._waiting_tagged = _Unexpected()
        self._octets = 0

    # -- receives ------------------------------------------------------------------------------

    def post(self, receive: PostedReceive) -> list[MatchedMessage]:
        """Queue a receive, after it has met the unexpected messages that it matches.

        A message may be refused, as at its arrival: with UNSUPPORTED_SIZE, which uses the receive
        up, or with BAD_JOB_ID; the receive then goes on to the next.  Raises
        :class:`MatchingError` for a receive that is queued already, or impossible.
        """
        _check(receive)
        receive.place = next(self._sequence)
        return self.post_again(receive)

    def post_again(self, receive: PostedReceive) -> list[MatchedMessage]:
        """Queue a receive that was posted before, at the place that it had then."""
        receive.used = 0
        meetings: list[MatchedMessage] = []
        waiting = self._waiting_untagged if receive.tag is None else self._waiting_tagged
        while (message := waiting.first(receive)) is not None:
            code, match = _take(receive, message.length, message.job_id)
            if self._must_fit and code != _OK:
                match = None
            self.discard(message)
            meetings.append(MatchedMessage(message, code, match))
            if match is not None and match.released:
                if self.watcher is not None:
                    self.watcher.taken(receive.context)
                return meetings
        receive.sequence = receive.place
        self.posted += 1
        (self._untagged if receive.tag is None else self._tagged).add(receive)
        if self.watcher is not None:
            self.watcher.queued(receive.context)
        return meetings

    def cancel(self, context: object) -> PostedReceive | None:
        """Take back the first posted receive whose context equals ``context``, if there is one."""
        found = None
        for queue in (self._untagged, self._tagged):
            for receive in queue:
                if receive.context == context and (
                    found is None or receive.sequence < found.sequence
                ):
                    found = receive
        if found is not None:
            self._remove(found)
        return found

    def match_untagged(
        self,
        length: int,
        initiator: int | None,
        source: str | None,
        job_id: int | None,
        *,
        must_fit: bool = False,
    ) -> tuple[int, Match | None]:
        """Memory for an untagged message of ``length`` octets: a return code, and on OK where.

        NO_MATCH: no receive is posted for this sender.  BAD_JOB_ID: the first that is belongs to
        another job; it stays posted.  UNSUPPORTED_SIZE: the first that is has too little memory;
        the match names it, and it is used up unless it is a multi-receive.  With ``must_fit`` such
        a receive stays posted, and there is no match.
        """
        return self._match(self._untagged, 0, length, initiator, source, job_id, must_fit)

    def match_tagged(
        self,
        match_bits: int,
        length: int,
        initiator: int | None,
        source: str | None,
        job_id: int | None,
    ) -> tuple[int, Match | None]:
        """Match a tagged message."""
        return self._match(self._tagged, match_bits, length, initiator, source, job_id)

    def _match(
        self,
        queue: _Posted,
        bits: int,
        length: int,
        initiator: int | None,
        source: str | None,
        job_id: int | None,
        must_fit: bool = False,
    ) -> tuple[int, Match | None]:
        receive = queue.first(bits, initiator, source)
        if receive is None:
            return _NO_MATCH
        code, match = _take(receive, length, job_id)
        if (must_fit or self._must_fit) and code != _OK:
            return code, None
        if match is not None and match.released:
            self._remove(receive)
            if self.watcher is not None:
                self.watcher.taken(receive.context)
        return code, match

    def _remove(self, receive: PostedReceive) -> None:
        (self._untagged if receive.tag is None else self._tagged).remove(receive)
        receive.sequence = -1
        self.posted -= 1

    # -- unexpected messages -------------------------------------------------------------------

    def hold(self, message: UnexpectedMessage) -> int:
        """Keep a message that has just had NO_MATCH: OK, or NO_MATCH if there is no room for it.

        Raises :class:`MatchingError` if it is held already.
        """
        if message.sequence >= 0:
            raise MatchingError("the message is held already; discard it first")
        octets = 0 if message.data is None else message.data.nbytes
        if self.unexpected >= self._max_unexpected or self._octets + octets > self._max_octets:
            return _NO_MATCH[0]
        self._octets += octets
        message.sequence = next(self._sequence)
        self._waiting(message).add(message)
        return _OK

    def discard(self, message: UnexpectedMessage) -> bool:
        """Hold a message no longer, as its sender gave up; whether it was held."""
        if message.sequence < 0:
            return False
        self._waiting(message).remove(message)
        message.sequence = -1
        self._octets -= 0 if message.data is None else message.data.nbytes
        return True

    def _waiting(self, message: UnexpectedMessage) -> _Unexpected:
        return self._waiting_untagged if message.tag is None else self._waiting_tagged

    @property
    def unexpected(self) -> int:
        """Return how many messages are held."""
        return len(self._waiting_untagged) + len(self._waiting_tagged)

    @property
    def unexpected_octets(self) -> int:
        """Return how much buffered data they have."""
        return self._octets


def _check(receive: PostedReceive) -> None:
    memory = receive.memory
    if receive.sequence >= 0:
        raise MatchingError("the receive is posted already; cancel it first")
    if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous:
        raise MatchingError("the memory of a receive must be a flat view of octets: .cast('B')")
    if memory.readonly:
        raise MatchingError("read-only memory cannot take a message; post writable memory")
    if receive.tag is None and receive.ignore:
        raise MatchingError("ignore bits need a tag; give one, or leave them out")
    if not 0 <= (receive.tag or 0) <= _TAG_MASK or not 0 <= receive.ignore <= _TAG_MASK:
        raise MatchingError(f"tag and ignore bits must fit into {TAG_BITS} bits")
    if receive.min_multi is not None and not 1 <= receive.min_multi <= memory.nbytes:
        raise MatchingError(
            f"min_multi is {receive.min_multi}; it must be at least 1 and at most the memory's"
            f" {memory.nbytes} octets"
        )


def _take(receive: PostedReceive, length: int, job_id: int | None) -> tuple[int, Match | None]:
    """Give a matched message its place, if job and size allow (UES 3.4.1, receive checks).

    One that is too long takes no memory, but the receive, unless that is a multi-receive.
    """
    if receive.job_id is not None and receive.job_id != job_id:
        return _BAD_JOB_ID
    offset, memory = receive.used, receive.memory
    end = offset + length
    if end > len(memory):
        return _UNSUPPORTED_SIZE, Match(
            receive, offset, memory[offset:offset], receive.min_multi is None
        )
    receive.used = end
    released = receive.min_multi is None or len(memory) - end < receive.min_multi
    return _OK, Match(receive, offset, memory[offset:end], released)


class _Posted:
    """Receives in posting order, looked up by their key, or one by one if bits are ignored."""

    __slots__ = ("_exact", "_wild")

    def __init__(self) -> None:
        # Ordered dictionaries stay fast when they lose their first item over and over.
        self._exact: dict[_Key, OrderedDict[int, PostedReceive]] = {}
        self._wild: OrderedDict[int, PostedReceive] = OrderedDict()

    def __iter__(self) -> Iterator[PostedReceive]:
        for bucket in (*self._exact.values(), self._wild):
            yield from bucket.values()

    def add(self, receive: PostedReceive) -> None:
        place = receive.sequence
        if receive.ignore:
            bucket = self._wild
        else:
            key = (receive.tag or 0, receive.initiator, receive.source)
            bucket = self._exact.setdefault(key, OrderedDict())
        late = bool(bucket) and place < next(reversed(bucket))
        bucket[place] = receive
        if late:  # it was posted before the others, and comes back
            for other in sorted(bucket):
                bucket.move_to_end(other)

    def remove(self, receive: PostedReceive) -> None:
        place = receive.sequence
        if receive.ignore:
            del self._wild[place]
            return
        key = (receive.tag or 0, receive.initiator, receive.source)
        bucket = self._exact[key]
        del bucket[place]
        if not bucket:
            del self._exact[key]

    def first(self, bits: int, initiator: int | None, source: str | None) -> PostedReceive | None:
        """The first posted that matches."""
        found: PostedReceive | None = None
        before: int | None = None
        exact = self._exact
        if exact:
            for key in (
                (bits, None, None),
                (bits, initiator, None),
                (bits, None, source),
                (bits, initiator, source),
            ):
                bucket = exact.get(key)
                if bucket is not None:
                    place = next(iter(bucket))
                    if before is None or place < before:
                        before, found = place, bucket[place]
        for place, receive in self._wild.items():
            if before is not None and place > before:
                break
            if _fits(receive, bits, initiator, source):
                return receive
        return found


def _fits(receive: PostedReceive, bits: int, initiator: int | None, source: str | None) -> bool:
    return (
        not ((receive.tag or 0) ^ bits) & ~receive.ignore
        and receive.initiator in (None, initiator)
        and receive.source in (None, source)
    )


class _Unexpected:
    """Messages in the order of arrival, all of them and by tag."""

    __slots__ = ("_all", "_by_tag")

    def __init__(self) -> None:
        self._all: OrderedDict[int, UnexpectedMessage] = OrderedDict()
        self._by_tag: dict[int, OrderedDict[int, UnexpectedMessage]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, message: UnexpectedMessage) -> None:
        place, tag = message.sequence, message.tag or 0
        self._all[place] = message
        self._by_tag.setdefault(tag, OrderedDict())[place] = message

    def remove(self, message: UnexpectedMessage) -> None:
        place, tag = message.sequence, message.tag or 0
        del self._all[place]
        bucket = self._by_tag[tag]
        del bucket[place]
        if not bucket:
            del self._by_tag[tag]

    def first(self, receive: PostedReceive) -> UnexpectedMessage | None:
        """The first to arrive that the receive matches, whatever its job and length."""
        some = self._all if receive.ignore else self._by_tag.get(receive.tag or 0)
        if some:
            for message in some.values():
                if _fits(receive, message.tag or 0, message.initiator, message.source):
                    return message
        return None
