"""The API on registered memory, and what it refuses before anything is sent."""

from array import array
from collections.abc import Callable

import pytest

from tests.harness.uet.api_ends import Tap, error, key_of, one
from uet.api import (
    Address,
    AddressVector,
    ApiError,
    AtomicOpcode,
    Datatype,
    EndpointType,
    Flag,
    Order,
    ProviderAddress,
)
from uet.api.domain import MemoryKeys
from uet.api.loopback import Loopback, LoopbackEnd, pair
from uet.wire import headers
from uet.wire.codes import ReturnCode

ADD = (Datatype.UINT64, AtomicOpcode.SUM)


@pytest.mark.conformance("C-078")
@pytest.mark.parametrize(
    ("access", "addr", "key_change", "name"),
    [
        (Flag.REMOTE_READ, 0, 0, "PERM_VIOLATION"),
        (Flag.REMOTE_READ | Flag.REMOTE_WRITE, 60, 0, "BAD_ADDR"),
        (Flag.REMOTE_READ | Flag.REMOTE_WRITE, 0, 1, "BAD_MKEY"),
    ],
)
def test_a_write_that_the_region_forbids(
    access: Flag, addr: int, key_change: int, name: str
) -> None:
    a, b = pair()
    region = b.domain.mr_reg(bytearray(64), access, requested_key=8)
    a.endpoint.write(b"hello", a.peer, addr, region.key ^ key_change, "refused")
    entry = error(a)
    assert (entry.op_context, entry.error) == ("refused", name)
    assert entry.strerror().startswith(f"SES return code {name}")
    assert entry.prov_errno == ReturnCode[name]
    assert not any(region.memory)


def test_a_closed_region_cannot_be_reached_and_its_key_is_free() -> None:
    a, b = pair()
    region = b.domain.mr_reg(bytearray(8), requested_key=5)
    region.close()
    a.endpoint.write(b"hello", a.peer, 0, region.key)
    assert error(a).error == "BAD_MKEY"
    with pytest.raises(ApiError, match="closed already"):
        region.close()
    assert b.domain.mr_reg(bytearray(8), requested_key=5).key == region.key


def test_keys_that_are_given_out_never_equal_requested_ones() -> None:
    keys = MemoryKeys()
    taken = {keys.take(None, idempotent=False, optimized=False) for _ in range(100)}
    requested = {keys.take(number, idempotent=False, optimized=False) for number in range(200)}
    assert len(taken | requested) == 300
    assert all(key >> 48 & 0xFF == 1 for key in taken)
    assert all(key >> 48 == 0 for key in requested)


def test_optimized_keys_are_4096_and_no_more() -> None:
    keys = MemoryKeys()
    keys.take(7, idempotent=True, optimized=True)
    given = {keys.take(None, idempotent=False, optimized=True) for _ in range(4095)}
    assert len(given) == 4095
    assert all(key >> 62 == 1 and key & 0xFFF != 7 for key in given)
    with pytest.raises(ApiError, match="optimized memory keys are in use"):
        keys.take(None, idempotent=False, optimized=True)
    keys.give_back(1 << 62 | 9)
    assert keys.take(None, idempotent=False, optimized=True) & 0xFFF == 9
    with pytest.raises(ApiError, match="12 bits"):
        keys.take(4096, idempotent=False, optimized=True)
    with pytest.raises(ApiError, match="in use"):
        keys.take(7, idempotent=False, optimized=True)


def test_an_optimized_key_goes_in_a_small_header() -> None:
    tap = Tap()
    a, b = pair(wire=Loopback(tap=tap), optimized_headers=True)
    region = b.domain.mr_reg(bytearray(8), optimized=True)
    a.endpoint.write(b"hello", a.peer, 0, region.key)
    one(a)
    around = 14 + 20 + 8 + headers.RUD_REQ.size + headers.SES_SMALL.size
    assert len(tap.frames[0]) == around + 5
    assert bytes(region.memory[:5]) == b"hello"


def test_remote_data_reaches_the_endpoint_that_the_region_is_bound_to() -> None:
    a, b = pair()
    second = b.domain.endpoint(address=Address(resource_index=20))
    queue = b.domain.cq_open()
    second.bind(b.av)
    second.bind(queue, Flag.TRANSMIT | Flag.RECV)
    second.enable()
    region = b.domain.mr_reg(bytearray(8))
    region.bind(second)
    a.endpoint.writedata(b"hello", 7, a.peer, 3, region.key)
    (entry,) = queue.wait()
    assert (entry.data, entry.len) == (7, 5)
    assert bytes(entry.buf or b"") == b"hello"
    assert entry.flags == Flag.RMA | Flag.REMOTE_WRITE | Flag.REMOTE_CQ_DATA
    assert not len(b.cq)


def test_a_buffer_may_be_any_flat_memory() -> None:
    a, b = pair()
    numbers = array("I", range(10))
    region = b.domain.mr_reg(array("I", [0] * 10))
    a.endpoint.write(numbers, a.peer, 0, region.key)
    assert one(a).len == numbers.itemsize * 10
    assert bytes(region.memory) == numbers.tobytes()
    with pytest.raises(ApiError, match="contiguous memory"):
        a.endpoint.write("text", a.peer, 0, region.key)
    with pytest.raises(ApiError, match="contiguous memory"):
        a.endpoint.write(memoryview(bytes(8))[::2], a.peer, 0, region.key)


# -- what is refused when it is posted -----------------------------------------------------------


