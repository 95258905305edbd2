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

So a switch avoids its own dead port at once, as one does whose hardware prunes a group of next hops
when carrier goes. The others send to it on the old routes for the time of
:mod:`emulator.control_plane.charged_time`; into a black hole all do. A second fault before that
time is over starts the time anew.

What this does not model: new routes come to all switches at one instant, that of the farthest. So
there are no loops on the way there, and no early repair nearby; a loss rate that BFD would take for
a dead link changes no route; and what only one direction of a cable swallows counts as both.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from emulator.control_plane.charged_time import Broken, ChargedTime
from emulator.control_plane.lab_routing import Routing, not_converged
from emulator.errors import UserError

BUDGET_S = 60.0
#: Routes that are not those expected and have not changed for so long (s) after the failure was to
#: be noticed: the protocol has no better ones.
QUIET_S = 5.0
#: What members of stretched rails and Ethernet segments have to be unchanged for (s).
MEMBERS_QUIET_S = 2.0
POLL_S = 0.005
STOP_BUDGET_S = 10.0
ZEBRA = "zebra"


class HeldRoutes:
    """The routes of ``routing``; ``warn`` is called with what has not come as expected."""

    def __init__(self, routing: Routing, warn: Callable[[str], None]) -> None:
        self._routing, self._warn = routing, warn
        #: routes were taken for settled as they had not changed for some time of this machine
        self.judged_by_silence = False
        self.charged = ChargedTime(routing.topology, routing.plane)

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

        Returns how long that took (s of this machine).
        """
        began = time.monotonic()
        self.release()
        try:
            if broken.links:
                self._await(broken)
            else:
                self._routing.await_convergence()
        finally:
            self.hold()
        return time.monotonic() - began

    def _await(self, broken: Broken) -> None:
        routing = self._routing
        expectation = self.charged.expected(broken.links)
        noticed_s = routing.plane.detection_s if broken.black else 0.0
        began = changed = time.monotonic()
        before: object = None
        while True:
            missing = routing.differences(None, expectation)
            now = time.monotonic()
            state = ([str(one) for one in missing], routing.member_differences())
            if state != before:
                before, changed = state, now
            quiet_s = now - changed
            if not missing and (not routing.has_members or quiet_s > MEMBERS_QUIET_S):
                return
            if now - began > noticed_s and quiet_s > QUIET_S + noticed_s:
                self.judged_by_silence = True
                self._warn(
                    "after a fault the routes have settled, but not all as the topology suggests: "
                    f"{missing[0] if missing else 'members'}"
                )
                return
            if now - began > noticed_s + BUDGET_S:
                raise UserError(not_converged(missing, now - began))
            for switch in routing.switches.values():
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
