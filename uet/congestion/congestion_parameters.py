"""The numbers that congestion control works with, all derived from what a fabric is like.

Base RTT, link rate, packet size and whether switches trim decide everything else (UES 3.6.13,
3.6.14).  Times are ns, sizes octets of nominal packet size (UES 3.6.12), rates bits/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from topologies import registry
from uet.timekeeper import NEVER

#: The network that the gains were made for: 100 Gb/s and 12 us (UES 3.6.13).
REFERENCE_BASE_RTT: Final = 12_000
REFERENCE_BDP: Final = 150_000
#: Delay that counts as none in that network; UES names no number, its public models take this.
REFERENCE_NEAR_ZERO_DELAY: Final = 1_000

_NS_PER_SECOND: Final = 10**9


class ParameterError(ValueError):
    """A parameter is out of its range; the sentence names it."""


def parameter(default: float | None, least: float, most: float, *, help: str) -> Any:
    """A parameter that users set as ``NAME.PARAMETER=N``: a number in ``least`` .. ``most``.

    The default None stands for what the class makes of the path.
    """
    return registry.parameter(default, help=help, least=least, most=most)


def _switch(default: bool, *, help: str) -> Any:
    return registry.parameter(default, help=f"{help} (0 or 1)")


def bandwidth_delay_product(link_rate: int, rtt: int) -> int:
    """Octets that fill a path of ``link_rate`` bits/s for ``rtt`` ns."""
    return link_rate * rtt // (8 * _NS_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Numbers that users set; those made by :func:`parameter` are within their limits.

    Each has the type that it is declared with, whatever number the user has written.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            kind = str(getattr(item.type, "__name__", item.type))  # its text, or what that means
            if kind == "bool":
                object.__setattr__(self, item.name, bool(getattr(self, item.name)))
            value = getattr(self, item.name) if "least" in item.metadata else None
            if value is None:
                continue
            least, most = item.metadata["least"], item.metadata["most"]
            is_whole = kind.startswith("int")
            if not least <= value <= most or is_whole > isinstance(value, int):
                whole = " and be whole" if is_whole else ""
                raise ParameterError(
                    f"{item.name} is {value}; it must lie in {least}..{most}{whole}"
                )


@dataclass(frozen=True, kw_only=True)
class PathParameters(Parameters):
    """Properties of the path to a peer when nobody else uses it.

    A control derives its own from this class, each field made by :func:`parameter`.  The path's own
    come from the fabric unless the user says otherwise.
    """

    #: config_base_rtt
    base_rtt: int = parameter(
        REFERENCE_BASE_RTT,
        1,
        10 * _NS_PER_SECOND,
        help="round trip of a full packet on the longest idle path (ns)",
    )
    #: of several ports that are sprayed over, the sum
    link_rate: int = parameter(
        100 * 10**9, 1, 100 * 10**12, help="rate of the slower end's link (bit/s)"
    )
    mtu: int = parameter(4_096, 64, 16_384, help="nominal size of a full packet (octets)")
    #: what is in flight on a busy path without any queue
    bdp: int = field(init=False)
    #: MaxWnd: the window and the credit that a new context begins with
    max_wnd: int = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """

    trimming: bool = _switch(True, help="switches trim; by default as they do")
    #: On a network that is slower by orders of magnitude it must be ``base_rtt``, or the window
    #: moves in leaps.
    reference_rtt: int = parameter(
        REFERENCE_BASE_RTT, 1, 10 * _NS_PER_SECOND, help="base RTT that the gains are made for (ns)"
    )
    target_qdelay: int | None = parameter(
        None,
        1,
        10 * _NS_PER_SECOND,
        help="queueing delay to aim at (ns); auto: 3/4 of a base RTT with trimming, else one",
    )
    proportional_gain: float = parameter(
        4.0, 0, 1_000, help="growth by what the delay is below its target"
    )
    fair_gain: float = parameter(
        5.0, 0, 1_000, help="growth where the delay is above it and nothing is marked"
    )
    additive_gain: float = parameter(0.15, 0, 1_000, help="growth in each base RTT, in any case")
    fast_gain: float = parameter(0.25, 0, 1_000, help="growth with each ACK where nothing queues")
    gamma: float = parameter(0.8, 0, 1, help="weight of the excess delay when the window shrinks")
    max_md_jump: float = parameter(
        0.5, 0, 1, help="part of the window that is left at least when it shrinks"
    )
    quick_adapt: bool = _switch(True, help="cut to what has arrived when much was lost at once")
    qa_gate: int = parameter(3, 0, 30, help="quick adapt: below MaxWnd / 2^N octets in a period")
    #: in bandwidth-delay products of one plane
    drop_threshold: float = parameter(
        5.0, 1, 1_000, help="BDPs at which queues drop; counts only without trimming"
    )
    delay_gain: float | None = parameter(
        None,
        0,
        1,
        help="weight of a sample in the average delay; auto: its octets among those of a base RTT",
    )
    #: As UEC's simulator does.  By the specification such an ACK changes nothing but what is in
    #: flight (UES 3.6.13).
    average_stands_in: bool = _switch(
        False, help="the average delay judges an ACK without an RTT sample; runs set 1"
    )

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

    grant_mtus: int = parameter(4, 1, 1_024, help="full packets that a receiver grants at once")
    pacer_share: float = parameter(0.99, 0, 1, help="part of its link that a receiver grants")
    least_grant: int = parameter(
        1_024, 0, 1 << 20, help="octets that a receiver grants at once at least"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pacer_share:
            raise ParameterError(f"pacer_share is {self.pacer_share}; it must lie in 0..1, not 0")


def _derive(parameters: PathParameters, name: str, value: float) -> None:
    object.__setattr__(parameters, name, value)  # once, while it is made
