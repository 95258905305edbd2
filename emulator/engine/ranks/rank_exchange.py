"""The exchange between the ranks of a run, which all make the same calls in the same order.

Each rank carries out its own part of a step and sends the outcome to every other one, without
waiting (:meth:`Ranks.share`). Then it takes theirs (:meth:`Ranks.hear`)::

    rank 0            rank 1
    own part          own part          frames, times and news of one window
    share  ---------> hear
    hear   <--------- share

A rank whose run ends early says why (:meth:`Ranks.leave`), so that nobody waits for it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any, Protocol, TypeVar

from emulator.endpoint.agent_processes import AgentError
from emulator.errors import UserError, is_full
from emulator.logs import plain_logger

_log = plain_logger(__name__)

T = TypeVar("T")

#: Host time (s) after which a rank that has sent nothing is given up, unless this variable says.
PATIENCE_S = 300.0
PATIENCE_VARIABLE = "UETEMU_RANK_PATIENCE"
#: Host time (s) that ranks have to remove their labs before the launcher is to end all.
PARTING_S = 20.0
#: Host time (s) in which a rank that the launcher interrupts says so.
_OBITUARY_S = 0.5
#: Reasons of ranks that the launcher, or a user, has interrupted.
_INTERRUPTIONS = tuple(f"interrupted by {one.name}" for one in (SIGINT, SIGTERM, SIGHUP))
#: Host time (s) between two polls beyond which this rank was stopped, or its machine was.
_STALL_S = 1.0
#: Polls before a rank that waits begins to sleep, and its longest sleep (s).
_EAGER_POLLS = 300
_LONGEST_PAUSE_S = 0.001

RANK_NAME = "MPI rank"
#: The step that is a window of virtual time.
WINDOW = "advance"
#: Kinds of messages: the outcome of a step; the reason of an early end; a lab that is removed.
_STEP, _LEFT, _PARTED = "step", "left", "parted"


class Channel(Protocol):
    """Brings messages from rank to rank, those of one pair in order."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    def send(self, peer: int, octets: bytes) -> None:
        """Send ``octets`` to ``peer``, and return at once."""

    def poll(self, peer: int) -> bytes | None:
        """Return the next message of ``peer`` if it is there."""

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""


@dataclass(frozen=True)
class Death:
    """The end of rank ``number`` that ends all others, in a sentence that names its machine."""

    number: int
    sentence: str


class Watch(Protocol):
    """Whoever knows of ranks that have died, and sees to what they leave."""

    @property
    def contact(self) -> object:
        """Return how those of the other ranks find that of rank 0; None elsewhere."""

    def introduce(self, machines: list[str], contact: object) -> None:
        """Report the machines of all ranks, and the ``contact`` of rank 0."""

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Report the ``lab`` that is to be removed, or the run's ``folder``, of rank 0."""

    def death(self) -> Death | None:
        """Return which rank has died first."""


