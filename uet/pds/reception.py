"""A packet in the hands of its receiver.

One object serves an endpoint: it is filled anew for each packet, so that nothing is allocated and
fields cannot be confused as ten positional arguments can.  What is kept of a packet for later is
copied out of it.
"""

from __future__ import annotations

from uet.peer import Peer


class Reception:
    """The fields of the packet that an endpoint receives now."""

    __slots__ = (
        "at",
        "clear_psn",
        "dpdcid",
        "entropy",
        "kind",
        "marked",
        "next_header",
        "now",
        "packet",
        "peer",
        "psn",
        "sdi",
        "ses_at",
        "spdcid",
        "word",
    )

    #: the packet, decrypted if it was secured
    packet: memoryview
    #: where its PDS header begins, and where its SES header does
    at: int
    ses_at: int
    #: the PDS type (UES Table 3-31)
    kind: int
    peer: Peer
    #: the secure domain, ``None`` in clear
    sdi: int | None
    entropy: int
    #: whether a switch has marked it (ECN CE)
    marked: bool
    #: the time of arrival (ns)
    now: int
    #: the first word of the PDS header, with its flags
    word: int
    psn: int
    clear_psn: int
    spdcid: int
    #: with SYN: PDC info and PSN offset
    dpdcid: int
    next_header: int
