"""The exchange between the ranks of a run, which all make the same calls in the same order.

Each rank carries out its own part of a step and sends the outcome to every other one, without
waiting (:meth:`Ranks.share`). Then it takes theirs (:meth:`Ranks.hear`)::

    rank 0            rank 1
    own part          own part
    share  ---------> hear
    hear   <--------- share

After a window of virtual time all ranks gather small blocks of times by a collective that does not
wait (:meth:`Ranks.share_window`). Frames travel in messages, which a rank sends to those alone that
it has frames for, in most fabrics its neighbours.  So do news, which all get in a few windows::

    rank 0            rank 1            rank 2
    own part          own part          own part          of one window
    block  <--------> block  <--------> block             who has a message for whom, and times
    frames ---------> frames

A rank whose run ends early says why (:meth:`Ranks.leave`), so that nobody waits for it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any, Protocol, TypeVar

from emulator.errors import UserError, is_full
from emulator.logs import plain_logger
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.workers.windows import NO_TIMES, BlockForm, WindowBlock, WindowTimes


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

    def gather(self, block: bytes) -> None:
        """Begin to bring ``block`` to all ranks, and theirs to this one; return at once.

        All have blocks of one length.
        """

    def gathered(self) -> bytes | bytearray | None:
        """Return the blocks of all ranks, one behind the other, once they are there."""

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""


@dataclass(frozen=True)
class Death:
    """The end of rank ``number`` that ends all others, in a sentence that names its machine."""

    number: int
    sentence: str


class Watch(Protocol):
    """A guardian as its rank sees it: it knows which rank has died, and removes what is left."""

    @property
    def contact(self) -> object:
        """Return how those of the other ranks find that of rank 0; None elsewhere."""

    def introduce(self, machines: list[str], contact: object) -> None:
        """Report the machines of all ranks, and the ``contact`` of rank 0."""

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Report the ``lab`` that is to be removed, or the run's ``folder``, of rank 0."""

    def death(self) -> Death | None:
        """Return which rank has died first."""


#: Host time (s) between two polls beyond which this rank was stopped, or its machine was.
_STALL_S = 1.0
#: Polls before a rank that waits begins to sleep, and its longest sleep (s).
_EAGER_POLLS = 300
LONGEST_PAUSE_S = 0.001


