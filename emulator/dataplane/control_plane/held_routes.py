"""Routes that hold still while virtual time passes, and change at instants of that time.

A routing daemon works by the host's clock, which a run in virtual time must not depend on.  So
zebra, which alone writes routes into the kernel, is stopped (SIGSTOP) whenever virtual time passes.
The other daemons go on: sessions and BFD live, and their packets pass the cables in the kernel. A
fault applies to the kernel and the cables at its virtual instant, and::

    strike                                      routes
      |---- charged time: the old routes hold ----|
      |                                           |
      the kernel leaves out next hops             zebra goes on, virtual time stands still until
      whose own port lost carrier                 all switches have their routes, zebra is stopped

The routes that switches must end with are computed
(:mod:`emulator.dataplane.control_plane.convergence`), and so are members
(:mod:`emulator.dataplane.control_plane.members`), so that no silence of this machine decides.

So a switch avoids its own dead port at once, as one does whose hardware prunes a group of next hops
when carrier goes. The others send to it on the old routes for the time of
:mod:`emulator.dataplane.control_plane.charged_time`; into a black hole all do. A second fault
before that time is over starts the time anew.

What this does not model: new routes come to all switches at one instant, that of the farthest. So
there are no loops on the way there, and no early repair nearby; a loss rate that BFD would take for
a dead link changes no route; and what only one direction of a cable swallows counts as both.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from emulator.dataplane.control_plane.charged_time import Broken, ChargedTime
from emulator.dataplane.control_plane.lab_routing import Routing, not_converged
from emulator.errors import UserError

BUDGET_S = 60.0
#: Routes that are not those computed and have not changed for so long (s) beyond the protocol's
#: longest timer: it has no better ones.
QUIET_S = 5.0
POLL_S = 0.005
STOP_BUDGET_S = 10.0
ZEBRA = "zebra"


class SettledState:
    """The routes and members of ``routing`` without what is ``broken``."""

    def __init__(self, routing: Routing, charged: ChargedTime, broken: Broken) -> None:
        self._routing = routing
        self._routes = charged.expected(broken)
        self._members = routing.members_of(charged.left(broken))
        plane = routing.plane
        #: what may be silent for so long (s) and change something then
        self.longest_timer_s = max(plane.hold_s, plane.detection_s)

    def missing(self) -> list[str]:
        """Return what the kernels of switches lack, or have too much, a sentence each."""
        routes = [str(one) for one in self._routing.differences(None, self._routes)]
        return routes or self._routing.member_differences(self._members)


class HeldRoutes:
    """The routes of ``routing``; ``warn`` is called with what has not come as expected."""

    def __init__(self, routing: Routing, warn: Callable[[str], None]) -> None:
        self._routing, self._warn = routing, warn
        #: routes were taken for settled because nothing had changed for some time of this machine
        self.judged_by_silence = False
        self.charged = ChargedTime(routing.topology, routing.plane, vlans=routing.vlans)

    def begin(self) -> None:
        """Hold the routes of the whole fabric, which has converged."""
        self.hold()
        whole = Broken()
        if SettledState(self._routing, self.charged, whole).missing():
            self.settle(whole)  # something has changed since

    def hold(self) -> None:
        """Let no route change from now on."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_BUDGET_S
        waiting = [pid for pid in self._pids() if not _is_stopped(pid)]
        while waiting:
            if time.monotonic() > deadline:
                raise UserError("zebra of a switch does not stop: the machine is overloaded")
            time.sleep(POLL_S)
            waiting = [pid for pid in waiting if not _is_stopped(pid)]

    def release(self) -> None:
        """Let routes change as the daemons will; safe at any time."""
        self._signal(signal.SIGCONT)

    def settle(self, broken: Broken) -> float:
        """Have all switches find their routes without what is ``broken``, and hold them.

        What they are to find is computed.  zebra may change something while the kernel is read, so
        what counts is read again once zebra is stopped.  Returns how long it took (s of this
        machine).
        """
        began = time.monotonic()
        expected = SettledState(self._routing, self.charged, broken)
        settled = False
        while not settled:
            self.release()
            try:
                if broken.links:
                    exact = self._await(expected)
                else:
                    self._routing.await_convergence()
                    exact = True
            finally:
                self.hold()
            missing = expected.missing() if exact else []
            settled = not missing
            if missing and time.monotonic() - began > BUDGET_S + expected.longest_timer_s:
                raise UserError(not_converged(missing, time.monotonic() - began))
        return time.monotonic() - began

    def _await(self, expected: SettledState) -> bool:
        """Return when the routes are as ``expected``, or have not changed for long: False."""
        began = changed = time.monotonic()
        before: Sequence[str] = ()
        while True:
            missing = expected.missing()
            if not missing:
                return True
            now = time.monotonic()
            if missing != before:
                before, changed = missing, now
            if now - changed > QUIET_S + expected.longest_timer_s:
                self.judged_by_silence = True
                self._warn(
                    "after a fault the routes have not come as computed, and nothing has changed "
                    f"for {QUIET_S + expected.longest_timer_s:g} s of this machine, which the run "
                    f"took for their end, so it may not come again: {missing[0]}"
                )
                return False
            if now - began > BUDGET_S + expected.longest_timer_s:
                raise UserError(not_converged(missing, now - began))
            for switch in self._routing.switches.values():
                switch.check_alive()
            time.sleep(POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> list[int]:
        found = []
        for switch in self._routing.switches.values():
            switch.check_alive()
            found.append(int((switch.directory / f"{ZEBRA}.pid").read_text()))
        return found


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
