"""RCCC: a source sends what its destination has granted (UES 3.6.14), alone or in an NSCC window.

The credit itself is in :mod:`uet.congestion.receiver_credit`, as any endpoint grants it to peers.
"""

from __future__ import annotations

from uet.congestion.congestion_parameters import NsccParameters, RcccParameters
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.controls.nscc import Nscc
from uet.congestion.receiver_credit import CreditSource


def credit(tuning: Tuning) -> CreditSource:
    """Return the credit of a new context."""
    return CreditSource(tuning.of("rccc", RcccParameters))


def _window(tuning: Tuning, now: int) -> Nscc:
    return Nscc(tuning.of("nscc", NsccParameters), now, credited=True)


CONTROLS.register(
    CongestionControl(
        name="both",
        meaning="nscc and rccc",
        window=_window,
        credit=credit,
        reads=("nscc", "rccc"),
        adaptive=True,
    )
)
CONTROLS.register(
    CongestionControl(
        name="rccc", meaning="receiver credit", credit=credit, parameters=RcccParameters
    )
)
