"""The numbers that DCQCN works with, by the name of the set that people use.

Sources: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015); the
ns-3 models of its authors and of Li et al., "HPCC" (SIGCOMM 2019); SimAI; the documentation of
NVIDIA and AMD.  Times are ns, rates bits/s, sizes octets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from uet.congestion.congestion_parameters import ParameterError

_SECOND = 10**9
_US = 1_000
_MBPS = 10**6
_GBPS = 10**9

#: What a unit of the byte counter can be.  NVIDIA's manuals, mlxconfig and Linux's dcbnl count
#: octets; other texts take the same number, 32767, for units of 64 octets, or 2 MB.
BYTE_UNITS = (1, 64)
_FLAGS = ("clamp_target", "clamp_after_time", "cnp_per_port")
#: "paper": a CNP cuts the rate at once and restarts all timers.  "periodic": ticks look for it.
VARIANTS = ("paper", "periodic")
#: Parameters of the variant "periodic" alone.
PERIODIC = ("decrease_interval", "clamp_target", "clamp_after_time")


@dataclass(frozen=True, kw_only=True)
class DcqcnParameters:
    """The parameters of both ends; :meth:`named` makes those that people use.

    What stands in brackets is the paper's name.  Those in :data:`PERIODIC` are for that variant.
    """

    variant: str
    #: weight of one look at the CNPs in alpha
    g: float
    #: least time between two CNPs of a queue pair [N], or of all of a port
    cnp_interval: int
    cnp_per_port: bool = False
    #: alpha's timer [K]
    alpha_interval: int
    #: between two looks for a CNP that cuts the rate
    decrease_interval: int = 0
    #: between two increases of the rate [T]
    rate_interval: int
    #: units of ``byte_unit`` octets sent between two increases; 0: only time counts [B]
    byte_counter: int = 0
    byte_unit: int = 1
    #: increases that halve the way to the target before the target itself grows [F]
    recovery_steps: int
    #: what one additive increase adds to the target [R_AI]
    additive_rate: float
    #: what one hyper increase adds to the target [R_HAI]
    hyper_rate: float
    #: the rate never falls below this
    least_rate: float
    #: alpha when the first CNP comes
    initial_alpha: float = 1.0
    #: the rate is multiplied by this when the first CNP comes
    first_cnp_factor: float = 1.0
    #: every cut takes the rate of the moment as the new target, not only the first after a rise
    clamp_target: bool = False
    #: rises by time alone count for that, too, not only those by the byte counter
    clamp_after_time: bool = True

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ParameterError(
                f"dcqcn.variant is {self.variant!r}; choose one of {', '.join(VARIANTS)}"
            )
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ParameterError(f"dcqcn.{name} is {value!r}; give a number")
            if not least <= value <= most:
                raise ParameterError(f"dcqcn.{name} is {value}; it must lie in {least}..{most}")
        for flag in _FLAGS:
            value = getattr(self, flag)
            if value not in (0, 1):
                raise ParameterError(f"dcqcn.{flag} is {value!r}; it is 1 (yes) or 0 (no)")
        if self.byte_unit not in BYTE_UNITS:
            raise ParameterError(
                f"dcqcn.byte_unit is {self.byte_unit}; it is one of "
                f"{', '.join(map(str, BYTE_UNITS))} octets"
            )
        if self.variant == "periodic":
            if self.decrease_interval < 1:
                raise ParameterError(
                    "dcqcn.decrease_interval is 0; the variant 'periodic' needs its length in ns"
                )
        elif self.alpha_interval <= self.cnp_interval:
            # alpha would decay between two CNPs of a queue that never empties (paper, 3.3)
            raise ParameterError(
                f"dcqcn.alpha_interval is {self.alpha_interval}; it must exceed cnp_interval, "
                f"{self.cnp_interval}"
            )

    @classmethod
    def named(cls, name: str, line_rate_bps: int, **overrides: Any) -> DcqcnParameters:
        """One of :data:`NAMED` for a line of ``line_rate_bps``; ``overrides`` are taken as given.

        A set that was made for a certain line rate is scaled (:meth:`scaled`) to this one.
        :class:`~uet.congestion.congestion_parameters.ParameterError` for what does not exist or
        cannot be.
        """
        if name not in NAMED:
            raise ParameterError(
                f"dcqcn has no parameter set {name!r}; choose one of {', '.join(NAMED)}"
            )
        known = [field.name for field in fields(cls)]
        for parameter in overrides:
            if parameter not in known:
                raise ParameterError(
                    f"dcqcn has no parameter {parameter!r}; it has {', '.join(known)}"
                )
        made_for, parameters = NAMED[name]
        if made_for is not None:
            parameters = parameters.scaled(line_rate_bps / made_for)
        made = replace(parameters, **overrides) if overrides else parameters
        made.must_suit(line_rate_bps)
        return made

    @property
    def reset_octets(self) -> int:
        """Octets sent between two increases of the rate; 0: only time counts."""
        return self.byte_counter * self.byte_unit

    def must_suit(self, line_rate_bps: int) -> None:
        """Raise ParameterError if a line is too slow for them."""
        if self.least_rate > line_rate_bps:
            raise ParameterError(
                f"dcqcn.least_rate is {self.least_rate:.0f}; "
                f"it must not exceed the line rate, {line_rate_bps}"
            )

    def scaled(self, factor: float) -> DcqcnParameters:
        """Return parameters for a line ``factor`` times as fast with the same round trip.

        Octets and increases grow with it, so that the steps stay the same part of the line rate.
        The least rate does not: the models have one for all lines.
        """
        return replace(
            self,
            byte_counter=round(self.byte_counter * factor),
            additive_rate=self.additive_rate * factor,
            hyper_rate=self.hyper_rate * factor,
        )

    def stretched(self, factor: int) -> DcqcnParameters:
        """Return parameters for a line ``factor`` times as slow with the same octets in flight.

        Times grow and rates shrink; in units of round trips and of the line rate nothing changes.
        """
        return replace(
            self,
            cnp_interval=self.cnp_interval * factor,
            alpha_interval=self.alpha_interval * factor,
            decrease_interval=self.decrease_interval * factor,
            rate_interval=self.rate_interval * factor,
            additive_rate=self.additive_rate / factor,
            hyper_rate=self.hyper_rate / factor,
            least_rate=self.least_rate / factor,
        )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("g", 1e-6, 1),
    ("cnp_interval", 0, 100 * _SECOND),
    ("alpha_interval", 1, 100 * _SECOND),
    ("decrease_interval", 0, 100 * _SECOND),
    ("rate_interval", 1, 100 * _SECOND),
    ("byte_counter", 0, 1 << 50),
    ("recovery_steps", 0, 1_000),
    ("additive_rate", 0, 10**14),
    ("hyper_rate", 0, 10**14),
    ("least_rate", 1, 10**14),
    ("initial_alpha", 0, 1),
    ("first_cnp_factor", 1e-3, 1),
)

_PAPER = DcqcnParameters(
    variant="paper",
    g=1 / 256,
    cnp_interval=50 * _US,
    alpha_interval=55 * _US,
    rate_interval=55 * _US,
    byte_counter=10_000_000,
    recovery_steps=5,
    additive_rate=40 * _MBPS,
    hyper_rate=400 * _MBPS,
    # the paper gives none; its authors' ns-3 model has this one
    least_rate=100 * _MBPS,
)
_HPCC = DcqcnParameters(
    variant="periodic",
    g=1 / 256,
    # the models notify the sender of every mark; NICs space CNPs by this
    cnp_interval=4 * _US,
    alpha_interval=1 * _US,
    decrease_interval=4 * _US,
    rate_interval=300 * _US,
    recovery_steps=1,
    additive_rate=5 * _MBPS,
    hyper_rate=50 * _MBPS,
    least_rate=1_000 * _MBPS,
)

#: name -> the line rate that a set was made for (None: it is used as it is on any), and the set.
#: "paper": Zhu et al., table of section 5, at 40 Gb/s.  "mlx": the firmware defaults that NVIDIA
#: documents for ConnectX ("DCQCN CC Parameters" of its DOCA manual), which mlxconfig shows on
#: ConnectX-4 to 7; there MIN_TIME_BETWEEN_CNPS is 0, 2 or 4 us.  "hpcc": the scripts of the HPCC
#: ns-3 model (run.py), whose increases are per 25 Gb/s of line rate.  "simai": the configuration
#: that SimAI ships, and astra-network-ns3.  The models have no byte counter; the firmware has
#: (RPG_BYTE_RESET).  "pollara": what AMD recommends for its Pollara 400 (``nicctl update dcqcn`` in
#: ROCm's guides to distributed inference); units are those of README_AINIC.md in a fork of AMD's
#: device-config-manager.  That gives the interval between increases in "TCP RTTs", here intervals
#: of alpha, as NVIDIA calls these: its 5 times 55 us are near NVIDIA's 300.  The least time between
#: CNPs is not published (here 4 us), and the token bucket, 800,000 octets, is not modelled.
#:
#: Unknown of the firmware, and modelled so: its increases by octets are judged as IEEE 802.1Qau
#: does (both counters beyond the threshold: hyper increase), a hyper increase adds R_HAI once
#: whatever the stage, and neither interval shrinks in later stages, as 802.1Qau halves them.  CNPs
#: are spaced for each queue pair, as the paper has it; NVIDIA's texts say "from the port"
#: (``cnp_per_port``), and Lumina (SIGCOMM 2023) looks for ports, pairs and destinations.  AMD's
#: algorithm is taken for the same.  Broadcom names its parameters (Linux, bnxt_re) but not their
#: algorithm, so that there is no set of them.  What newer NICs do instead of DCQCN by default is
#: not published at all.
NAMED: Mapping[str, tuple[int | None, DcqcnParameters]] = MappingProxyType(
    {
        "paper": (40 * _GBPS, _PAPER),
        "mlx": (
            None,
            replace(
                _HPCC,
                g=5 / 1024,
                byte_counter=32_767,
                least_rate=1 * _MBPS,
                initial_alpha=1023 / 1024,
            ),
        ),
        "hpcc": (25 * _GBPS, _HPCC),
        "simai": (
            None,
            replace(
                _HPCC,
                rate_interval=900 * _US,
                additive_rate=50 * _MBPS,
                hyper_rate=100 * _MBPS,
                least_rate=100 * _MBPS,
            ),
        ),
        "pollara": (
            None,
            replace(
                _HPCC,
                g=512 / 1024,
                decrease_interval=1 * _US,
                rate_interval=1 * _US,
                byte_counter=431_068,
                additive_rate=160 * _MBPS,
                hyper_rate=300 * _MBPS,
                least_rate=1 * _MBPS,
                initial_alpha=64 / 1024,
            ),
        ),
    }
)
#: Whose each set is.
MEANINGS: Mapping[str, str] = {
    "paper": "Zhu et al., SIGCOMM 2015",
    "mlx": "NVIDIA's firmware, ConnectX-4 and later",
    "hpcc": "the ns-3 model of HPCC",
    "simai": "the configuration of SimAI",
    "pollara": "what AMD recommends for Pollara 400",
}
