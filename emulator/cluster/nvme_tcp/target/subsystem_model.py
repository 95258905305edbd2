"""NVM subsystems of a target and their namespaces (NVM Express Base 2.0, 3.2 and 4.5)."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.wire.layouts import DISCOVERY_NQN, MOST_NQN
from emulator.errors import UserError

#: Block sizes that are offered; Linux uses no larger ones than a page.
BLOCK_SIZES = (512, 1024, 2048, 4096)
#: Identifiers are derived from names, so that a target that starts again is the same.
_FAMILY = uuid.uuid5(uuid.NAMESPACE_URL, "uetemu:nvme")


def checked_nqn(nqn: str) -> str:
    """Return an NQN as it is; raises :class:`UserError` where it is none (Base 2.0, 4.5)."""
    octets = nqn.encode()
    if not nqn.startswith("nqn.") or len(octets) > MOST_NQN or not nqn.isprintable() or " " in nqn:
        raise UserError(
            f"{nqn!r} is no NQN; write for example nqn.2026-01.example:disk,"
            f" at most {MOST_NQN} octets"
        )
    return nqn


@dataclass(frozen=True)
class NvmeNamespace:
    """Blocks of a store, under a namespace identifier (NSID)."""

    nsid: int
    store: BlockStore
    block_size: int
    uuid: uuid.UUID

    @property
    def blocks(self) -> int:
        """Return the size in blocks; octets behind the last whole block are not used."""
        return self.store.size // self.block_size

    @property
    def nguid(self) -> bytes:
        """Return the namespace globally unique identifier."""
        return self.uuid.bytes


@dataclass
class NvmeSubsystem:
    """Namespaces under one NQN; without ``hosts`` any host may connect."""

    nqn: str
    serial: str
    hosts: frozenset[str] = frozenset()
    namespaces: dict[int, NvmeNamespace] = field(default_factory=dict)

    @classmethod
    def named(cls, nqn: str, hosts: frozenset[str] = frozenset()) -> NvmeSubsystem:
        """Make a subsystem without namespaces; raises :class:`UserError` for a bad NQN."""
        if checked_nqn(nqn) == DISCOVERY_NQN:
            raise UserError("the discovery subsystem is always there; give another NQN")
        for host in hosts:
            checked_nqn(host)
        return cls(nqn, hashlib.sha256(nqn.encode()).hexdigest()[:20], hosts)

    def add(self, store: BlockStore, block_size: int = 512) -> NvmeNamespace:
        """Add a namespace with the next NSID; raises :class:`UserError`."""
        if block_size not in BLOCK_SIZES:
            raise UserError(f"block size {block_size} is not offered; use one of {BLOCK_SIZES}")
        if store.size < block_size:
            raise UserError(
                f"{store.size} octets are less than a block of {block_size}; give --size"
            )
        nsid = len(self.namespaces) + 1
        identifier = uuid.uuid5(_FAMILY, f"{self.nqn}/{nsid}")
        namespace = NvmeNamespace(nsid, store, block_size, identifier)
        self.namespaces[nsid] = namespace
        return namespace