@pytest.mark.parametrize(
    ("profiles", "call", "words"),
    [
        (("ai_base",), lambda a, b: a.endpoint.read(bytearray(8), a.peer, 0, 1), "READ"),
        (("ai_base",), lambda a, b: a.endpoint.tsend(b"", a.peer, 1), "TAGGED_SEND"),
        (("ai_base",), lambda a, b: b.endpoint.trecv(bytearray(8), tag=1), "TAGGED_SEND"),
        (
            ("ai_full",),
            lambda a, b: b.endpoint.trecv(bytearray(8), tag=1, ignore=1),
            "WILDCARD",
        ),
        (
            ("ai_base",),
            lambda a, b: a.endpoint.fetch_atomic(bytes(8), bytearray(8), a.peer, 0, 1, *ADD),
            "FETCHING_ATOMIC",
        ),
        (
            ("ai_full",),
            lambda a, b: a.endpoint.write(
                b"x", a.peer, 0, key_of(b, idempotent=True), flags=Flag.RUDI
            ),
            "RUDI",
        ),
        (
            ("hpc",),
            lambda a, b: a.endpoint.write(b"x", a.peer, 0, key_of(b), flags=Flag.RUDI),
            "idempotent",
        ),
        (("hpc",), lambda a, b: a.endpoint.send(b"x", 77), "no address with handle 77"),
        (
            ("hpc",),
            lambda a, b: a.endpoint.send(b"x", a.peer, flags=Flag.RUDI),
            "a send knows no flag",
        ),
        (
            ("hpc",),
            lambda a, b: a.endpoint.atomic(b"", a.peer, 0, 1, ADD[0], AtomicOpcode.READ),
            "use fetch_atomic",
        ),
        (
            ("hpc",),
            lambda a, b: a.endpoint.atomic(
                bytes(8), a.peer, 0, 1, Datatype.DOUBLE, AtomicOpcode.BOR
            ),
            "not supported",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    profiles: tuple[str, ...], call: Callable[[LoopbackEnd, LoopbackEnd], object], words: str
) -> None:
    a, b = pair(profiles=profiles)
    with pytest.raises(ValueError, match=words) as refusal:
        call(a, b)
    assert "\n" not in str(refusal.value)
    assert a.cq.wait() == []


def test_a_peer_of_unknown_profiles_refuses_by_itself() -> None:
    wire = Loopback()
    a, b = pair(wire=wire, profiles=("hpc",))
    assert b.endpoint.getname().profiles == ("hpc",)
    unknown = a.av.insert(ProviderAddress(address="10.0.0.2"))
    limited = a.av.insert(ProviderAddress(address="10.0.0.2", profiles=("ai_base",)))
    region = b.domain.mr_reg(bytearray(b"original"))
    a.endpoint.read(bytearray(8), unknown, 0, region.key)
    one(a)
    with pytest.raises(ApiError, match="ai_base of the peer"):
        a.endpoint.read(bytearray(8), limited, 0, region.key)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.endpoint.write(b"x", a.peer, 0, 1),
        lambda a: a.endpoint.read(bytearray(1), a.peer, 0, 1),
        lambda a: a.endpoint.tsend(b"x", a.peer, 1),
        lambda a: a.endpoint.trecv(bytearray(1), tag=1),
        lambda a: a.endpoint.atomic(bytes(8), a.peer, 0, 1, *ADD),
    ],
)
def test_a_datagram_endpoint_has_datagrams_only(call: Callable[[LoopbackEnd], object]) -> None:
    a, _ = pair(EndpointType.DGRAM)
    with pytest.raises(ApiError, match="datagrams only"):
        call(a)


def test_an_endpoint_needs_all_its_bindings() -> None:
    a, b = pair()
    fresh = a.domain.endpoint(address=Address(resource_index=3))
    with pytest.raises(ApiError, match="not enabled"):
        fresh.send(b"", a.peer)
    with pytest.raises(ApiError, match="no address vector"):
        fresh.enable()
    fresh.bind(a.av)
    fresh.bind(a.cq, Flag.TRANSMIT)
    with pytest.raises(ApiError, match="lacks a completion queue"):
        fresh.enable()
    with pytest.raises(ApiError, match="TRANSMIT, RECV"):
        fresh.bind(a.cq)
    with pytest.raises(ApiError, match="a counter counts"):
        fresh.bind(a.domain.cntr_open(), Flag.MSG)
    with pytest.raises(ApiError, match="another domain"):
        fresh.bind(b.cq, Flag.RECV)
    with pytest.raises(ApiError, match="not ordered"):
        a.domain.endpoint(
            EndpointType.DGRAM, address=Address(resource_index=4), msg_order=Order.SAS
        )


def test_a_peer_without_a_mac_cannot_be_inserted() -> None:
    av = AddressVector({"fd00::0:1": "02:00:00:00:00:01"})
    handle = av.insert(ProviderAddress(address="fd00:0::1"))
    assert av.lookup(handle).address == "fd00::0:1"
    assert av.find("fd00::0:1", 16) == handle
    with pytest.raises(ApiError, match="no MAC address is known for fd00::2"):
        av.insert(ProviderAddress(address="fd00::2"))
    with pytest.raises(ApiError, match="not an IP address"):
        ProviderAddress(address="host")
    again = av.insert(ProviderAddress(address="fd00::1"))
    assert again != handle
    av.remove(handle)
    assert av.find("fd00::0:1", 16) == again
