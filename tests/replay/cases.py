"""What each capture shows: how its endpoints were set up, and what was posted on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.replay.capture import ADDRESSES, INITIATOR, MACS, OTHER, TARGET, domain
from uet.compatibility import REFERENCE_PROVIDER
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.ses.address import Address
from uet.transport import Atomic, Read, Receive, Request, Send, Write
from uet.wire.codes import AtomicOpcode, Datatype

MS = 1_000_000
KEY = 0x4000_0000_0000_0123
IDEMPOTENT_KEY = KEY | 1 << 63
BAD_KEY = 0x4000_0000_0000_0999
HEADER_DATA = 0xA1A2_A3A4_A5A6_A7A8
TAG = 0x1122_3344_5566_7788
REGION = 65_536
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
    address: Address = Address()
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
    def address_of_target(self) -> Address:
        return self.address


def _secured(**more: object) -> Case:
    return Case(operation="write", size=1500, **more)  # type: ignore[arg-type]


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


def version(name: str) -> int:
    """The version of IP in a capture."""
    return 6 if "ipv6" in name else 4


#: Derived captures whose target did what only a secured PDC does: it hears them secured again.
SEALED_AGAIN = frozenset({"tss_cluster_1rtt_clear", "tss_cluster_close_clear"})


def is_secured(name: str, side: str) -> bool:
    """Whether our endpoint in the place of ``side`` has the capture's secure domain."""
    if name.endswith("_clear"):
        return side == TARGET and name in SEALED_AGAIN
    return domain(name) is not None


def endpoint(name: str, side: str) -> FabricEndpoint:
    """Our endpoint in the place of one side of a capture."""
    case, ip = CASES[name], version(name)
    there = OTHER[side]
    secured = domain(name) if is_secured(name, side) else None
    parameters: dict[str, object] = {
        "compatibility": REFERENCE_PROVIDER,
        "native": not name.startswith("udp4793"),
        "crc": secured is None and name != "udp4793_rud_send_3000",
        "ecn_capable": False,
        "payload_mtu": 1024,
        "mpr": 1,
        "ack_type": "ack",
        "rod_reorder": True,
        "infer_loss": False,  # by timers only
        "rto_init_time": 100 * MS,
        "delivery": case.delivery,
        "initiator_id": case.initiator_id,
    }
    if secured is not None:
        parameters |= {"domains": (secured,), "sdi": secured.sdi}
    parameters |= case.both | (case.initiator if side == INITIATOR else case.target)
    config = FepConfig(
        address=ADDRESSES[ip][side],
        mac=MACS[side],
        neighbours={ADDRESSES[ip][there]: MACS[there]},
        **parameters,  # type: ignore[arg-type]
    )
    return FabricEndpoint(config, seed=7)


def memory_before(case: Case) -> bytearray:
    """The target's region before anything arrives."""
    region = bytearray(case.region)
    if case.operation in ("atomic", "fetch", "cswap", "atomic_sync"):
        region[:8] = WORD
    if case.operation == "read":
        region[: case.size] = message(0, case.size)
    return region


def memory_after(case: Case) -> bytes:
    """The target's region when all is over."""
    region = memory_before(case)
    if case.error is not None:
        return bytes(region)
    writes = {"write": case.count, "write_sync": case.count, "atomic_sync": case.count - 1}
    for index in range(writes.get(case.operation, 0)):
        at = case.offset + index * case.size
        region[at : at + case.size] = message(index, case.size)
    value = {"atomic": 1000 + 5 * case.count, "fetch": 1000 + 5 * case.count, "cswap": 5,
             "atomic_sync": 1005}.get(case.operation)  # fmt: skip
    if value is not None:
        region[:8] = value.to_bytes(8, "little")
    return bytes(region)


def receives(case: Case) -> list[Receive]:
    """What the target posts, one for each send."""
    if case.operation != "send":
        return []
    return [
        Receive(
            memory=memoryview(bytearray(case.size)),
            tag=TAG + index if case.tagged else None,
            context=index,
        )
        for index in range(case.count)
    ]


def results(case: Case) -> list[bytes]:
    """What comes back to the initiator, by operation."""
    if case.operation == "read":
        return [message(0, case.size)]
    if case.operation == "fetch":
        return [(1000 + 5 * i).to_bytes(8, "little") for i in range(case.count)]
    if case.operation == "cswap":
        return [WORD] + [OPERAND] * (case.count - 1)
    return [b""] * case.count


def requests(name: str) -> tuple[list[Request], list[bytearray]]:
    """What the initiator posts, and the memory that what it fetches goes to."""
    case = CASES[name]
    peer = ADDRESSES[version(name)][TARGET]
    returned = [bytearray(len(result)) for result in results(case)]
    posted: list[Request] = []
    for index in range(case.count):
        data = memoryview(message(index, case.size))
        at = case.offset + index * case.size
        header_data = HEADER_DATA if index in case.header_data else None
        shared = {"peer": peer, "context": index, "destination": case.address}
        if case.operation in ("write", "write_sync") or (
            case.operation == "atomic_sync" and index < case.count - 1
        ):
            request: Request = Write(
                key=case.key, offset=at, payload=data, header_data=header_data, **shared
            )  # type: ignore[arg-type]
        elif case.operation == "send":
            tag = TAG + index if case.tagged else None
            request = Send(payload=data, tag=tag, header_data=header_data, **shared)  # type: ignore[arg-type]
        elif case.operation == "read":
            request = Read(key=case.key, offset=0, memory=memoryview(returned[index]), **shared)  # type: ignore[arg-type]
        else:
            swaps = case.operation == "cswap"
            fetches = case.operation in ("cswap", "fetch")
            request = Atomic(
                key=case.key,
                offset=0,
                operation=AtomicOpcode.CSWAP if swaps else AtomicOpcode.SUM,
                datatype=Datatype.UINT64,
                operand=OPERAND,
                compare=WORD if swaps else None,
                result=memoryview(returned[index]) if fetches else None,
                **shared,  # type: ignore[arg-type]
            )
        posted.append(request)
    return posted, returned
