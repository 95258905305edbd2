"""Remote memory access: ``fi_rma``."""

from __future__ import annotations

from uet.api.flags import Flag
from uet.api.messages import MessageOperations
from uet.api.posted import octets
from uet.profiles import FepCapability
from uet.transport import ReadRequest, WriteRequest

_WRITE = Flag.INJECT | Flag.DELIVERY_COMPLETE | Flag.RUDI
_READ = Flag.RUDI


class RmaOperations(MessageOperations):
    """Reads and writes of memory that a peer has registered.

    ``addr`` counts octets from the start of the peer's region named by ``key``.
    """

    def write(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Put ``buf`` into the peer's memory: ``fi_write`` (SES WRITE).

        The peer gets no notification of it.  With :attr:`Flag.RUDI` no PDC is used; the region must
        have been registered as idempotent.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(10)
        >>> region = b.domain.mr_reg(memory, idempotent=True)
        >>> a.endpoint.write(b"hello", a.peer, 5, region.key, flags=Flag.RUDI)
        >>> a.cq.wait()[0].len, bytes(memory[5:])
        (5, b'hello')
        """
        self._write(buf, dest_addr, addr, key, None, context, flags)

    def writedata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Write with 64 bits for a completion at the peer when all is placed: ``fi_writedata``.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> region = b.domain.mr_reg(bytearray(10_000))
        >>> a.endpoint.writedata(bytes(9_000), 42, a.peer, 0, region.key)
        >>> entry = b.cq.wait()[0]
        >>> entry.data, entry.len, Flag.REMOTE_WRITE in entry.flags
        (42, 9000, True)
        """
        self._write(buf, dest_addr, addr, key, data, context, flags)

    def inject_write(self, buf: object, dest_addr: int, addr: int, key: int) -> None:
        """A write whose buffer may be used again at once: ``fi_inject_write``.

        At most one payload MTU.  It completes in silence; only its failure is reported.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(5)
        >>> a.endpoint.inject_write(b"hello", a.peer, 0, b.domain.mr_reg(memory).key)
        >>> a.cq.wait(), bytes(memory)
        ([], b'hello')
        """
        self._write(buf, dest_addr, addr, key, None, None, Flag.INJECT, silent=True)

    def read(
        self,
        buf: object,
        src_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Fill ``buf`` from the peer's memory: ``fi_read`` (SES READ, one per payload MTU).

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> region = b.domain.mr_reg(bytearray(b"hello world"))
        >>> memory = bytearray(5)
        >>> a.endpoint.read(memory, a.peer, 6, region.key)
        >>> a.cq.wait()[0].len, bytes(memory)
        (5, b'world')
        """
        self._check_flags(flags, _READ, "a read")
        self._need_reliable("remote memory access")
        peer = self._peer(src_addr, FepCapability.READ, "a read")
        self._post(
            ReadRequest(
                peer=peer.address,
                destination=peer.destination,
                delivery=self._rma_delivery(flags, peer, key),
                key=key,
                offset=addr,
                memory=octets(buf),
                context=self._posted(context, Flag.RMA | Flag.READ),
            )
        )

    def _write(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        data: int | None,
        context: object,
        flags: Flag,
        *,
        silent: bool = False,
    ) -> None:
        self._check_flags(flags, _WRITE, "a write")
        self._need_reliable("remote memory access")
        peer = self._peer(dest_addr)
        self._post(
            WriteRequest(
                peer=peer.address,
                destination=peer.destination,
                delivery=self._rma_delivery(flags, peer, key),
                key=key,
                offset=addr,
                payload=self._payload(buf, flags),
                header_data=data,
                delivery_complete=Flag.DELIVERY_COMPLETE in flags,
                context=self._posted(context, Flag.RMA | Flag.WRITE, silent=silent),
            )
        )
