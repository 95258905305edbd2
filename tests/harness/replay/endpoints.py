"""Our endpoints in the places of captured ones, and what is posted on them."""

from typing import Any

from tests.harness.replay.capture import ADDRESSES, INITIATOR, MACS, OTHER, TARGET, domain, version
from tests.harness.replay.cases import CASES, HEADER_DATA, MS, OPERAND, TAG, WORD, Case, message
from tests.harness.replay.outcomes import results
from uet.compatibility import REFERENCE_PROVIDER
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.transport import (
    AtomicRequest,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import AtomicOpcode, Datatype

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
    parameters: dict[str, Any] = {
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
        # The captures' keys were new, and the provider expects any PSN at first.
        parameters |= {"domains": (secured,), "sdi": secured.sdi, "expected_psn": 0}
    parameters |= case.both | (case.initiator if side == INITIATOR else case.target)
    config = FepConfig(
        address=ADDRESSES[ip][side],
        mac=MACS[side],
        neighbours={ADDRESSES[ip][there]: MACS[there]},
        **parameters,
    )
    return FabricEndpoint(config, seed=7, first_counter=0)


def receives(case: Case) -> list[ReceiveRequest]:
    """Return what the target posts, one for each send."""
    if case.operation != "send":
        return []
    return [
        ReceiveRequest(
            memory=memoryview(bytearray(case.size)),
            tag=TAG + index if case.tagged else None,
            context=index,
        )
        for index in range(case.count)
    ]


def requests(name: str) -> tuple[list[Request], list[bytearray]]:
    """Return what the initiator posts, and the memory that what it fetches goes to."""
    case = CASES[name]
    peer = ADDRESSES[version(name)][TARGET]
    returned = [bytearray(len(result)) for result in results(case)]
    posted: list[Request] = []
    for index in range(case.count):
        data = memoryview(message(index, case.size))
        at = case.offset + index * case.size
        header_data = HEADER_DATA if index in case.header_data else None
        group = None  # the first of a group does not tell the number
        if case.operation in (
            "write_sync",
            "atomic_sync",
        ):
            group = (0, case.count if index else 0)
        shared: dict[str, Any] = {"peer": peer, "context": index, "destination": case.address}
        if case.operation in ("write", "write_sync") or (
            case.operation == "atomic_sync" and index < case.count - 1
        ):
            request: Request = WriteRequest(
                key=case.key,
                offset=at,
                payload=data,
                header_data=header_data,
                synchronise=group,
                **shared,
            )
        elif case.operation == "send":
            tag = TAG + index if case.tagged else None
            request = SendRequest(payload=data, tag=tag, header_data=header_data, **shared)
        elif case.operation == "read":
            request = ReadRequest(
                key=case.key, offset=0, memory=memoryview(returned[index]), **shared
            )
        else:
            swaps = case.operation == "cswap"
            fetches = case.operation in ("cswap", "fetch")
            request = AtomicRequest(
                key=case.key,
                offset=0,
                operation=AtomicOpcode.CSWAP if swaps else AtomicOpcode.SUM,
                datatype=Datatype.UINT64,
                operand=OPERAND,
                compare=WORD if swaps else None,
                result=memoryview(returned[index]) if fetches else None,
                synchronise=group,
                **shared,
            )
        posted.append(request)
    return posted, returned
