"""Ultra Ethernet by libfabric's names, without the ``fi_`` in front.

::

    Domain            one FEP: configuration, driver, secure domains     fi_domain
     |- Endpoint      one resource index of one process                  fi_endpoint
     |- AddressVector peers by handle                                    fi_av
     |- MemoryRegion  memory that peers reach by key                     fi_mr
     |- CompletionQueue, Counter    what has ended                       fi_cq, fi_cntr
     '- Driver        moves frames and time while somebody waits

Operations post and return; waiting on a queue or counter makes progress (``FI_PROGRESS_MANUAL``).
:func:`uet.api.loopback.pair` makes two endpoints to try it with.  What libfabric leaves to the
provider is settled as UES and the UEC reference provider do: requested ordering means ROD, no
ordering RUD; remote CQ data is header data; a delivery-complete flag is ``dc``. Left out are
vectored calls, triggered and selective operations, and events.
"""

from __future__ import annotations

from uet.api.address_vector import ADDR_UNSPEC, AddressVector, ProviderAddress
from uet.api.completion_queue import (
    CompletionQueue,
    Counter,
    CqEntry,
    CqErrEntry,
    ErrorAvailable,
)
from uet.api.domain import Domain, MemoryRegion
from uet.api.driver import Driver
from uet.api.endpoint import Endpoint
from uet.api.flags import ApiError, EndpointType, Flag, Order
from uet.ses.address import Address
from uet.wire.codes import AtomicOpcode, Datatype

__all__ = [
    "ADDR_UNSPEC",
    "Address",
    "AddressVector",
    "ApiError",
    "AtomicOpcode",
    "CompletionQueue",
    "Counter",
    "CqEntry",
    "CqErrEntry",
    "Datatype",
    "Domain",
    "Driver",
    "Endpoint",
    "EndpointType",
    "ErrorAvailable",
    "Flag",
    "MemoryRegion",
    "Order",
    "ProviderAddress",
]
