"""The numbers that congestion control works with, all derived from what a fabric is like.

Base RTT, link rate, packet size and whether switches trim decide everything else (UES 3.6.13,
3.6.14).  Times are ns, sizes octets of nominal packet size (UES 3.6.12), rates bits/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from uet.timekeeper import NEVER

#: The network that the gains were made for: 100 Gb/s and 12 us (UES 3.6.13).
REFERENCE_BASE_RTT = 12_000
REFERENCE_BDP = 150_000
#: Delay that counts as none in that network; UES names no number, its public models take this.
REFERENCE_NEAR_ZERO_DELAY = 1_000

_NS_PER_SECOND = 10**9


class ParameterError(ValueError):
    """A parameter is out of its range; the sentence names it."""


def bandwidth_delay_product(link_rate: int, rtt: int) -> int:
    """Octets that fill a path of ``link_rate`` bits/s for ``rtt`` ns."""
    return link_rate * rtt // (8 * _NS_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class PathParameters:
    """Properties of the path to a peer when nobody else uses it.

    ``base_rtt`` is the round trip of a full packet on the longest idle path (config_base_rtt);
    ``link_rate`` the smaller one of both ends' (of several ports that are sprayed over, the sum);
    ``mtu`` the nominal size of a full packet.
    """

    base_rtt: int = REFERENCE_BASE_RTT
    link_rate: int = 100 * 10**9
    mtu: int = 4_096
    #: what is in flight on a busy path without any queue
    bdp: int = field(init=False)
    #: MaxWnd: the window and the credit that a new context begins with
    max_wnd: int = field(init=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("base_rtt", 1, 10 * _NS_PER_SECOND),
            ("link_rate", 1, 100 * 10**12),
            ("mtu", 64, 16_384),
        ):
            _check(name, getattr(self, name), least, most)
        bdp = bandwidth_delay_product(self.link_rate, self.base_rtt)
        _derive(self, "bdp", bdp)
        _derive(self, "max_wnd", max(bdp * 3 // 2, self.mtu))

    @property
    def octets_per_ns(self) -> float:
        """The link rate."""
        return self.link_rate / (8 * _NS_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class NsccParameters(PathParameters):
    """Network-signalled congestion control (UES 3.6.13).

    What is given is the path, whether its switches trim, and the gains; the rest follows.
    ``reference_rtt`` is the base RTT that the gains are right for: on a network that is slower by
    orders of magnitude set it to ``base_rtt``, or the window moves in leaps.
    """

    trimming: bool = True
    reference_rtt: int = REFERENCE_BASE_RTT
    #: queueing delay to aim at; ``None``: three quarters of a base RTT with trimming, else one
    target_qdelay: int | None = None
    proportional_gain: float = 4.0
    fair_gain: float = 5.0
    additive_gain: float = 0.15
    fast_gain: float = 0.25
    gamma: float = 0.8
    max_md_jump: float = 0.5
    quick_adapt: bool = True
    qa_gate: int = 3
    #: where queues drop, in bandwidth-delay products of one plane; counts only without trimming
    drop_threshold: float = 5.0
    #: weight of one sample in the average delay; ``None``: its octets among those of a base RTT
    delay_gain: float | None = None
    #: An ACK without an RTT sample is judged by the average delay, as UEC's simulator does.  By the
    #: specification it changes nothing but what is in flight (UES 3.6.13).
    average_stands_in: bool = False

    # Derived.
    scaling_a: float = field(init=False)
    scaling_b: float = field(init=False)
    target: int = field(init=False)
    alpha: float = field(init=False)  # octets of window per ns of delay and window acknowledged
    fi: float = field(init=False)  # octets
    eta: float = field(init=False)  # octets
    fi_scale: float = field(init=False)
    qa_threshold: int = field(init=False)
    near_zero: int = field(init=False)
    adjust_period: int = field(init=False)
    adjust_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.qa_gate, int):
            raise ParameterError(f"qa_gate is {self.qa_gate}; it must lie in 0..30 and be whole")
        for name, least, most in (
            ("reference_rtt", 1, 10 * _NS_PER_SECOND),
            ("target_qdelay", 1, 10 * _NS_PER_SECOND),
            ("proportional_gain", 0, 1_000),
            ("fair_gain", 0, 1_000),
            ("additive_gain", 0, 1_000),
            ("fast_gain", 0, 1_000),
            ("gamma", 0, 1),
            ("max_md_jump", 0, 1),
            ("qa_gate", 0, 30),
            ("drop_threshold", 1, 1_000),
            ("delay_gain", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, least, most)
        target = self.target_qdelay
        if target is None:
            target = self.base_rtt * 3 // 4 if self.trimming else self.base_rtt
        a = self.bdp / REFERENCE_BDP
        b = target / self.reference_rtt
        _derive(self, "scaling_a", a)
        _derive(self, "scaling_b", b)
        _derive(self, "target", max(target, 1))
        _derive(self, "alpha", self.proportional_gain * a * b * self.mtu / max(target, 1))
        _derive(self, "fi", self.fair_gain * a * self.mtu)
        _derive(self, "eta", self.additive_gain * a * self.mtu)
        _derive(self, "fi_scale", self.fast_gain * a)
        tail = int((self.drop_threshold - 1) * self.base_rtt)
        _derive(self, "qa_threshold", NEVER if self.trimming else tail)
        near = REFERENCE_NEAR_ZERO_DELAY * self.reference_rtt // REFERENCE_BASE_RTT
        _derive(self, "near_zero", max(near, 1))
        _derive(self, "adjust_period", self.base_rtt)
        _derive(self, "adjust_bytes", 8 * self.mtu)


@dataclass(frozen=True, kw_only=True)
class RcccParameters(PathParameters):
    """Receiver-credit congestion control (UES 3.6.14).

    A receiver grants ``pacer_share`` of ``link_rate``, at most ``grant_mtus`` packets at a time,
    no oftener than ``least_grant`` octets would take.
    """

    grant_mtus: int = 4
    pacer_share: float = 0.99
    least_grant: int = 1_024

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("grant_mtus", self.grant_mtus, 1, 1_024)
        _check("least_grant", self.least_grant, 0, 1 << 20)
        if not 0 < self.pacer_share <= 1:
            raise ParameterError(f"pacer_share is {self.pacer_share}; it must lie in 0..1, not 0")


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ParameterError(f"{name} is {value}; it must lie in {least}..{most}")


def _derive(parameters: PathParameters, name: str, value: float) -> None:
    object.__setattr__(parameters, name, value)  # once, while it is made
