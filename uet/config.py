"""Configuration of an endpoint that no packet signals: one frozen class.

Defaults are those of the UE Specification's parameter table (UES Table 3-28) unless the comment
names another source.  Times are ns of fabric time, sizes octets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uet.compatibility import STANDARD, Compatibility
from uet.config_checks import (
    ConfigurationError,
    must_be_among,
    must_be_of_one_version,
    must_lie_within,
)
from uet.congestion.congestion_parameters import ParameterError
from uet.congestion.congestion_profile import CongestionProfile, profile
from uet.profiles import FepCapability, capabilities
from uet.tss.secure_domain import SecureDomain, check_together
from uet.wire.codes import DSCP_CONTROL, DSCP_DATA, NATIVE_PROTOCOL, PAYLOAD_MTUS, UDP_PORT

#: Delivery modes (UES 3.5.3).
DELIVERY_MODES = ("rud", "rod", "rudi", "uud")
ACK_TYPES = ("ack", "ack_cc", "ack_ccx")


@dataclass(frozen=True, kw_only=True)
class FepConfig:
    """A fabric endpoint's identity, peers and parameters.

    ``neighbours`` maps each peer's fabric address (FA), of the same IP version, to the
    destination MAC that reaches it: its own in the same subnet, else the gateway's.
    """

    address: str
    mac: str
    neighbours: Mapping[str, str] = field(default_factory=dict)

    # Addressing (UES 3.4.1) of the endpoint's first resource, and of requests that set none.
    job_id: int = 1
    pid_on_fep: int = 0
    resource_index: int = 15
    initiator_id: int = 16
    relative: bool = True

    # What it may do (UES 2.2), and for which peers' sake it departs from UES 1.0.3.
    profiles: tuple[str, ...] = ("ai_full", "hpc")
    compatibility: Compatibility = STANDARD

    # Encapsulation (UES 3.5.10): UDP, or native IP behind an entropy header.
    native: bool = False
    ip_protocol: int = NATIVE_PROTOCOL
    udp_port: int = UDP_PORT
    crc: bool = False
    dscp_data: int = DSCP_DATA
    dscp_control: int = DSCP_CONTROL
    dscp_trimmed: int | None = None
    dscp_trimmed_lasthop: int | None = None
    ecn_capable: bool = True
    ttl: int = 64

    payload_mtu: int = 4096

    # Delivery: the mode of requests that set none, and whether an ordered PDC keeps what
    # arrives early or refuses it (go-back-N).
    delivery: str = "rud"
    rod_reorder: bool = False

    # Windows: `mpr` is Default_MPR, in units of 128 PSNs.
    mpr: int = 8

    # Congestion control (UES 3.6), one of uet.congestion.controls; "none" is a fixed window of
    # `window_bytes` octets of nominal packet size (UES 3.6.12).  What it is derived from: the
    # round trip of a full packet on the longest idle path (Config_Base_RTT), the rate of the
    # port, whether switches trim.  `cc_parameters` override parameters by control and name.
    cc: str = "none"
    window_bytes: int = 262_144
    base_rtt: int = 12_000
    link_rate: int = 100 * 10**9
    network_trims: bool = True
    cc_parameters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    # Load balancing of unordered PDCs (UES 3.6.16), one of uet.congestion.spraying.policies with
    # its own `spray_parameters`: "oblivious", "round_robin", "bitmap" or "reps", which for
    # `reps_freeze_time` after a loss takes only paths that were good.  EVs choose among so many
    # `ports` (uet.congestion.spraying.port_entropy).
    spraying: str = "oblivious"
    spray_parameters: Mapping[str, float] = field(default_factory=dict)
    reps_freeze_time: int = 10_000_000
    ports: int = 1

    # Acknowledgement (UES 3.5.12).
    ack_type: str = "ack_cc"
    ack_per_packet: bool = False  # Enb_ACK_Per_Pkt
    ack_gen_trigger: int = 16_384
    ack_gen_min_pkt_add: int = 1_024
    ack_on_ecn: bool = True
    max_ack_data_size: int = 16
    trimmable_ack_size: int = 10_240

    # Loss recovery (UES 3.5.15): RTO = rto_init_time * 2^retries.
    rto_init_time: int = 1_000_000
    max_rto_retx_cnt: int = 5
    nack_retx_time: int = 1_000_000
    max_nack_retx_cnt: int = 5
    pds_clear_time: int = 1_000_000
    # After `tail_loss_time` without a word a PROBE queries what has arrived, `max_tail_loss_retx`
    # times at most; what left that long ago and is missing counts as lost (optional; 0 is off).
    tail_loss_time: int = 0
    max_tail_loss_retx: int = 5
    # From newer packets that have arrived (UES: optional): by what SACK reports of them, and on an
    # ordered PDC with a reorder buffer by the target, which sends NACK RCVR_INFER_LOSS.
    infer_loss: bool = True

    # Life of a PDC (UES 3.5.8): how long a target waits for the CLOSE it has requested
    # (Close_REQ_Time), how long it keeps a secured one that is half open (New_PDC_Time), and how
    # long the identifiers of a closed one whose SYN was lost are not used again
    # (Syn_Retx_Safety_Time; its default is not public).
    close_req_time: int = 1_000_000
    new_pdc_time: int = 5_000_000
    syn_retx_safety_time: int = 8_000_000
    limit_psn_range: bool = True

    # A source marks its own resends, so a second copy without RETX was made by the network and
    # needs no answer.  Off for peers that forget the flag.
    drop_network_duplicates: bool = True

    # Messages (UES 3.4).  Lengths from which a send becomes a deferrable or rendezvous one
    # (``None``: never by itself), what a rendezvous sends eagerly, and what becomes of a message
    # that finds no receive: "refuse" (NO_MATCH) or "keep" it, within limits.
    optimized_headers: bool = False
    deferrable_threshold: int | None = None
    rendezvous_threshold: int | None = None
    eager_size: int = 65_536
    unexpected: str = "refuse"
    max_unexpected_messages: int = 1_024
    max_unexpected_octets: int = 16 * 2**20
    # As the UEC reference provider has them.
    max_deferred_messages: int = 8
    deferred_time: int = 5_000_000_000
    restart_time: int = 50_000_000
    max_restarts: int = 5

    # Security (UES 3.7): the domains this endpoint belongs to, the one its requests use, and
    # how a target begins a secured PDC.  `expected_psn` is the Expected_PSN that "0rtt" begins
    # with: what an earlier life of the endpoint has left, or 0 where all keys are new.  Without
    # it the first PDCs of a domain begin as with "1rtt" (:mod:`uet.pds.secure_starts`).
    domains: tuple[SecureDomain, ...] = ()
    sdi: int | None = None
    secure_start: str = "0rtt"
    expected_psn: int | None = None

    # Low bits of a memory key that name a region, where the others below the flags are the
    # application's own (uet.planes.numbered_writes); by default all 56 (UES Table 2-13).
    region_bits: int = 56

    # Local resources, not in the specification.  Initiators get half of the PDCs at most;
    # `reserved_pdcs` of the pool go only to those that request them, as this endpoint does with
    # `use_reserved_pdcs`.
    max_pdcs: int = 1_000
    # An unordered message of at most so many packets takes a second PDC to its peer while a longer
    # one waits on the first (UES 3.5.6: messages are not interleaved on a PDC; 0: never).
    short_message_packets: int = 4
    reserved_pdcs: int = 0
    use_reserved_pdcs: bool = False
    # PDC identifiers are 1..last_pdcid (0 is never assigned, UES 3.5.8.2).
    last_pdcid: int = 65_535
    max_inbound_messages: int = 4_096
    # What READs to one peer in one delivery mode may have requested and not received.
    max_read_octets: int = 4 * 2**20
    inbound_message_idle_time: int = 5_000_000_000  # as the UEC reference provider has it

    def __post_init__(self) -> None:
        must_be_of_one_version(self.address, self.neighbours)
        second = 10**9
        limits = {
            "job_id": (0, 2**24 - 1),
            "pid_on_fep": (0, 2**12 - 1),
            "resource_index": (0, 2**12 - 1),
            "initiator_id": (0, 2**32 - 1),
            "ip_protocol": (0, 255),
            "udp_port": (1, 65_535),
            "dscp_data": (0, 63),
            "dscp_control": (0, 63),
            "ttl": (1, 255),
            "mpr": (1, 255),
            "window_bytes": (1, 2**40),
            "reps_freeze_time": (0, 8 * second),
            "ports": (1, 16),
            "ack_gen_trigger": (0, 32_768),
            "ack_gen_min_pkt_add": (0, 2_048),
            "max_ack_data_size": (0, 8_192),
            "rto_init_time": (1, 8 * second),
            "max_rto_retx_cnt": (0, 15),
            "tail_loss_time": (0, 8 * second),
            "max_tail_loss_retx": (0, 31),
            "nack_retx_time": (0, 8 * second),
            "max_nack_retx_cnt": (0, 31),
            "pds_clear_time": (0, 8 * second),
            "close_req_time": (1, 8 * second),
            "new_pdc_time": (1, 8 * second),
            "syn_retx_safety_time": (0, 8 * second),
            "eager_size": (0, 2**32 - 2),
            "max_unexpected_messages": (0, 2**20),
            "max_unexpected_octets": (0, 2**40),
            "max_deferred_messages": (0, 65_535),
            "deferred_time": (1, 600 * second),
            "restart_time": (1, 600 * second),
            "max_restarts": (0, 2**16),
            "region_bits": (12, 56),
            "max_pdcs": (1, 65_535),
            "short_message_packets": (0, 1_024),
            "reserved_pdcs": (0, 65_535),
            "last_pdcid": (1, 65_535),
            "max_inbound_messages": (1, 65_536),
            "max_read_octets": (1, 2**40),
        }
        must_lie_within(self, limits)
        must_be_among(
            self,
            {
                "payload_mtu": PAYLOAD_MTUS,
                "delivery": DELIVERY_MODES,
                "ack_type": ACK_TYPES,
                "unexpected": ("refuse", "keep"),
                "secure_start": ("0rtt", "1rtt"),
            },
        )
        for name in ("dscp_trimmed", "dscp_trimmed_lasthop"):
            dscp = getattr(self, name)
            if dscp is not None and not 0 <= dscp <= 63:
                raise ConfigurationError(f"{name} is {dscp}; it must lie in 0..63")
            if dscp is not None and dscp in (self.dscp_data, self.dscp_control):
                raise ConfigurationError(
                    f"{name} is {dscp}, as dscp_data or dscp_control is; take one that only"
                    " switches use"
                )
        try:
            capabilities(self.profiles)
        except ValueError as error:
            raise ConfigurationError(f"profiles: {error}") from None
        try:
            self.congestion(self.payload_mtu)
        except ParameterError as error:
            raise ConfigurationError(str(error)) from None
        if self.address in self.neighbours:
            raise ConfigurationError(f"neighbours holds the endpoint's own address {self.address}")
        if self.reserved_pdcs >= self.max_pdcs:
            raise ConfigurationError("reserved_pdcs must leave some of max_pdcs to everybody")
        if self.expected_psn is not None and not 0 <= self.expected_psn < 2**32:
            raise ConfigurationError(
                f"expected_psn is {self.expected_psn}; it must lie in 0..{2**32 - 1}"
            )
        check_together(self.domains)
        known = [domain.sdi for domain in self.domains]
        if len(set(known)) < len(known):
            raise ConfigurationError("domains: each SDI may be there once")
        if self.sdi is not None and self.sdi not in known:
            if not known:
                raise ConfigurationError(
                    f"sdi is {self.sdi}, but there are no secure domains; give domains with their"
                    " keys, or leave sdi out"
                )
            raise ConfigurationError(
                f"sdi {self.sdi} is not among the secure domains; choose one of"
                f" {', '.join(map(str, known))}, or add it to them"
            )

    def congestion(self, full_size: int) -> CongestionProfile:
        """Return the parts of congestion control; ``full_size`` is a full packet's nominal size."""
        return profile(
            self.cc,
            spraying=self.spraying,
            base_rtt=self.base_rtt,
            link_rate=self.link_rate,
            mtu=full_size,
            trimming=self.network_trims,
            fixed_window=self.window_bytes,
            freeze_time=self.reps_freeze_time,
            credit_timeout=self.rto_init_time,
            cc_parameters=self.cc_parameters,
            spray_parameters=self.spray_parameters,
        )

    @property
    def second_pdc_packets(self) -> int:
        """Return how many packets a message may have that takes a second PDC; 0: none does."""
        return 0 if self.compatibility.one_pdc_for_each_mode else self.short_message_packets

    @property
    def capabilities(self) -> FepCapability:
        """Return what its profiles let it do."""
        return capabilities(self.profiles)
