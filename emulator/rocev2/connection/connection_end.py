"""The end of a connection, as its requester and its responder see it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol, TypeVar

from emulator.rocev2.congestion.pacing import Pacer
from emulator.rocev2.hca_config import HcaConfig
from emulator.rocev2.hca_memory import RKeyTable
from emulator.rocev2.wire.rocev2_frames import Frames
from uet.transport import Completion, ReceiveRequest

Q = TypeVar("Q", contravariant=True)


class Host(Protocol[Q]):
    """The endpoint that a queue pair belongs to, as far as the queue pair needs it."""

    config: HcaConfig
    counts: Counter[str]
    memory: RKeyTable

    def complete(self, completion: Completion) -> None: ...
    def activate(self, qp: Q) -> None:
        """Note that ``qp`` has, or may have, something to send."""

    def answers(self, qp: Q) -> None:
        """Note that ``qp`` has an answer to send, which does not wait for room."""

    def waited(self, since: int, now: int) -> None:
        """Note that a retry timer expired ``now`` that had run ``since`` (ns)."""

    def take_receive(self) -> ReceiveRequest | None:
        """The next posted receive."""

    def return_receive(self, receive: ReceiveRequest) -> None:
        """Take back a receive that was not used."""

    def take_immediate(self) -> bool:
        """A receive for a write with immediate, if there is one; completes it."""

    def unregister(self, key: int) -> None: ...


class ConnectionEnd(Protocol):
    """A queue pair, as far as its requester and its responder need it."""

    host: Host[Any]
    peer: str
    frames: Frames
    pacer: Pacer | None
    receives: bool
    data_class: int
    ack_class: int

    def fail(self) -> None:
        """Enter the error state."""
        ...
