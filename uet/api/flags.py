"""Flags of operations, completions and orderings, with the bits that libfabric gives them."""

from __future__ import annotations

import enum


class ApiError(ValueError):
    """A call cannot be executed as made; the sentence explains how to mend it."""


class Flag(enum.IntFlag):
    """Operation and completion flags (``FI_SEND``, ``FI_DELIVERY_COMPLETE``, ...)."""

    NONE = 0
    MSG = 1 << 1
    RMA = 1 << 2
    TAGGED = 1 << 3
    ATOMIC = 1 << 4
    READ = 1 << 8
    WRITE = 1 << 9
    RECV = 1 << 10
    SEND = 1 << 11
    TRANSMIT = SEND
    REMOTE_READ = 1 << 12
    REMOTE_WRITE = 1 << 13
    #: of a receive: take message after message; of a completion: the memory is the caller's again
    MULTI_RECV = 1 << 16
    #: 64 bits of data came, or go, with the message
    REMOTE_CQ_DATA = 1 << 17
    #: the buffer may be used again as soon as the call returns
    INJECT = 1 << 25
    #: complete only when the data is visible to the target's application (SES flag ``dc``)
    DELIVERY_COMPLETE = 1 << 28
    #: this provider's own (bits 60 to 63 are for that): carry a read or write of idempotent-safe
    #: memory without a connection, as RUDI (UES 3.5.3)
    RUDI = 1 << 60


class Order(enum.IntFlag):
    """The orders of messages: which may not overtake which.

    ``FI_ORDER_SAS`` is send after send, and so on.

    Any of them makes an endpoint use ordered delivery (ROD), none of them unordered (RUD).
    """

    NONE = 0
    RAR = 1 << 0
    RAW = 1 << 1
    RAS = 1 << 2
    WAR = 1 << 3
    WAW = 1 << 4
    WAS = 1 << 5
    SAR = 1 << 6
    SAW = 1 << 7
    SAS = 1 << 8


class EndpointType(enum.Enum):
    """``FI_EP_RDM``: reliable messages, RMA, atomics; ``FI_EP_DGRAM``: datagrams (UUD)."""

    RDM = "rdm"
    DGRAM = "dgram"
