"""Define what is in memory, and what applications have heard, when a captured exchange is over."""

from tests.harness.replay.capture import ADDRESSES, INITIATOR, TARGET, version
from tests.harness.replay.cases import CASES, HEADER_DATA, OPERAND, TAG, WORD, Case, message
from uet.transport import Completion


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


def results(case: Case) -> list[bytes]:
    """Return what comes back to the initiator, by operation."""
    if case.operation == "read":
        return [message(0, case.size)]
    if case.operation == "fetch":
        return [(1000 + 5 * i).to_bytes(8, "little") for i in range(case.count)]
    if case.operation == "cswap":
        return [WORD] + [OPERAND] * (case.count - 1)
    return [b""] * case.count


def completions_of_target(name: str) -> list[Completion]:
    """Return the target's completions: receives, header data, groups that are complete."""
    case = CASES[name]
    peer = ADDRESSES[version(name)][INITIATOR]
    data = [HEADER_DATA if index in case.header_data else None for index in range(case.count)]
    if case.operation == "send":
        return [
            Completion(
                kind="receive",
                peer=peer,
                length=case.size,
                context=index,
                header_data=data[index],
                offset=0,
                tag=TAG + index if case.tagged else None,
                initiator=case.initiator_id,
            )
            for index in range(case.count)
        ]
    group = case.operation in ("write_sync", "atomic_sync")
    if not (group or any(data)):
        return []
    length, offset = case.size, case.offset
    if case.operation == "write_sync":
        length, offset = case.count * case.size, (case.count - 1) * case.size
    elif case.operation == "atomic_sync":
        length, offset = (case.count - 1) * case.size + len(WORD), 0
    return [
        Completion(
            kind="remote_write",
            peer=peer,
            length=length,
            header_data=data[-1],
            key=case.key,
            offset=offset,
            initiator=case.initiator_id if group else None,
        )
    ]


def completions_of_initiator(name: str) -> list[Completion]:
    """Return what the initiator's application hears, one for each operation."""
    case = CASES[name]
    kinds = {"write_sync": "write", "cswap": "atomic", "fetch": "atomic"}
    result = []
    for index in range(case.count):
        kind, length = kinds.get(case.operation, case.operation), case.size
        if case.operation == "atomic_sync":
            last = index == case.count - 1
            kind, length = ("atomic", len(WORD)) if last else ("write", case.size)
        if case.delivery == "uud":
            kind = "datagram"
        peer = ADDRESSES[version(name)][TARGET]
        result.append(
            Completion(kind=kind, peer=peer, length=length, context=index, error=case.error)
        )
    return result
