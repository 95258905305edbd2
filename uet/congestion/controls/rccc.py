"""RCCC: a source sends what its destination has granted (UES 3.6.14).

The credit itself is in :mod:`uet.congestion.receiver_credit`, as any endpoint grants it to peers.
"""

from __future__ import annotations

from uet.congestion.congestion_parameters import RcccParameters
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.receiver_credit import CreditSource


def credit(tuning: Tuning) -> CreditSource:
    """Return the credit of a new context."""
    return CreditSource(tuning.of("rccc", RcccParameters))


CONTROLS.register(
    CongestionControl(
        name="rccc", meaning="receiver credit", credit=credit, parameters=RcccParameters
    )
)
