"""The parts of an endpoint's congestion control contexts.

The algorithm, the parameters that it derives from the path, and the way of spraying.  Sizes are
octets of nominal packet size (UES 3.6.12), times ns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

from uet.congestion.congestion_parameters import (
    NsccParameters,
    ParameterError,
    PathParameters,
    RcccParameters,
)
from uet.congestion.context import CongestionContext, Window
from uet.congestion.fixed import FixedWindow
from uet.congestion.nscc import Nscc
from uet.congestion.rccc import CreditSource
from uet.congestion.spraying.bitmap import PenaltySpraying
from uet.congestion.spraying.entropy_values import EV_SET_SIZE, ObliviousSpraying
from uet.congestion.spraying.ev_sets import EvSets
from uet.congestion.spraying.paths import PathSelection, RoundRobin, ev_set_size
from uet.congestion.spraying.port_entropy import PerPort, Ports
from uet.congestion.spraying.reps import Reps

#: What limits a source: a fixed window, NSCC (UES 3.6.13), RCCC (UES 3.6.14), or both of these.
ALGORITHMS = ("none", "nscc", "rccc", "both")
#: How unordered PDCs choose their paths (UES 3.6.16).
SPRAYING = ("oblivious", "round_robin", "bitmap", "reps")

P = TypeVar("P", bound=PathParameters)


@dataclass(frozen=True, kw_only=True)
class CongestionProfile:
    """One for all peers of an endpoint: ``algorithm`` is one of :data:`ALGORITHMS`.

    ``rccc`` is also what an endpoint grants credit by, to those of its peers that ask for it;
    who has asked in vain for ``credit_timeout`` begins anew.  ``freeze_time`` is for REPS.
    """

    algorithm: str
    nscc: NsccParameters
    rccc: RcccParameters
    fixed_window: int
    spraying: str
    freeze_time: int
    credit_timeout: int

    def open(
        self,
        rng: random.Random,
        now: int,
        *,
        ports: Ports | None = None,
        ccc_id: int = 0,
        evs: list[int] | None = None,
    ) -> CongestionContext:
        """A new context, at its start, for an endpoint with ``ports``, by default one.

        ``evs`` were drawn for it before.
        """
        windowed = self.algorithm in ("nscc", "both")
        credited = self.algorithm in ("rccc", "both")
        window: Window | None = None
        if windowed:
            window = Nscc(self.nscc, now, credited=credited)
        elif not credited:
            window = FixedWindow(self.fixed_window)
        return CongestionContext(
            window=window,
            credit=CreditSource(self.rccc) if credited else None,
            paths=self._spray(rng, ports or Ports(1), evs),
            ccc_id=ccc_id,
            adaptive=windowed,
            credit_timeout=self.credit_timeout,
            full_size=self.nscc.mtu,
            base_rtt=self.nscc.base_rtt,
            max_wnd=self.nscc.max_wnd,
        )

    def ahead(
        self, rng: random.Random, now: int, *, ports: Ports, count: int
    ) -> Callable[[int], CongestionContext]:
        """Draw for ``count`` contexts now; what is returned opens each by its number.

        All are as if they had been opened now, one after the other.
        """
        if self.spraying == "reps" and ports.count > 1:
            return [self.open(rng, now, ports=ports) for _ in range(count)].__getitem__
        if self.spraying == "oblivious":
            return lambda _: self.open(rng, now, ports=ports)
        size = EV_SET_SIZE if self.spraying == "reps" else self._set_size
        sets = EvSets(rng, size, count)
        return lambda number: self.open(rng, now, ports=ports, evs=sets[number])

    @property
    def _set_size(self) -> int:
        return ev_set_size(self.nscc.bdp, self.nscc.mtu)

    def _spray(
        self, rng: random.Random, ports: Ports, evs: list[int] | None = None
    ) -> PathSelection:
        path = self.nscc
        if self.spraying == "oblivious":
            return ports.steer(ObliviousSpraying(rng))
        if self.spraying == "reps":
            packets = max(path.bdp // path.mtu // ports.count, 1)
            reps = partial(Reps, rng, window_packets=packets, freeze_time=self.freeze_time)
            if ports.count == 1:
                return reps(evs=evs)
            return PerPort(rng, ports, lambda evs: reps(evs=evs), size=EV_SET_SIZE)
        size = self._set_size
        if self.spraying == "bitmap":
            return ports.steer(PenaltySpraying(rng, size=size, rest=path.base_rtt, evs=evs))
        return ports.steer(RoundRobin(rng, size, evs=evs))


def profile(
    algorithm: str,
    *,
    spraying: str,
    base_rtt: int,
    link_rate: int,
    mtu: int,
    trimming: bool,
    fixed_window: int,
    freeze_time: int,
    credit_timeout: int,
    nscc: Mapping[str, Any] | None = None,
    rccc: Mapping[str, Any] | None = None,
) -> CongestionProfile:
    """The profile of ``algorithm`` on a path
    (:class:`~uet.congestion.congestion_parameters.PathParameters`).

    ``trimming``: its switches trim.  ``nscc`` and ``rccc`` override parameters by their names.
    :class:`~uet.congestion.congestion_parameters.ParameterError` for what does not exist or cannot
    be.
    """
    if algorithm not in ALGORITHMS:
        raise ParameterError(
            f"congestion control {algorithm!r} is not known; choose one of {', '.join(ALGORITHMS)}"
        )
    if spraying not in SPRAYING:
        raise ParameterError(f"spraying is {spraying!r}; choose one of {', '.join(SPRAYING)}")
    path = {"base_rtt": base_rtt, "link_rate": link_rate, "mtu": mtu}
    return CongestionProfile(
        algorithm=algorithm,
        nscc=_parameters(NsccParameters, "nscc", {**path, "trimming": trimming}, nscc or {}),
        rccc=_parameters(RcccParameters, "rccc", path, rccc or {}),
        fixed_window=fixed_window,
        spraying=spraying,
        freeze_time=freeze_time,
        credit_timeout=credit_timeout,
    )


def _parameters(
    kind: type[P], name: str, given: Mapping[str, Any], overridden: Mapping[str, Any]
) -> P:
    known = [field.name for field in fields(kind) if field.init]
    for parameter, value in overridden.items():
        if parameter not in known:
            listed = ", ".join(known)
            raise ParameterError(f"{name} has no parameter {parameter!r}; it has {listed}")
        if isinstance(value, str):
            raise ParameterError(f"{name}.{parameter} is {value!r}; give a number")
    return kind(**{**given, **overridden})
