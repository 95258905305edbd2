"""Network-signalled congestion control: a window that ECN marks and delay steer (UES 3.6.13).

In order: what is kept, what a packet sent does, and what an ACK does (receiver's penalty, base RTT,
quick adapt, the four quadrants, settling). Then what a NACK and a loss do.

Every ACK falls into one of four quadrants, by its mark and its queueing delay against the target:

    no mark, short delay   grow: in proportion to what is missing to the target; with no delay at
                           all for a window's worth, fast
    no mark, long delay    grow by the fair increase (the queue drains, or another path has it)
    mark, long delay       shrink, by how much the average delay exceeds the target
    mark, short delay      nothing: load balancing reacts first
"""

from __future__ import annotations

from typing import Final

from uet.congestion.congestion_parameters import NsccParameters
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.signals import NO_SAMPLE
from uet.timekeeper import NEVER
from uet.wire.codes import NackCode

_TRIMMED: Final = int(NackCode.TRIMMED)
_TRIMMED_LASTHOP: Final = int(NackCode.TRIMMED_LASTHOP)


class Nscc:
    """The window toward one peer in one traffic class.

    Octets and ns at the interface; the window itself is a float, for what an ACK adds to it may be
    less than an octet.  ``inflight`` may fall below 0: what is sent is counted exactly, what is
    received in units of 256 octets.

    ``credited``: RCCC runs beside it and handles congestion of the last hop (UES 3.6.14).
    """

    __slots__ = (
        "_additive",
        "_adjust_bytes",
        "_adjust_period",
        "_alpha",
        "_average_stands_in",
        "_delay_gain",
        "_fair",
        "_fast_scale",
        "_gamma",
        "_max_md_jump",
        "_mtu",
        "_near_zero",
        "_octets_per_ns",
        "_qa_gate",
        "_qa_threshold",
        "_target",
        "achieved",
        "average",
        "base_rtt",
        "clear_octets",
        "credited",
        "cwnd",
        "fast",
        "ignored",
        "inflight",
        "last_adjusted",
        "last_decreased",
        "max_wnd",
        "parameters",
        "pending",
        "quick_adapt_end",
        "saved",
        "since_adjusted",
        "to_ignore",
        "triggered",
    )

    def __init__(self, parameters: NsccParameters, now: int, *, credited: bool = False) -> None:
        self.parameters = parameters
        self.credited = credited
        self._mtu = parameters.mtu
        self._target = parameters.target
        self._near_zero = parameters.near_zero
        self._alpha = parameters.alpha
        self._fair = parameters.fi
        self._additive = parameters.eta
        self._fast_scale = parameters.fi_scale
        self._gamma = parameters.gamma
        self._max_md_jump = parameters.max_md_jump
        self._qa_gate = parameters.qa_gate
        self._qa_threshold = parameters.qa_threshold
        self._adjust_period = parameters.adjust_period
        self._adjust_bytes = parameters.adjust_bytes
        self._delay_gain = parameters.delay_gain
        self._average_stands_in = parameters.average_stands_in
        self._octets_per_ns = parameters.octets_per_ns

        #: smallest RTT seen; it never rises
        self.base_rtt = parameters.base_rtt
        self.max_wnd = float(parameters.max_wnd)
        self.cwnd = float(parameters.max_wnd)  # there is no slow start
        self.inflight = 0

        self.average = 0.0  # queueing delay
        self.pending = 0.0  # growth collected for the next settling, times the window
        self.since_adjusted = 0  # octets
        self.last_adjusted = now
        self.last_decreased = now
        self.fast = False
        self.clear_octets = 0  # acknowledged in a row without any queueing delay

        self.achieved = 0  # octets acknowledged in the present quick-adapt period
        self.quick_adapt_end = 0 if parameters.quick_adapt else NEVER
        self.triggered = False  # something was trimmed in it
        self.ignored = 0  # octets whose marks date from before the last cut
        self.to_ignore = 0

        self.saved = 0.0  # the window before the receiver's penalty

    # -- what may be sent ----------------------------------------------------------------------

    def room(self) -> int:
        """Positive while a full packet may leave: inflight + MTU <= cwnd."""
        return int(self.cwnd) - self.inflight - self._mtu + 1

    @property
    def window_octets(self) -> int:
        """Return how many octets may be in flight."""
        return int(self.cwnd)

    def wants_ack(self, trigger: int) -> bool:
        """Return whether what was just sent has used up the window, so that an ACK must open it.

        Or the window is smaller than ``trigger``, the octets that destinations coalesce.
        """
        cwnd = self.cwnd
        return cwnd < trigger or cwnd - self.inflight < self._mtu

    def on_send(self, size: int) -> None:
        """A packet, new or retransmitted, goes out."""
        self.inflight += size

    # -- what an ACK does ----------------------------------------------------------------------

    def on_ack(
        self,
        octets: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Take ``octets`` off those in flight, as they have arrived.

        ``marked``: the packet that caused the ACK was marked CE.  ``rtt`` is its sample (ns), or
        ``NO_SAMPLE``: then the window stays as it is, unless ``average_stands_in``.  ``penalty``
        and ``restore`` are the receiver's rcv_cwnd_pend and restore_cwnd.
        """
        self.inflight -= octets
        self.ignored += octets
        self.achieved += octets
        since = self.since_adjusted = self.since_adjusted + octets
        limited = (penalty > 0 or restore) and self._penalize(penalty, octets)
        target = self._target
        if rtt < 0:
            if not self._average_stands_in:
                return
            delay = int(self.average)
        else:
            if rtt < self.base_rtt:
                self._lower_base_rtt(rtt)
            delay = rtt - self.base_rtt
            self._add_to_average(delay, octets)

        # Quick adapt: marks that date from before a cut show nothing new.
        if marked and self.ignored < self.to_ignore:
            self.pending = 0.0
            self.since_adjusted = 0
            return
        if now >= self.quick_adapt_end and self._quick_adapt(False, delay, now):
            return

        if marked:
            if delay >= target:
                self._shrink(now)
        elif not limited:
            if delay >= target:
                self.pending += self._fair * octets
            elif delay < self._near_zero:
                self._grow_fast(octets, target - delay)
            else:
                self.clear_octets = 0
                self.fast = False
                self.pending += self._alpha * octets * (target - delay)

        period_over = now - self.last_adjusted >= self._adjust_period
        if period_over or since > self._adjust_bytes:
            cwnd = self.cwnd
            cwnd += self.pending / cwnd
            if period_over:
                self.last_adjusted = now
                cwnd += self._additive
            self.cwnd = cwnd if cwnd < self.max_wnd else self.max_wnd
            self.pending = 0.0
            self.since_adjusted = 0

    def on_report(self, octets: int) -> None:
        """Take the octets that have arrived, from the answer to a PROBE, which holds no path."""
        self.inflight -= octets
        self.ignored += octets
        self.achieved += octets

    def _penalize(self, penalty: int, octets: int) -> bool:
        """Flow control by the destination; whether it holds the window down."""
        if penalty > 0:
            if not self.saved:
                self.saved = self.cwnd
            cwnd = min(self.cwnd, self.inflight) - (penalty * octets >> 7)
            self.cwnd = cwnd if cwnd > self._mtu else float(self._mtu)
            return True
        if self.saved:
            self.cwnd, self.saved = min(self.saved, self.max_wnd), 0.0
        return False

    def _add_to_average(self, delay: int, octets: int) -> None:
        """Let a sample weigh as its octets do among those of a base RTT; a window takes an RTT.

        By the time since the last one, what a slow path answers after a silence would count alone
        (UES 3.6.13 leaves open how the delay is averaged).
        """
        average, gain = self.average, self._delay_gain
        if gain is None:
            weight = octets * (1 + average / self.base_rtt)
            gain = weight / self.cwnd if weight < self.cwnd else 1.0
        self.average = average + gain * (delay - average)

    def _lower_base_rtt(self, rtt: int) -> None:
        self.base_rtt = rtt
        self.max_wnd = max(1.5 * self._octets_per_ns * rtt, float(self._mtu))
        if self.cwnd > self.max_wnd:
            self.cwnd = self.max_wnd

    def _quick_adapt(self, lost: bool, delay: int, now: int) -> bool:
        """A period of base RTT and target is over: cut to what it achieved, if that was little."""
        cut = (
            self.quick_adapt_end != 0
            and (self.triggered or lost or delay > self._qa_threshold)
            and self.achieved < int(self.max_wnd) >> self._qa_gate
        )
        if cut:
            self.cwnd = float(max(self.achieved, self._mtu))
            self.to_ignore = self.inflight
            self.ignored = 0
            self.triggered = False
            self.pending = 0.0
            self.since_adjusted = 0
        self.achieved = 0
        self.quick_adapt_end = now + self.base_rtt + self._target
        return cut

    def _grow_fast(self, octets: int, missing: int) -> None:
        """Grow with every octet once there has been no delay for a window."""
        self.clear_octets += octets
        if self.fast or self.clear_octets > self.cwnd:
            self.fast = True
            self.cwnd = min(self.cwnd + octets * self._fast_scale, self.max_wnd)
        else:
            self.pending += self._alpha * octets * missing

    def _shrink(self, now: int) -> None:
        """Shrink at most once per base RTT, and by half at most."""
        self.fast = False
        self.clear_octets = 0
        average, target = self.average, self._target
        if average > target and now - self.last_decreased > self.base_rtt:
            factor = max(1 - self._gamma * (average - target) / average, self._max_md_jump)
            self.cwnd = max(self.cwnd * factor, float(self._mtu))
            self.last_decreased = now

    # -- what a NACK and a loss do -------------------------------------------------------------

    def on_nack(self, size: int, code: int, now: int, rtt: int = NO_SAMPLE) -> None:
        """Take a NACK: a trimmed packet is a sign of congestion, others are not."""
        self.inflight -= size
        if 0 < rtt < self.base_rtt:
            self._lower_base_rtt(rtt)
        if code != _TRIMMED and code != _TRIMMED_LASTHOP:
            return
        # A header shows no delay, only that the queue was full.
        self._add_to_average(self.parameters.base_rtt, size)
        self.ignored += size
        if code == _TRIMMED_LASTHOP and self.credited:
            return
        self.triggered = True
        if self.ignored < self.to_ignore:
            self.pending = 0.0
            self.since_adjusted = 0
        elif now < self.quick_adapt_end or not self._quick_adapt(True, 0, now):
            self.cwnd = max(self.cwnd - size, float(self._mtu))

    def on_probe(self, rtt: int) -> None:
        """A PROBE, which waits in no queue of data, took so long (ns): the base RTT at most."""
        if 0 < rtt < self.base_rtt:
            self._lower_base_rtt(rtt)

    def on_loss(self, size: int) -> None:
        """A packet is taken to be lost: inferred, or timed out."""
        self.inflight -= size
        self.ignored += size
        self.cwnd = max(self.cwnd - size, float(self._mtu))


def _window(tuning: Tuning, now: int) -> Nscc:
    return Nscc(tuning.of("nscc", NsccParameters), now, credited=False)


CONTROLS.register(
    CongestionControl(
        name="nscc",
        meaning="a window by network signals",
        window=_window,
        parameters=NsccParameters,
        adaptive=True,
    )
)
