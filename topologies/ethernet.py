"""Octets that Ethernet puts around what it carries (IEEE 802.3)."""

from __future__ import annotations

from typing import Final

HEADER_OCTETS: Final = 14  # two addresses and a type
PREAMBLE_OCTETS: Final = 8  # with the start of the frame
FCS_OCTETS: Final = 4
GAP_OCTETS: Final = 12
#: Octets on the wire around a frame as a socket and the kernel count it.
FRAMING_OCTETS: Final = PREAMBLE_OCTETS + FCS_OCTETS + GAP_OCTETS
#: Octets on the wire around an IP packet.
PACKET_OVERHEAD_OCTETS: Final = HEADER_OCTETS + FRAMING_OCTETS
#: Octets on the wire of the shortest frame: 64 with its FCS, preamble and gap.
SHORTEST_OCTETS: Final = 64 + PREAMBLE_OCTETS + GAP_OCTETS
