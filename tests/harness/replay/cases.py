"""Define what each capture shows: how its endpoints were set up, and what was posted on them."""

from dataclasses import dataclass, field
from typing import Any

from uet.ses.address import Address

MS = 1_000_000
KEY = 0x4000_0000_0000_0123
IDEMPOTENT_KEY = KEY | 1 << 63
BAD_KEY = 0x4000_0000_0000_0999
HEADER_DATA = 0xA1A2_A3A4_A5A6_A7A8
TAG = 0x1122_3344_5566_7788
REGION = 65_536
HOME = Address()
WORD = (1000).to_bytes(8, "little")
OPERAND = (5).to_bytes(8, "little")


def message(index: int, size: int) -> bytes:
    """The payload of message ``index``."""
    return bytes((7 * index + 13 * j + j // 256) & 0xFF for j in range(size))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A capture.  ``operation`` is posted ``count`` times, with ``size`` octets each."""

    operation: str
    size: int
    count: int = 1
    delivery: str = "rud"
    key: int = KEY
    tagged: bool = False
    #: which messages carry header data
    header_data: tuple[int, ...] = ()
    #: where the first message goes in the region, which holds ``region`` octets
    offset: int = 0
    region: int = REGION
    address: Address = HOME
    initiator_id: int = 16
    #: what the operations end with at the initiator
    error: str | None = None
    #: parameters of both endpoints, and of one of them
    both: dict[str, object] = field(default_factory=dict)
    initiator: dict[str, object] = field(default_factory=dict)
    target: dict[str, object] = field(default_factory=dict)
    #: when the receive is posted (ns since the first frame)
    receive_at: int = 0
    #: PSNs, from the PDC's first, that the initiator dropped before the tap
    lost: tuple[int, ...] = ()
    #: answers of the target, by number, that it dropped before the tap
    lost_answers: tuple[int, ...] = ()
    #: the capture ends with a CLOSE
    closes: bool = False

    @property
    def region_key(self) -> int:
        """The key of the target's region."""
        return KEY if self.key == BAD_KEY else self.key


def _secured(**more: Any) -> Case:
    return Case(operation="write", size=1500, **more)


CASES: dict[str, Case] = {
    "err_bad_job": Case(
        operation="write", size=300, address=Address(job_id=77), error="BAD_JOB_ID"
    ),
    "err_bad_mkey": Case(operation="write", size=300, key=BAD_KEY, error="BAD_MKEY"),
    "err_bad_ri": Case(
        operation="write", size=300, address=Address(resource_index=99), error="UNDELIVERABLE"
    ),
    "err_msg_too_long": Case(operation="write", size=5000, region=4096, error="UNSUPPORTED_SIZE"),
    "ipv6_rud_write_3000": Case(operation="write", size=3000),
    "rod_atomicsync_900x3": Case(
        operation="atomic_sync", size=900, count=3, delivery="rod", offset=64
    ),
    "rod_send_5000_perpkt": Case(
        operation="send",
        size=5000,
        delivery="rod",
        initiator={"ack_per_packet": True},
        target={"ack_type": "ack_cc"},
    ),
    "rod_send_nomatch": Case(operation="send", size=2500, delivery="rod", receive_at=150 * MS),
    "rod_tsend_2500x2": Case(operation="send", size=2500, count=2, delivery="rod", tagged=True),
    "rod_write_reorder": Case(operation="write", size=5000, delivery="rod", header_data=(0,)),
    "rod_writeimm_1500": Case(operation="write", size=1500, delivery="rod", header_data=(0,)),
    "rod_writesync_700x3": Case(
        operation="write_sync", size=700, count=3, delivery="rod", header_data=(2,)
    ),
    "rud_atomic_sum_x3": Case(operation="atomic", size=8, count=3),
    "rud_cswap_x2": Case(operation="cswap", size=8, count=2),
    "rud_dsend_10000": Case(operation="send", size=10000, both={"deferrable_threshold": 8192}),
    "rud_dsend_10000_rtr": Case(
        operation="send", size=10000, both={"deferrable_threshold": 8192}, receive_at=200 * MS
    ),
    "rud_fetch_sum_x2": Case(operation="fetch", size=8, count=2),
    "rud_read_12": Case(operation="read", size=12),
    # The provider asks for an ACK of each packet of return data.
    "rud_read_2500": Case(operation="read", size=2500, target={"ack_per_packet": True}),
    "rud_send_100": Case(operation="send", size=100),
    "rud_send_3000x3": Case(operation="send", size=3000, count=3),
    "rud_sendimm_200": Case(operation="send", size=200, header_data=(0,)),
    "rud_write_20000_ackcc": Case(operation="write", size=20000, target={"ack_type": "ack_cc"}),
    "rud_write_5000": Case(operation="write", size=5000),
    "rud_write_6000_ackccx": Case(operation="write", size=6000, target={"ack_type": "ack_ccx"}),
    "rud_write_ackloss": Case(operation="write", size=1500, lost_answers=(0, 1)),
    "rud_write_addr": Case(
        operation="write",
        size=1200,
        header_data=(0,),
        address=Address(job_id=0xABCDE, pid_on_fep=37, resource_index=683),
        initiator_id=0x1001,
        target={"job_id": 0xABCDE, "pid_on_fep": 37, "resource_index": 683},
    ),
    "rud_write_close": Case(operation="write", size=1500, closes=True),
    # The provider answers copies that the network made, too.
    "rud_write_dup": Case(
        operation="write",
        size=5000,
        header_data=(0,),
        target={"drop_network_duplicates": False},
    ),
    "rud_write_loss": Case(operation="write", size=6000, lost=(2,)),
    "rud_write_loss_ackcc": Case(
        operation="write", size=20000, count=2, lost=(31,), target={"ack_type": "ack_cc"}
    ),
    "rudi_read_2500": Case(operation="read", size=2500, delivery="rudi", key=IDEMPOTENT_KEY),
    "rudi_write_2500": Case(operation="write", size=2500, delivery="rudi", key=IDEMPOTENT_KEY),
    "tss_cluster_1rtt": _secured(target={"secure_start": "1rtt"}),
    "tss_cluster_1rtt_clear": _secured(target={"secure_start": "1rtt"}),
    "tss_cluster_close": _secured(closes=True),
    "tss_cluster_close_clear": _secured(closes=True),
    "tss_cluster_ipv6": _secured(),
    "tss_cluster_ipv6_clear": _secured(),
    "tss_cluster_write": Case(operation="write", size=2500),
    "tss_cluster_write_clear": Case(operation="write", size=2500),
    "tss_direct_write": Case(operation="write", size=2500),
    "tss_direct_write_clear": Case(operation="write", size=2500),
    "udp4793_rod_write_crc": Case(operation="write", size=2500, delivery="rod", header_data=(0,)),
    "udp4793_rud_send_3000": Case(operation="send", size=3000),
    "uud_send_700x3": Case(operation="send", size=700, count=3, delivery="uud"),
}


#: What the replays prove, by capture: of the conformance statements those of each role.
PROVEN_BY_TARGET: dict[str, tuple[str, ...]] = {
    "err_bad_job": ("C-077", "C-079"),
    "err_bad_mkey": ("C-078", "C-079"),
    "err_bad_ri": ("C-077", "C-079"),
    "rod_send_nomatch": ("C-075", "C-076", "C-026"),
    "rod_write_reorder": ("C-023",),
    "rud_dsend_10000_rtr": ("C-080",),
    "rud_read_12": ("C-074",),
    "rud_read_2500": ("C-073",),
    "rud_send_3000x3": ("C-005", "C-007"),
    "rud_write_20000_ackcc": ("C-005",),
    "rud_write_ackloss": ("C-029",),
    "rud_write_close": ("C-067",),
    "rud_write_loss": ("C-024",),
    "rud_write_loss_ackcc": ("C-024", "C-032"),
    "tss_cluster_1rtt": ("C-062", "C-130"),
    "tss_cluster_close": ("C-063", "C-130"),
    "tss_cluster_write": ("C-130",),
    "tss_direct_write": ("C-130",),
    "uud_send_700x3": ("C-059",),
}
PROVEN_BY_INITIATOR: dict[str, tuple[str, ...]] = {
    "rod_send_nomatch": ("C-075", "C-076"),
    "rud_dsend_10000_rtr": ("C-080",),
    "rud_read_2500": ("C-072",),
    "rud_send_3000x3": ("C-003", "C-049"),
    "rud_write_5000": ("C-070", "C-034"),
    "rud_write_close": ("C-051",),
    "rud_write_loss": ("C-045",),
    "rud_write_loss_ackcc": ("C-006", "C-037"),
    "tss_cluster_1rtt": ("C-062",),
    "tss_cluster_close": ("C-063",),
}
