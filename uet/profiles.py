"""The three profiles of Ultra Ethernet and what each lets an endpoint do (UES 2.2).

An endpoint may have several; AI Base is part of the other two, and HPC is no superset of AI
Full: real deferrable send is what it lacks.  Where the public sources on the tables of UES 2.2
disagree, the narrower reading is taken.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final


class FepCapability(enum.Flag):
    """Something that an endpoint can do beyond writing, sending and datagrams."""

    NONE = 0
    READ = enum.auto()
    ATOMIC = enum.auto()
    FETCHING_ATOMIC = enum.auto()
    #: exact tags, no order among messages
    TAGGED_SEND = enum.auto()
    #: ignore bits, receives for any source, matching in the order of posting
    WILDCARD = enum.auto()
    #: without it a deferrable send is a plain one
    DEFERRABLE = enum.auto()
    RENDEZVOUS = enum.auto()
    TSEND_ATOMIC = enum.auto()
    #: reliable delivery of idempotent requests without a PDC
    RUDI = enum.auto()
    #: small and medium request headers
    OPTIMIZED_HEADERS = enum.auto()


_AI_BASE: Final = FepCapability.ATOMIC
_AI_FULL: Final = (
    _AI_BASE
    | FepCapability.READ
    | FepCapability.FETCHING_ATOMIC
    | FepCapability.TAGGED_SEND
    | FepCapability.DEFERRABLE
    | FepCapability.OPTIMIZED_HEADERS
)
_HPC: Final = (
    _AI_BASE
    | FepCapability.READ
    | FepCapability.FETCHING_ATOMIC
    | FepCapability.TAGGED_SEND
    | FepCapability.WILDCARD
    | FepCapability.RENDEZVOUS
    | FepCapability.TSEND_ATOMIC
    | FepCapability.RUDI
    | FepCapability.OPTIMIZED_HEADERS
)

#: Capabilities by the profile's name.
PROFILES: Final[dict[str, FepCapability]] = {
    "ai_base": _AI_BASE,
    "ai_full": _AI_FULL,
    "hpc": _HPC,
}


def capabilities(profiles: Iterable[str]) -> FepCapability:
    """Return what an endpoint with these profiles can do; ``ValueError`` names an unknown one."""
    together = FepCapability.NONE
    for name in profiles:
        try:
            together |= PROFILES[name]
        except KeyError:
            raise ValueError(
                f"unknown profile {name!r}; choose among {', '.join(PROFILES)}"
            ) from None
    return together
