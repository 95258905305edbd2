"""A server and its clients (UES 3.7): each client has a key of its own, the server derives them."""

import random
from ipaddress import ip_address

import pytest

from tests.harness.uet.network import Impairment, Network, destination, endpoint
from uet.transport import ReadRequest, ReceiveRequest, SendRequest, WriteRequest
from uet.tss.keys import provision_client
from uet.tss.secure_domain import SecureDomain
from uet.wire.codes import PacketType

SDI, KEY = 0x51, 9
UET_AT = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
SECRET = bytes(range(32))


def identity(address: str, ssi: int | None) -> bytes:
    return ip_address(address).packed if ssi is None else ssi.to_bytes(4, "big")


def domain_of_client(server: SecureDomain, address: str, ssi: int | None) -> SecureDomain:
    key = provision_client(server, 0, identity(address, ssi))
    return SecureDomain(sdi=SDI, mode="client", keys={0: key}, ssi=ssi)


def conversation(addresses: tuple[str, str, str], *, with_ssi: bool) -> Network:
    """A server at the first address and clients at the others."""
    server, *clients = addresses
    ssis = {client: 7 + number for number, client in enumerate(clients)} if with_ssi else {}
    domain = SecureDomain(sdi=SDI, mode="server", keys={0: SECRET}, clients=ssis)
    domains = {server: domain} | {
        client: domain_of_client(domain, client, ssis.get(client)) for client in clients
    }
    feps = {
        address: endpoint(
            address, seed=number, payload_mtu=1024, domains=(domains[address],), sdi=SDI
        )
        for number, address in enumerate(addresses)
    }
    return Network(feps, random.Random(3), Impairment(loss=0.03, jitter_ns=2_000), keep=True)


@pytest.mark.conformance("C-136")
@pytest.mark.parametrize(
    ("addresses", "with_ssi"),
    [
        (("10.0.1.1", "10.0.1.2", "10.0.1.3"), False),
        (("10.0.1.1", "10.0.1.2", "10.0.1.3"), True),
        (("fd00::1", "fd00::2", "fd00::3"), True),
    ],
    ids=["ipv4", "ipv4-ssi", "ipv6-ssi"],
)
def test_both_ways(addresses: tuple[str, str, str], with_ssi: bool) -> None:
    """Clients write to the server and read from it; the server sends to each of them."""
    net = conversation(addresses, with_ssi=with_ssi)
    server, *clients = addresses
    memory = bytearray(20_000)
    net.endpoints[server].register(memoryview(memory), key=KEY)
    data = {client: random.Random(client).randbytes(9_000) for client in clients}
    back = {client: bytearray(9_000) for client in clients}
    got = {client: bytearray(2_500) for client in clients}
    for number, client in enumerate(clients):
        fep = net.endpoints[client]
        payload = memoryview(data[client])
        fep.post(WriteRequest(peer=server, key=KEY, offset=10_000 * number, payload=payload))
        fep.post_receive(ReceiveRequest(memory=memoryview(got[client])))
    assert net.run(lambda: all(net.completions[client] for client in clients))
    for number, client in enumerate(clients):
        mine = memoryview(back[client])
        net.endpoints[client].post(
            ReadRequest(peer=server, key=KEY, offset=10_000 * number, memory=mine)
        )
        payload = memoryview(data[client])[:2_500]
        net.endpoints[server].post(SendRequest(peer=client, payload=payload))
    assert net.run(
        lambda: (
            all(len(net.completions[client]) == 3 for client in clients)
            and len(net.completions[server]) == 2
        )
    )
    assert {c.error for done in net.completions.values() for c in done} == {None}
    for client in clients:
        assert back[client] == data[client]
        assert got[client] == data[client][:2_500]
    at = UET_AT[ip_address(server).version]
    assert {frame[at] >> 3 for frame in net.sent} == {PacketType.TSS}
    assert destination(net.sent[0]) in addresses
    for fep in net.endpoints.values():
        assert not any(count for name, count in fep.counters().items() if name.startswith("tss_"))


def test_a_client_is_not_served_under_the_key_of_another() -> None:
    """Provisioned for somebody else: nothing opens, at neither end, and the write fails."""
    addresses = ("10.0.1.1", "10.0.1.2", "10.0.1.3")
    net = conversation(addresses, with_ssi=False)
    server, client, other = addresses
    domain = SecureDomain(sdi=SDI, mode="server", keys={0: SECRET})
    stolen = domain_of_client(domain, other, None)
    net.impairment = Impairment()
    net.endpoints[client] = endpoint(client, seed=9, domains=(stolen,), sdi=SDI)
    memory = bytearray(64)
    net.endpoints[server].register(memoryview(memory), key=KEY)
    net.endpoints[client].post(
        WriteRequest(peer=server, key=KEY, offset=0, payload=memoryview(b"forged"))
    )
    assert net.run(lambda: bool(net.completions[client]))
    assert [c.error for c in net.completions[client]] == ["RTO_RETRIES_EXHAUSTED"]
    assert memory == bytes(64)
    assert net.endpoints[server].counters()["tss_bad_tag"] > 0
