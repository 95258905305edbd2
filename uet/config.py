"""What is configured rather than signalled: one frozen class per endpoint.

Defaults are those of the UE Specification's parameter table (UES Table 3-28) unless the comment
says otherwise.  Times are ns of fabric time, sizes octets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address

PAYLOAD_MTUS = (1024, 2048, 4096, 8192)  # UES 3.4.1.11
PSN_RANGE_UNIT = 128


class ConfigurationError(ValueError):
    """A parameter is out of its range; the sentence names it."""


@dataclass(frozen=True, kw_only=True)
class FepConfig:
    """A fabric endpoint's identity, peers and parameters.

    ``neighbours`` maps each peer's fabric address (FA) to the destination MAC that reaches it:
    its own in the same subnet, else the gateway's.
    """

    address: str
    mac: str
    neighbours: Mapping[str, str] = field(default_factory=dict)

    # Addressing (UES 3.4.1): relative mode, one resource index, one process per endpoint.
    job_id: int = 1
    pid_on_fep: int = 0
    resource_index: int = 15
    initiator_id: int = 16

    # Encapsulation (UES 3.5.10).
    udp_port: int = 4793
    crc: bool = False
    dscp_data: int = 0
    dscp_control: int = 46
    dscp_trimmed: int | None = None
    dscp_trimmed_lasthop: int | None = None
    ttl: int = 64

    payload_mtu: int = 4096

    # Windows.  `mpr` is Default_MPR, in units of 128 PSNs; `window_bytes` is the fixed window,
    # one bandwidth-delay product, in octets of nominal packet size (UES 3.6.12).
    mpr: int = 8
    congestion_control: str = "fixed"
    window_bytes: int = 262_144

    # Acknowledgement (UES 3.5.12).
    ack_gen_trigger: int = 16_384
    ack_gen_min_pkt_add: int = 1_024
    ack_on_ecn: bool = True

    # Loss recovery (UES 3.5.15): RTO = rto_init_time * 2^retries.
    rto_init_time: int = 1_000_000
    max_rto_retx_cnt: int = 5
    nack_retx_time: int = 1_000_000
    max_nack_retx_cnt: int = 5
    pds_clear_time: int = 1_000_000

    # How long a target waits for the CLOSE it has asked for (Close_REQ_Time).
    close_req_time: int = 1_000_000

    # A source marks its own resends, so a second copy without RETX was made by the network and
    # needs no answer.  Off for peers that forget the flag.
    drop_network_duplicates: bool = True

    # Local resources, not in the specification.  Initiators get half of the PDCs at most.
    max_pdcs: int = 1_000
    max_inbound_messages: int = 4_096
    inbound_message_idle_time: int = 5_000_000_000  # as the UEC reference provider has it

    def __post_init__(self) -> None:
        for name, value in (
            ("address", self.address),
            *(("neighbours", p) for p in self.neighbours),
        ):
            try:
                IPv4Address(value)
            except AddressValueError:
                raise ConfigurationError(f"{name}: {value!r} is not an IPv4 address") from None
        limits = {
            "job_id": (0, 2**24 - 1),
            "pid_on_fep": (0, 2**12 - 1),
            "resource_index": (0, 2**12 - 1),
            "initiator_id": (0, 2**32 - 1),
            "udp_port": (1, 65_535),
            "dscp_data": (0, 63),
            "dscp_control": (0, 63),
            "ttl": (1, 255),
            "mpr": (1, 255),
            "window_bytes": (1, 2**40),
            "ack_gen_trigger": (0, 32_768),
            "ack_gen_min_pkt_add": (0, 2_048),
            "rto_init_time": (1, 8 * 10**9),
            "max_rto_retx_cnt": (0, 15),
            "nack_retx_time": (0, 8 * 10**9),
            "max_nack_retx_cnt": (0, 31),
            "pds_clear_time": (0, 8 * 10**9),
            "close_req_time": (1, 8 * 10**9),
            "max_pdcs": (1, 65_535),
            "max_inbound_messages": (1, 65_536),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigurationError(f"{name} is {value}; it must lie in {low}..{high}")
        if self.payload_mtu not in PAYLOAD_MTUS:
            raise ConfigurationError(
                f"payload_mtu is {self.payload_mtu}; choose one of {PAYLOAD_MTUS}"
            )
        if self.address in self.neighbours:
            raise ConfigurationError(f"neighbours holds the endpoint's own address {self.address}")
