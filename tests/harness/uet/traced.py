"""Two endpoints that write down what happens to them, and a network between them."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.uet.event_schema import violations
from tests.harness.uet.network import MACS, MACS6, Impairment, Network
from uet.config import FepConfig
from uet.eventlog.logging_endpoint import create
from uet.eventlog.sequence import Event
from uet.fep import FabricEndpoint
from uet.transport import ReadRequest, ReceiveRequest, Request, SendRequest, WriteRequest

KEY = 7


def config(address: str, **parameters: Any) -> FepConfig:
    macs = MACS if address in MACS else MACS6
    others = {peer: mac for peer, mac in macs.items() if peer != address}
    parameters.setdefault("payload_mtu", 1024)
    return FepConfig(address=address, mac=macs[address], neighbours=others, **parameters)


@dataclass
class Pair:
    """Two traced endpoints and the network between them."""

    network: Network
    logs: dict[str, list[Event]]
    memory: bytearray = field(default_factory=lambda: bytearray(65_536))

    def __post_init__(self) -> None:
        self.there.register(memoryview(self.memory), key=KEY)

    @property
    def here(self) -> FabricEndpoint:
        return next(iter(self.network.endpoints.values()))

    @property
    def there(self) -> FabricEndpoint:
        return list(self.network.endpoints.values())[1]

    @property
    def log(self) -> list[Event]:
        return next(iter(self.logs.values()))

    @property
    def other_log(self) -> list[Event]:
        return list(self.logs.values())[1]

    def post(self, *requests: Request) -> None:
        for request in requests:
            self.here.post(request)

    def finish(self) -> None:
        """Until everything is answered, and every PDC closed."""
        for fep in self.network.endpoints.values():
            fep.close()
        feps = self.network.endpoints.values()
        assert self.network.run(lambda: all(fep.closed for fep in feps))


def pair(
    impairment: Impairment | None = None,
    *,
    addresses: tuple[str, str] = ("10.0.1.1", "10.0.1.2"),
    tap: Callable[..., Any] | None = None,
    seed: int = 5,
    **parameters: Any,
) -> Pair:
    logs: dict[str, list[Event]] = {address: [] for address in addresses}
    endpoints: dict[str, FabricEndpoint] = {
        address: create(
            config(address, **parameters), seed=k, first_counter=0, log=logs[address].append
        )
        for k, address in enumerate(addresses)
    }
    network = Network(
        endpoints, random.Random(seed), impairment or Impairment(), tap=tap, keep=True
    )
    return Pair(network, logs)


def write(peer: str, octets: int, **more: Any) -> WriteRequest:
    payload = memoryview(random.Random(octets).randbytes(octets))
    return WriteRequest(peer=peer, key=KEY, offset=0, payload=payload, **more)


def exchange(impairment: Impairment, **parameters: Any) -> Pair:
    """Writes, a read and sends over an impaired network, and an orderly close."""
    both = pair(impairment, **parameters)
    peer = both.there.config.address
    for k in range(3):
        both.there.post_receive(ReceiveRequest(memory=memoryview(bytearray(9_000)), context=k))
    both.post(
        write(peer, 40_000, header_data=5, context="first"),
        ReadRequest(peer=peer, key=KEY, offset=0, memory=memoryview(bytearray(5_000))),
        *(
            SendRequest(peer=peer, payload=memoryview(bytes(9_000 - k)), context=k)
            for k in range(3)
        ),
    )
    both.finish()
    done = both.network.completions[both.here.config.address]
    assert len(done) == 5
    assert {each.error for each in done} == {None}
    return both


def named(log: list[Event], *names: str) -> list[Event]:
    return [e["data"] for e in log if e["name"].removeprefix("uet:") in names]


def assert_valid(log: list[Event]) -> None:
    assert log
    assert [error for event in log for error in violations(event)] == []
    times = [event["time"] for event in log]
    assert times == sorted(times)
    assert json.loads(json.dumps(log)) == log
    assert log[0]["name"] == "uet:parameters_set"
