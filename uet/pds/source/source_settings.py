"""The settings of the source half of a PDC, taken from those of its endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from uet.config import FepConfig
from uet.pds.negotiation import feature_request
from uet.pds.recovery.repair import RecoverySettings
from uet.wire.codes import MPR_UNIT


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Configure the source half of a PDC, and the repair of its losses."""

    recovery: RecoverySettings
    #: the destination takes requests in the order of their PSNs only
    ordered: bool
    #: nominal size of a full request (UES 3.6.12)
    full_size: int
    #: PSNs that the peer tracks beyond its CACK, until its ACKs give another number
    peer_range: int
    #: octets after which the destination sends an ACK unasked
    ack_gen_trigger: int
    ack_per_packet: bool
    #: retransmissions have SYN where the first transmission had it
    keep_syn: bool
    #: the payload of a NEGOTIATION
    negotiation: bytes
    #: a message of more packets is not short
    short_message_packets: int

    @classmethod
    def of(
        cls, config: FepConfig, *, ordered: bool, full_size: int, mpr: int | None
    ) -> SourceSettings:
        """Return the settings of one PDC; ``mpr`` is the peer's range on another PDC, if known."""
        compatibility = config.compatibility
        return cls(
            recovery=RecoverySettings.of(config, ordered=ordered),
            ordered=ordered,
            full_size=full_size,
            peer_range=min(config.mpr, mpr or config.mpr) * MPR_UNIT,
            ack_gen_trigger=config.ack_gen_trigger,
            ack_per_packet=config.ack_per_packet,
            keep_syn=compatibility.keep_syn_on_retransmission,
            negotiation=feature_request(compatibility),
            short_message_packets=config.short_message_packets,
        )
