"""Fabric interfaces in one process: NICs with a FEP in each plane, and planes that can die."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from tests.harness.uet.network import Impairment, Network, destination
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.planes.fabric_interface import FabricInterface
from uet.planes.numbered_writes import REGION_BITS
from uet.planes.plane import InterfaceConfig, Plane
from uet.transport import Completion, Frame

US = 1_000
MTU = 1_024
RTO = 100 * US
KEY = 7
REGION = 1 << 20


def route(nic: int, planes: int = 2) -> tuple[str, ...]:
    """The fabric addresses of a NIC, one a plane."""
    return tuple(f"10.{plane}.1.{nic}" for plane in range(1, planes + 1))


def plane_of(frame: bytes) -> int:
    """The plane, from 0, in which the destination of a frame is."""
    return ip_address(destination(frame)).packed[1] - 1


def interface(nic: int, *, nics: int = 2, planes: int = 2, **fields: Any) -> FabricInterface:
    """NIC ``nic`` (from 1) of so many; ``fields`` are those of each FEP."""
    others = [other for other in range(1, nics + 1) if other != nic]
    feps = []
    for plane in range(planes):
        config = FepConfig(
            address=route(nic, planes)[plane],
            mac=f"02:00:00:00:00:{nic:02x}",
            neighbours={route(n, planes)[plane]: f"02:00:00:00:00:{n:02x}" for n in others},
            payload_mtu=MTU,
            rto_init_time=RTO,
            max_rto_retx_cnt=1,
            region_bits=REGION_BITS,
            **fields,
        )
        feps.append((f"{plane + 1}{nic}1", FabricEndpoint(config, seed=10 * nic + plane)))
    shared = InterfaceConfig(
        peers=[route(other, planes) for other in others],
        quarantine=20 * US,
        silence=60 * US,
        time_limit=RTO,
    )
    return FabricInterface(feps, shared, seed=nic)


@dataclass
class _PlaneEnd:
    """A plane as an endpoint of the network; the first one brings the interface's completions."""

    interface: FabricInterface
    plane: Plane

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        self.plane.receive(frames, now)

    def transmit(self, now: int, limit: int) -> list[Frame]:
        return self.plane.transmit(now, limit)

    def next_deadline(self) -> int | None:
        return self.plane.next_deadline()

    def completions(self) -> list[Completion]:
        return self.interface.completions() if self.plane is self.interface.planes[0] else []


class Planes:
    """``nics`` NICs joined by as many planes as each has, with 1 MiB of memory each."""

    def __init__(
        self,
        *,
        nics: int = 2,
        planes: int = 2,
        seed: int = 1,
        impairment: Impairment | None = None,
        **fields: Any,
    ) -> None:
        self.planes = planes
        self.interfaces = [
            interface(nic, nics=nics, planes=planes, **fields) for nic in range(1, nics + 1)
        ]
        self.memories = [bytearray(REGION) for _ in self.interfaces]
        for fi, memory in zip(self.interfaces, self.memories, strict=True):
            fi.register(memoryview(memory), key=KEY)
        ends = {
            address: _PlaneEnd(fi, plane)
            for nic, fi in enumerate(self.interfaces, start=1)
            for address, plane in zip(route(nic, planes), fi.planes, strict=True)
        }
        #: planes that swallow everything, and what else is swallowed
        self.dead: set[int] = set()
        self.swallows: Callable[[bytes], bool] = lambda frame: False
        #: frames that were sent into each plane
        self.carried = [0] * planes
        self.network = Network(
            cast(dict[str, FabricEndpoint], ends),
            random.Random(seed),
            impairment=impairment or Impairment(),
            ns_per_octet=0.1,
            tap=self._tap,
        )
        self.random = random.Random(seed + 1)

    def _tap(self, frame: bytes, now: int) -> Sequence[bytes]:
        plane = plane_of(frame)
        self.carried[plane] += 1
        return () if plane in self.dead or self.swallows(frame) else (frame,)

    def completions(self, nic: int) -> list[Completion]:
        """All of a NIC (from 1) so far."""
        return self.network.completions[route(nic, self.planes)[0]]

    def run(self, done: Callable[[], bool]) -> bool:
        return self.network.run(done, horizon_ns=self.network.now + 10_000_000 * US)

    def octets(self, length: int) -> bytes:
        return self.random.randbytes(length)
