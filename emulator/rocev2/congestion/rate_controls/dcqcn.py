"""DCQCN: what a RoCEv2 sender's rate does when its packets are marked.

    switch marks CE -> NotificationPoint (receiver) -> CNP -> ReactionPoint (sender) -> rate

The rules are those of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM
2015), sections 3.1 to 3.3. As ``variant`` "periodic" they are those of NICs, which look for CNPs at
fixed ticks instead of acting on each. That is the ``mlx`` mode of the ns-3 model of Li et al.,
"HPCC" (SIGCOMM 2019). It has the byte counter of their firmware (as in IEEE 802.1Qau).  One
reaction point belongs to one queue pair, and one notification point, unless the port has one.

Times are ns, rates bits/s, sizes octets.  A call's ``now`` never runs backwards.
"""

from __future__ import annotations

from typing import Any, Final

from emulator.rocev2.congestion.dcqcn_parameters import DcqcnParameters
from emulator.rocev2.congestion.pacing import Notifier, Pacer
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS, RateControl

#: Part of the line rate that a recovering rate, which halves its way to it, may lack and be there.
_NEGLIGIBLE: Final = 2**-30


class NotificationPoint:
    """The receiver's side: which marked packets are answered with a CNP."""

    __slots__ = ("_interval", "_next", "marked", "sent")

    def __init__(self, interval_ns: int) -> None:
        self._interval = interval_ns
        self._next: int | None = None
        #: packets that came with CE, and CNPs that they were answered with
        self.marked = 0
        self.sent = 0

    def on_marked(self, now: int) -> bool:
        """A packet with CE has come: whether a CNP is to be sent now (paper, 3.2)."""
        self.marked += 1
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._interval
        self.sent += 1
        return True


