"""Two ends agree on numbers before their queue pairs can talk: one frozen class holds them."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.rocev2.wire.rocev2_codes import GSI_QPN, PSN_MASK, QPN_MASK
from uet.config_checks import ConfigurationError

SERVICES = ("rc", "uc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The agreement of two ends about one pair of queue pairs, as seen from one end.

    ``first_psn`` is that of the first request sent from here, ``expected_psn`` that of the first
    one to arrive.
    """

    local_qpn: int
    remote_qpn: int
    first_psn: int = 0
    expected_psn: int = 0
    service: str = "rc"

    def __post_init__(self) -> None:
        for name in ("local_qpn", "remote_qpn"):
            number = getattr(self, name)
            if not GSI_QPN < number < QPN_MASK:
                raise ConfigurationError(
                    f"connections: {name} is {number}; it must lie in {GSI_QPN + 1}..{QPN_MASK - 1}"
                )
        for name in ("first_psn", "expected_psn"):
            number = getattr(self, name)
            if not 0 <= number <= PSN_MASK:
                raise ConfigurationError(
                    f"connections: {name} is {number}; it must lie in 0..{PSN_MASK}"
                )
        if self.service not in SERVICES:
            raise ConfigurationError(
                f"connections: service is {self.service!r}; choose one of {', '.join(SERVICES)}"
            )
