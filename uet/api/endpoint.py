"""An endpoint with all its operations: ``fi_endpoint``."""

from __future__ import annotations

from uet.api.atomics import AtomicOperations


class Endpoint(AtomicOperations):
    """One resource index of one process; made by :meth:`uet.api.Domain.endpoint`.

    Operations post and return.  How they end stands in the completion queues and counters that are
    bound to the endpoint. Nothing moves until somebody waits on one or reads it.  What could never
    be carried out, or what the profiles of either side leave out, raises a ``ValueError`` of one
    sentence when it is posted.

    >>> from uet.api.loopback import pair
    >>> a, b = pair(profiles=("ai_base",))
    >>> a.endpoint.read(bytearray(8), a.peer, 0, 1)
    Traceback (most recent call last):
    ...
    uet.api.flags.ApiError: a read needs READ, which the profile ai_base does not have; add a \
profile that has it

    A DGRAM endpoint sends datagrams (UUD): nobody confirms them, and they complete when they
    have left.

    >>> from uet.api import EndpointType
    >>> a, b = pair(EndpointType.DGRAM)
    >>> b.endpoint.recv(bytearray(100))
    >>> a.endpoint.send(b"hello", a.peer)
    >>> a.cq.wait()[0].len, bytes(b.cq.wait()[0].buf)
    (5, b'hello')
    """
