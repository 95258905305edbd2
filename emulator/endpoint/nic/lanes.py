"""A lane joins an endpoint and the NIC that its frames leave and come in by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from emulator.endpoint.nic.multi_port_nic import MultiPortNic
from emulator.endpoint.nic.packet_nic import Nic
from uet.planes.fabric_interface import FabricInterface
from uet.transport import Frame, Transport


class FrameEndpoint(Protocol):
    """The part of a transport that has to do with frames (:class:`uet.transport.Transport`)."""

    def receive(self, frames: Sequence[memoryview], now: int) -> None: ...

    def transmit(self, now: int, limit: int) -> list[Frame]: ...

    def next_deadline(self) -> int | None: ...


def lanes(
    transport: Transport, nic: Nic | MultiPortNic
) -> Sequence[tuple[FrameEndpoint, Nic | MultiPortNic]]:
    """The transport with its NIC; of a fabric interface each plane's endpoint with its port."""
    if isinstance(transport, FabricInterface) and isinstance(nic, MultiPortNic):
        return tuple(zip(transport.planes, nic.ports, strict=True))
    return ((transport, nic),)


def per_fep(transport: Transport) -> Mapping[str, Mapping[str, int]]:
    """Return the counters of each endpoint of a fabric interface, by ``fep`` and its number."""
    if not isinstance(transport, FabricInterface):
        return {}
    return {f"fep{name}": counters for name, counters in transport.per_fep()}