class RankGone(AgentError):
    """Another rank has ended its run, or answers no more."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, died=True)


class Ranks:
    """The ranks of a run as this one sees them; ``channel`` brings their messages.

    ``patience_s`` is how long it waits for a silent one (host time), and ``watch`` knows of deaths.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        machine: str,
        patience_s: float = PATIENCE_S,
        watch: Watch | None = None,
    ) -> None:
        self._channel, self._watch = channel, watch
        self.number, self.count = channel.number, channel.count
        self.patience_s = patience_s
        self.machines = [machine] * channel.count
        self._step = self._windows = self._sent_octets = 0
        self._early: dict[int, deque[tuple[Any, ...]]] = {
            peer: deque() for peer in range(self.count)
        }
        self._left: dict[int, str] = {}
        self._parted: set[int] = set()
        #: ranks that were given up
        self.silent: set[int] = set()
        #: this rank shares nothing any more
        self.ended = False
        #: why it has ended
        self.last_words = ""
        #: what another rank has raised, and this one has raised again
        self.heard: Exception | None = None

    @property
    def others(self) -> Sequence[int]:
        """The numbers of all other ranks."""
        return [peer for peer in range(self.count) if peer != self.number]

    def name(self, peer: int) -> str:
        """Return ``peer`` and its machine, as a sentence names them."""
        return f"{RANK_NAME} {peer} on {self.machines[peer]}"

    def introduce(self) -> None:
        """Have those that watch the ranks know :attr:`machines`, and each other."""
        if self._watch is not None:
            contacts = self.gather("guardians", self._watch.contact)
            self._watch.introduce(self.machines, contacts[0])

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Have whoever watches this rank know the ``lab``, or the run's ``folder``, it has."""
        if self._watch is not None:
            self._watch.holds(lab=lab, folder=folder)

    # Steps

    def gather(self, what: str, value: object) -> list[Any]:
        """Return the ``value`` of every rank, by number; ``what`` is the step's name."""
        self.share(what, lambda _: value)
        return [value if peer == self.number else self.hear(peer) for peer in range(self.count)]

    def trade(self, what: str, parcels: Sequence[object]) -> list[Any]:
        """Send each rank its one of ``parcels``; return what every rank has for this, by number."""
        self.share(what, lambda peer: parcels[peer])
        return [
            parcels[peer] if peer == self.number else self.hear(peer) for peer in range(self.count)
        ]

    def to_first(self, what: str, value: object) -> list[Any]:
        """Return the ``value`` of every rank, by number, at rank 0; others get an empty list."""
        self.share_with_first(what, value)
        return [] if self.number else [value, *map(self.hear, self.others)]

    def share_with_first(self, what: str, value: object) -> None:
        """Send rank 0 this one's ``value`` of a step in which that rank alone hears the others."""
        self._begin(what)
        if self.number:
            self._send(0, (_STEP, self._step, what, None, value))

    def share(self, what: str, value: Callable[[int], object]) -> None:
        """Send each other rank its ``value`` of this step."""
        self._begin(what)
        self._send_all(lambda peer: (_STEP, self._step, what, None, value(peer)))

    def from_first(
        self,
        what: str,
        make: Callable[[], T],
        brief: Callable[[T], T] = lambda made: made,
    ) -> T:
        """Return what ``make`` returns at rank 0, which alone calls it; others get it ``brief``.

        What it raises there, all raise: a UserError is everybody's own.
        """
        if self.number:
            self._begin(what)
            refusal, first = self.hear(0)
            if refusal is not None:
                raise UserError(refusal)
            small: T = first
            return small
        try:
            made = make()
            small = brief(made)
        except UserError as error:
            refusal = str(error)
            self.share(what, lambda _: (refusal, None))
            raise
        except Exception as failure:
            self.fail(what, failure)
            raise
        self.share(what, lambda _: (None, small))
        return made

    def fail(self, what: str, failure: Exception) -> None:
        """Send every other rank the ``failure`` of this one's part of a step."""
        self._begin(what)
        self._send_all(lambda _: (_STEP, self._step, what, failure, None))

    def _begin(self, what: str) -> None:
        self._step += 1
        self._what = what
        self._windows += what == WINDOW

    def hear(self, peer: int) -> Any:
        """Return what ``peer`` has shared in the present step.

        Raises what its part has raised, and :class:`RankGone` if it has left or stays silent.
        """
        _, step, what, failure, value = self._receive(peer)
        earlier = failure is not None and step < self._step  # where rank 0 alone has heard it
        if (step, what) != (self._step, self._what) and not earlier:
            if (death := self._death()) is not None:  # which has interrupted one in mid-step
                raise RankGone(death.sentence)
            raise RuntimeError(
                f"{self.name(peer)} is at step {step} ({what}), and this rank at {self._step} "
                f"({self._what}): their runs differ"
            )
        if isinstance(failure, UserError):
            raise RankGone(f"{self.name(peer)}: {failure}")
        if isinstance(failure, OSError) and is_full(failure):
            where = failure.filename or "what it writes"
            raise RankGone(
                f"{self.name(peer)}: no room for {where} ({failure.strerror}); make some there"
            )
        if failure is not None:
            failure.add_note(f"in {self.name(peer)}")
            self.heard = failure
            raise failure
        return value

    def _receive(self, peer: int) -> tuple[Any, ...]:
        now = time.monotonic()
        give_up = now + self.patience_s
        polls, pause = 0, 0.0
        while not self._early[peer]:
            if peer in self._left or peer in self._parted:
                raise RankGone(self._left.get(peer, f"{self.name(peer)}: its run has ended"))
            if self._poll(peer):
                continue
            polls += 1
            if polls < _EAGER_POLLS:
                os.sched_yield()
                continue
            if (death := self._death()) is not None:  # not every launcher interrupts the others
                raise RankGone(death.sentence)
            before, now = now, time.monotonic()
            if now - before > _STALL_S:
                give_up += now - before  # it was this rank that stood still
            if now > give_up:
                self.silent.add(peer)
                raise RankGone(
                    f"{self.name(peer)} has sent nothing for {self.patience_s:g} s: it hangs, or "
                    "its machine does; look there, and run uetemu clean on it"
                )
            pause = min(2 * pause or 50e-6, _LONGEST_PAUSE_S)
            time.sleep(pause)
        return self._early[peer].popleft()

    def _poll(self, peer: int) -> bool:
        """Take the next message of ``peer``; return whether there was one."""
        octets = self._channel.poll(peer)
        if octets is None:
            return False
        kind, *content = message = pickle.loads(octets)
        if kind == _LEFT:
            self._left.setdefault(peer, content[0])
        elif kind == _PARTED:
            self._parted.add(peer)
        else:
            self._early[peer].append(message)
        return True

    def _send_all(self, message: Callable[[int], tuple[object, ...]]) -> None:
        for peer in self.others:
            self._send(peer, message(peer))

    def _send(self, peer: int, message: tuple[object, ...]) -> None:
        octets = _pickled(message)
        self._sent_octets += len(octets)
        self._channel.send(peer, octets)

    # Ends

    def leave(self, reason: str) -> None:
        """Have all others know that this rank's run ends here, and why; once.

        A ``reason`` that names a rank is passed on as it is.
        """
        if not self.ended:
            self.ended = True
            if (death := self._death()) is not None:
                reason = death.sentence
            named = reason.startswith(RANK_NAME)
            self.last_words = reason if named else f"{self.name(self.number)}: {reason}"
            self._tell((_LEFT, self.last_words))

    def _tell(self, message: tuple[object, ...]) -> None:
        death = self._death()
        for peer in self.others:
            if death is not None and peer == death.number:
                continue  # MPI ends a rank that sends to a dead one
            try:
                self._channel.send(peer, pickle.dumps(message))
            except OSError as error:
                _log.info("%s gets no word: %s", self.name(peer), error)
                self.silent.add(peer)

    @contextmanager
    def warned(self) -> Iterator[None]:
        """Have all others know at once what ends the block, before anything is cleaned up.

        An execution that fails does so at all ranks.  They end their files together then.
        """
        try:
            yield
        except BaseException as error:
            if not isinstance(error, AgentError) or error.died:
                self.leave(str(error) or type(error).__name__)
            raise

    def obituary(self) -> str | None:
        """Return why a launcher has interrupted this rank; None if a user has.

        A launcher that loses a rank interrupts all others, which say so to each other.  Who says
        nothing is dead.
        """
        dead = self.unheard(_OBITUARY_S)
        self.silent.update(dead)
        if (death := self._death()) is not None:
            self.silent.add(death.number)
            self.last_words = death.sentence
            return death.sentence
        reasons = [self._left[one] for one in sorted(self._left)]
        reasons = [one for one in reasons if not one.endswith(_INTERRUPTIONS)]
        if dead:
            names = " and ".join(map(self.name, dead))
            reasons.append(
                f"{names} ended without a word, so that the launcher has ended all others: run "
                "uetemu clean there, and start the run again"
            )
        self.last_words = next(iter(reasons), self.last_words)
        return next(iter(reasons), None)

    @property
    def mourned(self) -> bool:
        """Return whether it has been said who died, so that no rank need say anything."""
        return self._death() is not None

    def _death(self) -> Death | None:
        return None if self._watch is None else self._watch.death()

    def unheard(self, budget_s: float) -> list[int]:
        """Return who has not said within ``budget_s`` (host s) that its run ends.

        Where the launcher ends all ranks, these are the dead.
        """
        return self._await(lambda peer: peer in self._left or peer in self._parted, budget_s)

    def part(self, budget_s: float = PARTING_S) -> bool:
        """Wait until every rank has cleaned up, for ``budget_s`` at most (host s).

        Returns False if one has not.  Then only the launcher can end all.
        """
        self._tell((_PARTED,))
        _log.info(
            "exchanged %d windows and %d messages with each other rank, to all of them %d octets",
            self._windows,
            self._step,
            self._sent_octets,
        )
        self.silent.update(self._await(lambda peer: peer in self._parted, budget_s))
        return not self.silent

    def _await(self, done: Callable[[int], bool], budget_s: float) -> list[int]:
        give_up = time.monotonic() + budget_s
        waiting = [peer for peer in self.others if peer not in self.silent]
        while True:
            for peer in waiting:
                while self._poll(peer):
                    pass
            waiting = [peer for peer in waiting if not done(peer)]
            if (death := self._death()) is not None and death.number in waiting:
                waiting.remove(death.number)
                self.silent.add(death.number)
            if not waiting or time.monotonic() > give_up:
                return waiting
            time.sleep(_LONGEST_PAUSE_S)

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""
        self._channel.abort(status)


def _pickled(message: tuple[object, ...]) -> bytes:
    """The octets of a message.  A failure that cannot be made again goes as its text."""
    try:
        octets = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if message[3] is not None:
            pickle.loads(octets)
    except Exception as error:  # noqa: BLE001 (pickle raises what the objects in it raise)
        failure = message[3] if message[3] is not None else error
        stated = RuntimeError(f"{type(failure).__name__}: {failure!s:.200}")
        octets = pickle.dumps((*message[:3], stated, None), pickle.HIGHEST_PROTOCOL)
    return octets
