"""Configuration of an endpoint that no packet signals: one frozen class.

Times are ns of fabric time, sizes octets.  Where no other source is named, defaults are those of
NCCL or of Linux's verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS
from emulator.rocev2.connections import Connection, FullMesh
from emulator.rocev2.wire.codes import (
    DEFAULT_PKEY,
    GSI_QPN,
    MAX_OUTSTANDING,
    MAX_TIMEOUT_EXPONENT,
    PATH_MTUS,
    QPN_MASK,
    RNR_MICROSECONDS,
    RNR_RETRY_FOREVER,
)
from uet.config_checks import (
    ConfigurationError,
    must_be_among,
    must_be_of_one_version,
    must_lie_within,
)
from uet.congestion.congestion_parameters import ParameterError

RECOVERIES = ("go_back_n", "selective_repeat")
PLACEMENTS = ("in_order", "direct")
ACCESSES = ("write", "read", "atomic")


@dataclass(frozen=True, kw_only=True)
class HcaConfig:
    """A host channel adapter's identity, peers and parameters.

    ``neighbours`` maps each peer's address, of the same IP version, to the destination MAC that
    reaches it: its own in the same subnet, else the gateway's.  ``connections`` are the queue
    pairs toward each of them; those of a :class:`~emulator.rocev2.connections.FullMesh` are
    computed when they are needed.
    """

    address: str
    mac: str
    neighbours: Mapping[str, str] = field(default_factory=dict)
    connections: Mapping[str, tuple[Connection, ...]] = field(default_factory=dict)

    # Encapsulation: ACKs travel as the data do; NICs give CNPs a class of their own.
    dscp_data: int = 26
    dscp_ack: int | None = None
    dscp_cnp: int = 48
    ecn_capable: bool = True
    ttl: int = 64
    pkey: int = DEFAULT_PKEY
    #: the path migration state that packets carry ("migrated", as most hardware sets it)
    migreq: bool = True
    #: whether sends and writes with immediate request an event at the peer (SE)
    solicited: bool = False

    #: payload of a full packet: the path MTU
    mtu: int = 4096

    # Timers and retries, as attributes of a queue pair: exponents and codes of the specification.
    timeout: int = 14
    retry_cnt: int = 7
    rnr_retry: int = RNR_RETRY_FOREVER
    min_rnr_timer: int = 12
    max_rd_atomic: int = 16
    max_dest_rd_atomic: int = 16

    # Acknowledgement: packets after which a long message requests one; packets that may be
    # unacknowledged at most.
    ack_interval: int = 64
    window_packets: int = MAX_OUTSTANDING - 1

    # Loss recovery of RC: what every NIC does, or what newer ones do between each other (see
    # emulator.rocev2.connection.responder): the responder keeps `reorder_window` packets
    # that come early, and takes a packet for lost once one `reorder_tolerance` PSNs later has
    # arrived.
    recovery: str = "go_back_n"
    reorder_window: int = 4_096
    reorder_tolerance: int = 0
    #: "direct": each packet of a WRITE states where its data go (each is a WRITE Only with a RETH),
    #: and the responder puts them there in whatever order they come; it reports in order.  WRITEs
    #: to one place may then overtake each other.
    placement: str = "in_order"

    # Congestion control, one of emulator.rocev2.congestion.rate_controls: "none" sends as fast as
    # the port, "dcqcn" has the parameters of the set `dcqcn_set` for the
    # port's `line_rate`, which `dcqcn` overrides by name
    # (emulator.rocev2.congestion.dcqcn_parameters). Pacing by its rate: how many octets may leave
    # at once after a pause.
    cc: str = "none"
    dcqcn_set: str = "mlx"
    dcqcn: Mapping[str, object] = field(default_factory=dict)
    # of any other control, by name
    cc_parameters: Mapping[str, float] = field(default_factory=dict)
    line_rate: int = 100 * 10**9
    pacing_burst: int = 8_192

    # What peers may request.
    remote_access: tuple[str, ...] = ACCESSES
    #: writes with immediate find a receive always, as under a library that keeps its queue filled
    endless_receives: bool = False

    # Datagrams: the QP that takes them, its Q_Key.
    ud_qpn: int = 2
    qkey: int = 0x1111_1111

    def __post_init__(self) -> None:
        must_be_of_one_version(self.address, self.neighbours)
        if self.address in self.neighbours:
            raise ConfigurationError(f"neighbours holds the endpoint's own address {self.address}")
        limits = {
            "dscp_data": (0, 63),
            "dscp_cnp": (0, 63),
            "ttl": (1, 255),
            "pkey": (1, 0xFFFF),
            "timeout": (0, MAX_TIMEOUT_EXPONENT),
            "retry_cnt": (0, 7),
            "rnr_retry": (0, RNR_RETRY_FOREVER),
            "min_rnr_timer": (0, len(RNR_MICROSECONDS) - 1),
            "max_rd_atomic": (1, 255),
            "max_dest_rd_atomic": (1, 255),
            "ack_interval": (1, 2**20),
            "window_packets": (1, MAX_OUTSTANDING - 1),
            "reorder_window": (1, 2**20),
            "reorder_tolerance": (0, 2**20),
            "line_rate": (1, 10**13),
            "pacing_burst": (1, 2**30),
            "ud_qpn": (GSI_QPN, QPN_MASK - 1),
            "qkey": (0, 2**32 - 1),
        }
        must_lie_within(self, limits)
        if self.dscp_ack is not None and not 0 <= self.dscp_ack <= 63:
            raise ConfigurationError(f"dscp_ack is {self.dscp_ack}; it must lie in 0..63")
        must_be_among(
            self,
            {
                "mtu": PATH_MTUS,
                "recovery": RECOVERIES,
                "placement": PLACEMENTS,
                "cc": tuple(RATE_CONTROLS),
            },
        )
        for access in self.remote_access:
            if access not in ACCESSES:
                raise ConfigurationError(
                    f"remote_access: {access!r} is none of {', '.join(ACCESSES)}"
                )
        if self.placement == "direct" and self.recovery != "selective_repeat":
            raise ConfigurationError(
                "placement is direct, which is for recovery=selective_repeat: who goes back has"
                " nothing to place early"
            )
        try:
            RATE_CONTROLS[self.cc].tuned(self)
        except ParameterError as error:
            raise ConfigurationError(str(error)) from None
        self._check_connections()

    def _check_connections(self) -> None:
        if isinstance(self.connections, FullMesh):
            stranger = next(self.connections.strangers(self.neighbours), None)
            if stranger is not None:
                raise _not_a_neighbour(stranger)
            if self.connections.holds(self.ud_qpn):
                raise _taken_twice(self.ud_qpn)
            return
        taken = {self.ud_qpn}
        for peer, connections in self.connections.items():
            if peer not in self.neighbours:
                raise _not_a_neighbour(peer)
            for connection in connections:
                if connection.local_qpn in taken:
                    raise _taken_twice(connection.local_qpn)
                taken.add(connection.local_qpn)

    @property
    def window(self) -> int:
        """Packets that a requester may have unacknowledged.

        What a selectively repeating responder cannot keep would be lost for nothing.
        """
        if self.recovery == "selective_repeat":
            return min(self.window_packets, self.reorder_window)
        return self.window_packets


def _not_a_neighbour(peer: str) -> ConfigurationError:
    return ConfigurationError(
        f"connections: {peer} is not among the neighbours; add it with its MAC address"
    )


def _taken_twice(qpn: int) -> ConfigurationError:
    return ConfigurationError(f"connections: the QP number {qpn} is taken twice")
