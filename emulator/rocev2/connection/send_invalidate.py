"""The one request that RoCEv2 has beside those of every transport."""

from __future__ import annotations

from dataclasses import dataclass

from uet.transport import SendRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SendInvalidate(SendRequest):
    """A send that takes the region ``invalidate`` away from the peer that owns it."""

    invalidate: int
