"""The parts of an endpoint's congestion control contexts.

The algorithm, the parameters that it derives from the path, and the way of spraying.  Sizes are
octets of nominal packet size (UES 3.6.12), times ns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from uet.congestion.congestion_parameters import (
    ParameterError,
    Parameters,
    PathParameters,
    RcccParameters,
)
from uet.congestion.context import CongestionContext
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning, tuned_controls
from uet.congestion.spraying.policies import SPRAYING, SprayedPeer, Spraying
from uet.congestion.spraying.port_entropy import Ports

#: The control with whose parameters any endpoint grants credit.
GRANTING = "rccc"

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, kw_only=True)
class CongestionProfile:
    """The congestion control of an endpoint, for all its peers.

    A source that has requested credit in vain for ``credit_timeout`` begins anew.  ``freeze_time``
    is for REPS; ``sprayed`` are the parameters of ``spraying``.
    """

    control: CongestionControl
    path: PathParameters
    tuning: Tuning
    spraying: Spraying
    sprayed: Parameters | None
    freeze_time: int
    credit_timeout: int

    def open(
        self,
        rng: random.Random,
        now: int,
        *,
        ports: Ports | None = None,
        ccc_id: int = 0,
    ) -> CongestionContext:
        """A new context, at its start, for an endpoint with ``ports``, by default one.

        It keeps ``rng`` for what it draws later.
        """
        window, credit = self.control.window, self.control.credit
        return CongestionContext(
            window=None if window is None else window(self.tuning, now),
            credit=None if credit is None else credit(self.tuning),
            paths=self.spraying.selection(
                SprayedPeer(
                    rng=rng,
                    path=self.path,
                    ports=ports or Ports(1),
                    freeze_time=self.freeze_time,
                    tuned=self.sprayed,
                )
            ),
            ccc_id=ccc_id,
            adaptive=self.control.adaptive,
            credit_timeout=self.credit_timeout,
            full_size=self.path.mtu,
            base_rtt=self.path.base_rtt,
            max_wnd=self.path.max_wnd,
        )

    @property
    def granting(self) -> RcccParameters:
        """The parameters by which the endpoint grants credit to peers that request it."""
        return self.tuning.of(GRANTING, RcccParameters)


def profile(  # noqa: PLR0913  each is a field of what it makes
    cc: str,
    *,
    spraying: str,
    base_rtt: int,
    link_rate: int,
    mtu: int,
    trimming: bool,
    fixed_window: int,
    freeze_time: int,
    credit_timeout: int,
    cc_parameters: Mapping[str, Mapping[str, Any]] | None = None,
    spray_parameters: Mapping[str, Any] | None = None,
) -> CongestionProfile:
    """Return the profile of the congestion control ``cc`` on a path.

    The path is that of :class:`~uet.congestion.congestion_parameters.PathParameters`;
    ``trimming``: its switches trim.  ``cc_parameters`` override parameters, by the control and
    their names, ``spray_parameters`` those of the way of spraying.
    :class:`~uet.congestion.congestion_parameters.ParameterError` for what does not exist or cannot
    be.
    """
    control = CONTROLS.get(cc)
    if control is None:
        raise ParameterError(
            f"congestion control {cc!r} is not known; choose one of {', '.join(CONTROLS)}"
        )
    if spraying not in SPRAYING:
        raise ParameterError(f"spraying is {spraying!r}; choose one of {', '.join(SPRAYING)}")
    overridden, kinds = cc_parameters or {}, tuned_controls()
    for name in overridden:
        if name not in kinds:
            raise ParameterError(
                f"no congestion control {name!r} has parameters; {', '.join(kinds)} have"
            )
    policy, sprayed = SPRAYING[spraying], None
    if policy.parameters is None and spray_parameters:
        raise ParameterError(f"the way of spraying {spraying} has no parameters")
    path = PathParameters(base_rtt=base_rtt, link_rate=link_rate, mtu=mtu)
    given = {"base_rtt": base_rtt, "link_rate": link_rate, "mtu": mtu, "trimming": trimming}
    made = {
        name: _parameters(kind, name, given, overridden.get(name, {}))
        for name, kind in kinds.items()
        if control.takes(name) or name in overridden or name == GRANTING
    }
    if policy.parameters is not None:
        sprayed = _parameters(policy.parameters, spraying, given, spray_parameters or {})
    return CongestionProfile(
        control=control,
        path=path,
        tuning=Tuning(made, fixed_window),
        spraying=policy,
        sprayed=sprayed,
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
    taken = {key: value for key, value in given.items() if key in known}
    return kind(**{**taken, **overridden})