class ReactionPoint:
    """The sender's side of one queue pair: the rate that it may send at (paper, 3.3).

    Nothing is limited before the first CNP, nor after the rate has come back to the line's.
    Alpha is worked out when it is needed, so only what can change the rate is a deadline.
    """

    __slots__ = (
        "_alpha",
        "_alpha_cnp",
        "_alpha_tick",
        "_bytes",
        "_bytes_stage",
        "_decrease_at",
        "_decrease_origin",
        "_line",
        "_p",
        "_paper",
        "_rate",
        "_rate_at",
        "_reset_octets",
        "_stage",
        "_target",
        "cuts",
        "handled",
    )

    def __init__(self, parameters: DcqcnParameters, line_rate_bps: int, now: int) -> None:
        parameters.must_suit(line_rate_bps)
        self._p = parameters
        self._paper = parameters.variant == "paper"
        self._line = float(line_rate_bps)
        self._rate = self._line
        self._target = self._line
        self._alpha = parameters.initial_alpha
        self._alpha_tick: int | None = None  # the last one reckoned with; None before a CNP
        self._alpha_cnp = False  # the next tick will see a CNP
        self._decrease_origin = now
        self._decrease_at: int | None = None  # a tick that will see a CNP
        self._rate_at: int | None = None
        self._stage = 0  # increases by time since the last cut
        self._bytes_stage = 0  # and by octets
        self._bytes = 0
        self._reset_octets = parameters.reset_octets
        #: CNPs taken, and how often the rate was cut
        self.handled = 0
        self.cuts = 0

    @property
    def rate_bps(self) -> float:
        """Return what may be sent now [R_C]; the line rate if nothing limits."""
        return self._rate

    @property
    def target_bps(self) -> float:
        """Return what the rate recovers to [R_T]."""
        return self._target

    @property
    def limited(self) -> bool:
        """Return whether the rate is kept below the line's, or rises and falls with timers."""
        return self._rate_at is not None or self._decrease_at is not None

    def alpha(self, now: int) -> float:
        """The estimate of congestion, 0..1; does what is due up to and with ``now``."""
        self.advance(now)
        self._reckon_alpha(now)
        return self._alpha

    def next_deadline(self) -> int | None:
        """Return when the rate next changes by itself; None if it does not."""
        decrease, rate = self._decrease_at, self._rate_at
        if decrease is None or (rate is not None and rate < decrease):
            return rate
        return decrease

    # --- a CNP ----------------------------------------------------------------------------------

    def on_cnp(self, now: int) -> None:
        """A CNP has come.  A tick of this very instant sees it."""
        self.advance(now - 1)
        self.handled += 1
        if self._paper:
            self._cut_at_once(now)
        else:
            self._note(now)

    def _cut_at_once(self, now: int) -> None:
        p = self._p
        first = self._alpha_tick is None
        if not first:
            self._reckon_alpha(now - 1)
        elif p.first_cnp_factor != 1.0:
            self._rate = max(self._rate * p.first_cnp_factor, p.least_rate)
        self._target = self._rate
        self._cut(self._alpha)
        self._alpha += p.g * (1 - self._alpha)
        self._alpha_tick = now
        self._rate_at = now + p.rate_interval

    def _note(self, now: int) -> None:
        p = self._p
        if self._alpha_tick is None:
            # the first CNP starts both ticks, and the one of alpha does not count it
            self._alpha_tick = self._decrease_origin = now
            self._rate = max(self._rate * p.first_cnp_factor, p.least_rate)
            self._target = self._rate
            self._decrease_at = now + p.decrease_interval
            return
        self._reckon_alpha(now - 1)
        self._alpha_cnp = True
        if self._decrease_at is None:
            ticks = -(-(now - self._decrease_origin) // p.decrease_interval)
            self._decrease_at = self._decrease_origin + ticks * p.decrease_interval

    # --- what time does -------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Do what is due up to and with ``now``."""
        while (due := self.next_deadline()) is not None and due <= now:
            if due == self._decrease_at:
                self._decrease(due)
            else:
                self._rate_at = due + self._p.rate_interval
                self._increase_by_time()

    def _decrease(self, now: int) -> None:
        self._reckon_alpha(now)
        self._decrease_at = None
        p = self._p
        if p.clamp_target or self._bytes_stage or (self._stage and p.clamp_after_time):
            self._target = self._rate
        self._cut(self._alpha)
        self._rate_at = now + self._p.rate_interval

    def _cut(self, alpha: float) -> None:
        self._rate = max(self._rate * (1 - alpha / 2), self._p.least_rate)
        self._stage = self._bytes_stage = self._bytes = 0
        self.cuts += 1

    def _reckon_alpha(self, now: int) -> None:
        """Alpha's ticks up to and with ``now``: only the first of them can have seen a CNP."""
        if self._alpha_tick is None:
            return
        ticks = (now - self._alpha_tick) // self._p.alpha_interval
        if ticks <= 0:
            return
        self._alpha_tick += ticks * self._p.alpha_interval
        if self._alpha_cnp:
            self._alpha_cnp = False
            self._alpha += self._p.g * (1 - self._alpha)
            ticks -= 1
        self._alpha *= (1 - self._p.g) ** ticks

    # --- increases ------------------------------------------------------------------------------

    def on_sent(self, octets: int, now: int) -> None:
        """Count the octets sent, for the byte counter."""
        reset = self._reset_octets
        if self._rate_at is None or not reset:
            return
        self.advance(now)
        self._bytes += octets
        while self._bytes >= reset and self._rate_at is not None:
            self._bytes -= reset
            self._bytes_stage += 1
            self._increase()

    def _increase_by_time(self) -> None:
        self._stage += 1
        self._increase()

    def _increase(self) -> None:
        """Recovery, then additive, then hyper increase (paper, 3.3 and figure 7).

        A stage is counted before it is judged.  In the paper's variant the ``recovery_steps``-th
        increase already adds, as in its authors' simulator.  NICs recover that often, and add
        R_HAI once; where they have no byte counter, time alone leads to hyper increase.
        """
        p, steps = self._p, self._p.recovery_steps
        by_octets = self._bytes_stage if self._paper or self._reset_octets else self._stage
        both, either = min(self._stage, by_octets), max(self._stage, by_octets)
        if self._paper:
            if both > steps:
                self._target += (both - steps) * p.hyper_rate
            elif either >= steps:
                self._target += p.additive_rate
        elif both > steps + 1 or (both > steps and self._reset_octets):
            self._target += p.hyper_rate
        elif either > steps:
            self._target += p.additive_rate
        self._rise()

    def _rise(self) -> None:
        self._target = min(self._target, self._line)
        self._rate = (self._rate + self._target) / 2
        if self._line - self._rate < self._line * _NEGLIGIBLE:
            self._rate = self._target = self._line
            self._rate_at = None


def _tuned(config: Any) -> tuple[DcqcnParameters, NotificationPoint | None]:
    """The parameters of an adapter, and the notification point that its queue pairs share."""
    parameters = DcqcnParameters.named(config.dcqcn_set, config.line_rate, **config.dcqcn)
    shared = NotificationPoint(parameters.cnp_interval) if parameters.cnp_per_port else None
    return parameters, shared


def _open(
    tuned: tuple[DcqcnParameters, NotificationPoint | None], config: Any, now: int
) -> tuple[Pacer, Notifier]:
    parameters, shared = tuned
    limiter = ReactionPoint(parameters, config.line_rate, now)
    return (
        Pacer(limiter, config.pacing_burst),
        shared or NotificationPoint(parameters.cnp_interval),
    )


RATE_CONTROLS.register(
    RateControl(
        name="dcqcn",
        meaning="a rate by congestion notifications",
        tune=_tuned,
        open=_open,
        notifies=True,
    )
)
