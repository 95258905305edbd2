"""A peer as seen from this endpoint: how frames to it are made."""

from __future__ import annotations

from ipaddress import ip_address

from emulator.rocev2.wire.rocev2_codes import flow_label, source_port
from emulator.rocev2.wire.rocev2_frames import Frames
from uet.carrier_codec import PeerEnvelope
from uet.encapsulation_choice import Encapsulation


class HcaPeer:
    """An endpoint that packets go to and come from; ``EncapsulationError`` if it cannot be."""

    __slots__ = ("_envelope", "address", "key")

    def __init__(self, encapsulation: Encapsulation, address: str, mac: str) -> None:
        self.address = address
        self.key = ip_address(address).packed
        self._envelope = PeerEnvelope(encapsulation, address, mac)

    def frames(self, local_qpn: int, remote_qpn: int, pkey: int) -> Frames:
        """Return the frames of one pair of queue pairs, which share a UDP port (annex A17.9.4)."""
        port = source_port(flow_label(local_qpn, remote_qpn))
        return Frames(self._envelope, port, remote_qpn, pkey)
