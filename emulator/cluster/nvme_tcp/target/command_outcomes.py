"""Outcomes of a command's handler: an answer, data to send, data to fetch, or a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from emulator.cluster.nvme_tcp.wire.layouts import DO_NOT_RETRY, NvmeStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """The completion of a command: its status, and dwords 0 and 1."""

    status: int = NvmeStatus.SUCCESS
    result: int = 0


@dataclass(frozen=True, slots=True)
class Transmission:
    """``length`` octets go to the host, read piece by piece (offset, length), then success."""

    length: int
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Collection:
    """``length`` octets of the host are taken piece by piece (offset, octets), then ``finish``."""

    length: int
    take: Callable[[int, bytes], None]
    finish: Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The command is held: its controller completes it later."""


Outcome: TypeAlias = Answer | Transmission | Collection | Waiting

SUCCEEDED = Answer()


def refused(status: NvmeStatus, result: int = 0) -> Answer:
    """Make an answer with Do Not Retry: the same command would fail again."""
    return Answer(status | DO_NOT_RETRY, result)


def transmission_of(octets: bytes) -> Transmission:
    """Transmit octets that are there already."""
    return Transmission(len(octets), lambda offset, length: octets[offset : offset + length])
