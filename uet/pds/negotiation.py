"""NEGOTIATION control packets: which optional features both ends have (UES 1.0.3, 3.5.16.7).

Eight octets follow the header: type 1, length in 32-bit words, 16 reserved bits and a mask of
features.  A target answers with those of them that it has too.
"""

from __future__ import annotations

import struct
from typing import Final

from uet.compatibility import Compatibility

_FEATURES: Final = struct.Struct(">BBHI")
FEATURES_OCTETS: Final = _FEATURES.size
_TYPE_FEATURES: Final = 1
_WORDS: Final = FEATURES_OCTETS // 4

#: A packet first sent with SYN may be sent again without, once the target is known (SYN_RETX_
#: TRANSFER; its meaning is read from its name).
SYN_RETX_TRANSFER: Final = 1


def supported(compatibility: Compatibility) -> int:
    """The features of an endpoint."""
    return 0 if compatibility.keep_syn_on_retransmission else SYN_RETX_TRANSFER


def feature_request(compatibility: Compatibility) -> bytes:
    """The payload of a NEGOTIATION."""
    return _FEATURES.pack(_TYPE_FEATURES, _WORDS, 0, supported(compatibility))


def agreed_features(octets: bytes, compatibility: Compatibility) -> int | None:
    """Return what both ends have, or ``None`` for a payload that is not understood."""
    if len(octets) < FEATURES_OCTETS:
        return None
    kind, words, _, mask = _FEATURES.unpack_from(octets)
    if kind != _TYPE_FEATURES or words != _WORDS:
        return None
    return int(mask & supported(compatibility))