class Patience:
    """One wait of ``budget_s`` at most (host s), in which this process itself was running."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._now = time.monotonic()
        self._give_up = self._now + budget_s
        self._polls, self._pause = 0, 0.0

    def eager(self) -> bool:
        """Let others have the processor; return whether to poll again and to do nothing else."""
        self._polls += 1
        if self._polls >= _EAGER_POLLS:
            return False
        os.sched_yield()
        return True

    def look(self) -> None:
        """Look at the clock; a time in which this rank stood still does not count."""
        before, self._now = self._now, time.monotonic()
        if self._now - before > _STALL_S:
            self._give_up += self._now - before

    @property
    def half_over(self) -> bool:
        """Return whether half of it has passed."""
        return self._now > self._give_up - self._budget_s / 2

    @property
    def over(self) -> bool:
        """Return whether it has passed."""
        return self._now > self._give_up

    def pause(self) -> None:
        """Sleep, longer from time to time."""
        self._pause = min(2 * self._pause or 50e-6, LONGEST_PAUSE_S)
        time.sleep(self._pause)


_log = plain_logger(__name__)
T = TypeVar("T")
#: Host time (s) after which a rank that has sent nothing is given up, unless this variable says.
PATIENCE_S = 300.0
PATIENCE_VARIABLE = "UETEMU_RANK_PATIENCE"
#: Host time (s) that ranks have to remove their labs before the launcher is to end all.
PARTING_S = 20.0
#: Host time (s) in which a rank that the launcher interrupts hears from the others why.
_REASON_S = 0.5
#: Reasons of ranks that the launcher, or a user, has interrupted.
_INTERRUPTIONS = tuple(f"interrupted by {one.name}" for one in (SIGINT, SIGTERM, SIGHUP))
#: Host time (s) in which the failure arrives that has made other ranks leave.
_CAUSE_S = 0.5
RANK_NAME = "MPI rank"
#: Kinds of messages: the outcome of a step; the reason of an early end; a lab that is removed; a
#: question of ranks that wait for a block, and its answer by those that wait as well.
_STEP, _LEFT, _PARTED, _ASK, _HERE = "step", "left", "parted", "ask", "here"


class RankGone(EndpointError):
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
        self.channel, self._watch = channel, watch
        self.number, self.count = channel.number, channel.count
        self.patience_s = patience_s
        self.machines = [machine] * channel.count
        self._step = self._sent_octets = 0
        self._form = BlockForm(channel.count)
        #: those of the present step, once they are there
        self._blocks: Sequence[WindowBlock] | None = None
        #: steps that had blocks, and messages in them to each rank
        self._windows = 0
        self._messages = [0] * channel.count
        #: ranks that wait for blocks, as they have answered
        self._here: set[int] = set()
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
        self.exit_reason = ""
        #: what another rank has raised, and this one has raised again
        self.heard: Exception | None = None

    @property
    def reports(self) -> bool:
        """Return whether this rank, the first one, writes the run folder."""
        return self.number == 0

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
        """Have the guardian of this rank know the ``lab``, or the run's ``folder``, it has."""
        if self._watch is not None:
            self._watch.holds(lab=lab, folder=folder)

    # Steps

    def gather(self, what: str, value: object) -> list[Any]:
        """Return the ``value`` of every rank, by number; ``what`` is the step's name."""
        self.share(what, lambda _: value)
        return [value if peer == self.number else self.hear(peer) for peer in range(self.count)]

    def all_to_all(self, what: str, parts: Sequence[object]) -> list[Any]:
        """Send each rank its one of ``parts``; return what every rank has for this, by number."""
        self.share(what, lambda peer: parts[peer])
        return [
            parts[peer] if peer == self.number else self.hear(peer) for peer in range(self.count)
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

    def fail(self, what: str, failure: Exception, *, window: bool = False) -> None:
        """Send every other rank the ``failure`` of this one's part of a step, or of a window."""
        self._begin(what)
        self._send_all(lambda _: (_STEP, self._step, what, failure, None))
        if window:
            self._gather(NO_TIMES, self.others)

    def _begin(self, what: str) -> None:
        self._step += 1
        self._what = what

    def hear(self, peer: int) -> Any:
        """Return what ``peer`` has shared in the present step.

        Raises what its part has raised, and :class:`RankGone` if it has left or stays silent.
        """
        _, step, what, failure, value = self._receive(peer)
        if failure is None or step >= self._step:  # a count's, where rank 0 alone has heard it
            self._compare(peer, step, what)
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

    def _compare(self, peer: int, step: int, what: str) -> None:
        """Raise RuntimeError unless ``peer``, which is at ``step``, does the same as this rank."""
        if (step, what) != (self._step, self._what):
            self._see_death()  # which has interrupted one in mid-step
            raise RuntimeError(
                f"{self.name(peer)} is at step {step} ({what}), and this rank at {self._step} "
                f"({self._what}): their runs differ"
            )

    def _receive(self, peer: int) -> tuple[Any, ...]:
        patience = Patience(self.patience_s)
        while not self._early[peer]:
            if self._has_left(peer):
                raise self._gone(peer)
            if self._poll(peer) or patience.eager():
                continue
            self._see_death()  # not every launcher interrupts the others
            self._poll_all()
            patience.look()
            if patience.over:
                raise self._hanging([peer])
            patience.pause()
        return self._early[peer].popleft()

    def _has_left(self, peer: int) -> bool:
        return peer in self._left or peer in self._parted

    def _gone(self, peer: int) -> RankGone:
        return RankGone(self._left.get(peer, f"{self.name(peer)}: its run has ended"))

    def _see_death(self) -> None:
        if (death := self._death()) is not None:
            raise RankGone(death.sentence)

    def _hanging(self, peers: Sequence[int]) -> RankGone:
        """Give up ``peers``; return what to say of the first."""
        self.silent.update(peers)
        return RankGone(
            f"{self.name(peers[0])} has sent nothing for {self.patience_s:g} s: it hangs, or "
            "its machine does; look there, and run uetemu clean on it"
        )

    # Windows

    def share_window(self, what: str, times: WindowTimes, messages: Mapping[int, object]) -> None:
        """Let all others have ``times`` of this step, and send those in ``messages`` theirs."""
        self._begin(what)
        for peer, message in messages.items():
            self._send(peer, (_STEP, self._step, what, None, message))
            self._messages[peer] += 1
        self._gather(times, messages)

    def hear_window(self, peer: int) -> tuple[WindowTimes, Any]:
        """Return the times of ``peer`` in the present step, and its message to this rank, or None.

        Raises what :meth:`hear` raises.
        """
        if self._blocks is None:
            self._blocks = self._await_blocks()
        block = self._blocks[peer]
        self._compare(peer, block.step, self._what)
        return block.times, self.hear(peer) if block.has_message_for(self.number) else None

    def _gather(self, times: WindowTimes, receivers: Collection[int]) -> None:
        self._blocks = None
        self._windows += 1
        self._sent_octets += self._form.octets
        self.channel.gather(self._form.packed(self._step, times, receivers))

    def _await_blocks(self) -> list[WindowBlock]:
        """Wait for the blocks of all; what other messages say of a rank that gives none counts."""
        patience, causes = Patience(self.patience_s), Patience(_CAUSE_S)
        asked = False
        while (octets := self.channel.gathered()) is None:
            if patience.eager():
                continue
            self._see_death()
            patience.look()
            self._hear_failures()
            ended = [peer for peer in self.others if self._has_left(peer)]
            if not ended:
                causes = Patience(_CAUSE_S)
            else:
                causes.look()
                if causes.over:
                    raise self._gone(ended[0])
            if patience.half_over and not asked:
                asked = True
                self._here.clear()
                self._tell((_ASK,))
            if patience.over:
                raise self._hanging([one for one in self.others if one not in self._here])
            patience.pause()
        return self._form.unpacked(octets)

    def _hear_failures(self) -> None:
        """Take all that has come; raise the failure of a rank, or that its run differs."""
        self._poll_all()
        for peer in self.others:
            for _, step, what, failure, _ in list(self._early[peer])[:1]:
                here = (step, what) == (self._step, self._what)
                if step <= self._step and (failure is not None or not here):
                    self.hear(peer)

    def _poll_all(self) -> None:
        for peer in self.others:
            while self._poll(peer):
                pass

    def _poll(self, peer: int) -> bool:
        """Take the next message of ``peer``; return whether there was one."""
        octets = self.channel.poll(peer)
        if octets is None:
            return False
        kind, *content = message = pickle.loads(octets)
        if kind == _LEFT:
            self._left.setdefault(peer, content[0])
        elif kind == _PARTED:
            self._parted.add(peer)
        elif kind == _ASK:
            self._say(peer, (_HERE,))
        elif kind == _HERE:
            self._here.add(peer)
        else:
            self._early[peer].append(message)
        return True

    def _send_all(self, message: Callable[[int], tuple[object, ...]]) -> None:
        for peer in self.others:
            self._send(peer, message(peer))

    def _send(self, peer: int, message: tuple[object, ...]) -> None:
        octets = _pickled(message)
        self._sent_octets += len(octets)
        self.channel.send(peer, octets)

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
            self.exit_reason = reason if named else f"{self.name(self.number)}: {reason}"
            self._tell((_LEFT, self.exit_reason))

    def _tell(self, message: tuple[object, ...]) -> None:
        death = self._death()
        for peer in self.others:
            if death is not None and peer == death.number:
                continue  # MPI ends a rank that sends to a dead one
            self._say(peer, message)

    def _say(self, peer: int, message: tuple[object, ...]) -> None:
        try:
            self.channel.send(peer, pickle.dumps(message))
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
            if not isinstance(error, EndpointError) or error.died:
                self.leave(str(error) or type(error).__name__)
            raise

    def interrupted_by(self) -> str | None:
        """Return why a launcher has interrupted this rank; None if a user has.

        A launcher that loses a rank interrupts all others, which say so to each other.  One that
        says nothing yet may be slow: of deaths the guardians alone know.
        """
        self._await(self._has_left, _REASON_S)
        if (death := self._death()) is not None:
            self.silent.add(death.number)
            self.exit_reason = death.sentence
            return death.sentence
        reasons = [self._left[one] for one in sorted(self._left)]
        reason = next((one for one in reasons if not one.endswith(_INTERRUPTIONS)), None)
        self.exit_reason = reason or self.exit_reason
        return reason

    @property
    def death_reported(self) -> bool:
        """Return whether it has been said who died, so that no rank need say anything."""
        return self._death() is not None

    def _death(self) -> Death | None:
        return None if self._watch is None else self._watch.death()

    def part(self, budget_s: float = PARTING_S) -> bool:
        """Wait until every rank has cleaned up, for ``budget_s`` at most (host s).

        Returns False if one has not.  Then only the launcher can end all.
        """
        self._tell((_PARTED,))
        _log.info(
            "exchanged %d windows, with a block of %d octets for all, and with messages to rank "
            "%s; %d other steps; to all of them %d octets",
            self._windows,
            self._form.octets,
            ", ".join(f"{peer}: {self._messages[peer]}" for peer in self.others),
            self._step - self._windows,
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
            time.sleep(LONGEST_PAUSE_S)

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""
        self.channel.abort(status)


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
