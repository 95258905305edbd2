"""Messages: ``fi_msg`` and ``fi_tagged``."""

from __future__ import annotations

from uet.api.active import ActiveEndpoint
from uet.api.address_vector import ADDR_UNSPEC
from uet.api.flags import ApiError, Flag
from uet.api.posted import Posted, octets
from uet.profiles import FepCapability
from uet.transport import ReceiveRequest, SendRequest

_SEND = Flag.INJECT | Flag.DELIVERY_COMPLETE
_RECV = Flag.MULTI_RECV


class MessageOperations(ActiveEndpoint):
    """Sends that meet a receive which the peer has posted.

    Buffers must not change until the operation completes.  An endpoint's configuration decides
    from which lengths sends become deferrable or rendezvous ones.
    """

    #: ``FI_OPT_MIN_MULTI_RECV``: a multi-receive ends when fewer octets than these are left
    min_multi_recv = 64

    def send(
        self,
        buf: object,
        dest_addr: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message for the next receive of ``dest_addr``: ``fi_send`` (SES SEND).

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(16)
        >>> b.endpoint.recv(memory)
        >>> a.endpoint.send(b"hello", a.peer, context=1, flags=Flag.DELIVERY_COMPLETE)
        >>> a.cq.wait()[0].op_context
        1
        >>> entry = b.cq.wait()[0]
        >>> bytes(entry.buf), entry.src_addr == b.peer
        (b'hello', True)
        """
        self._send(buf, dest_addr, None, None, context, flags)

    def senddata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message that brings 64 bits for the peer's completion: ``fi_senddata``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.recv(bytearray(16))
        >>> a.endpoint.senddata(b"hello", 0xC0FFEE, a.peer)
        >>> hex(b.cq.wait()[0].data)
        '0xc0ffee'
        """
        self._send(buf, dest_addr, None, data, context, flags)

    def inject(self, buf: object, dest_addr: int) -> None:
        """A message whose buffer may be used again at once: ``fi_inject``.

        At most one payload MTU.  It completes in silence; only its failure is reported.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory, message = bytearray(5), bytearray(b"hello")
        >>> b.endpoint.recv(memory)
        >>> a.endpoint.inject(message, a.peer)
        >>> message[:] = b"-----"
        >>> b.cq.wait()[0].len, bytes(memory)
        (5, b'hello')
        >>> a.cq.wait()
        []
        """
        self._send(buf, dest_addr, None, None, None, Flag.INJECT, silent=True)

    def tsend(
        self,
        buf: object,
        dest_addr: int,
        tag: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message for the first receive that its 64-bit tag fits: ``fi_tsend`` (TAGGED_SEND).

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=1, context="one")
        >>> b.endpoint.trecv(bytearray(16), tag=2, context="two")
        >>> a.endpoint.tsend(b"hello", a.peer, 2)
        >>> entry = b.cq.wait()[0]
        >>> entry.op_context, entry.tag, bytes(entry.buf)
        ('two', 2, b'hello')
        """
        self._send(buf, dest_addr, tag, None, context, flags)

    def tsenddata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        tag: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A tagged message that brings 64 bits for the peer's completion: ``fi_tsenddata``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=2)
        >>> a.endpoint.tsenddata(b"hello", 11, a.peer, 2)
        >>> b.cq.wait()[0].data
        11
        """
        self._send(buf, dest_addr, tag, data, context, flags)

    def tinject(self, buf: object, dest_addr: int, tag: int) -> None:
        """A tagged message whose buffer may be used again at once: ``fi_tinject``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=2)
        >>> a.endpoint.tinject(b"hello", a.peer, 2)
        >>> bytes(b.cq.wait()[0].buf)
        b'hello'
        """
        self._send(buf, dest_addr, tag, None, None, Flag.INJECT, silent=True)

    def recv(
        self,
        buf: object,
        src_addr: int = ADDR_UNSPEC,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Memory for an untagged message, from ``src_addr`` only if given: ``fi_recv``.

        With :attr:`Flag.MULTI_RECV` it takes message after message until fewer than
        ``min_multi_recv`` octets are left; the completion that has the flag is the last.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.recv(bytearray(100), flags=Flag.MULTI_RECV)
        >>> a.endpoint.send(b"the first of both", a.peer)
        >>> a.endpoint.send(b"and the second, after which less than 64 are left", a.peer)
        >>> entries = []
        >>> while len(entries) < 2:
        ...     entries += b.cq.wait()
        >>> [(entry.len, Flag.MULTI_RECV in entry.flags) for entry in entries]
        [(17, False), (49, True)]
        """
        self._recv(buf, src_addr, None, 0, context, flags)

    def trecv(
        self,
        buf: object,
        src_addr: int = ADDR_UNSPEC,
        tag: int = 0,
        ignore: int = 0,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Memory for a message whose tag equals ``tag``, bits in ``ignore`` aside: ``fi_trecv``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=0x100, ignore=0xFF)
        >>> a.endpoint.tsend(b"hello", a.peer, 0x142)
        >>> hex(b.cq.wait()[0].tag)
        '0x142'
        """
        self._recv(buf, src_addr, tag, ignore, context, flags)

    def _send(
        self,
        buf: object,
        dest_addr: int,
        tag: int | None,
        data: int | None,
        context: object,
        flags: Flag,
        *,
        silent: bool = False,
    ) -> None:
        self._check_flags(flags, _SEND, "a send")
        tagged = tag is not None
        if tagged:
            self._need_reliable("tagged messages")
        capability = FepCapability.TAGGED_SEND if tagged else FepCapability.NONE
        peer = self._peer(dest_addr, capability, "a tagged send")
        kind = Flag.SEND | (Flag.TAGGED if tagged else Flag.MSG)
        self._post(
            SendRequest(
                peer=peer.address,
                destination=peer.destination,
                delivery=self._delivery,
                payload=self._payload(buf, flags),
                tag=tag,
                header_data=data,
                delivery_complete=Flag.DELIVERY_COMPLETE in flags,
                context=self._posted(context, kind, silent=silent),
            )
        )

    def _payload(self, buf: object, flags: Flag) -> memoryview:
        view = octets(buf)
        if Flag.INJECT not in flags:
            return view
        limit = self.domain.config.payload_mtu
        if view.nbytes > limit:
            raise ApiError(
                f"{view.nbytes} octets are too many to inject; at most one payload MTU of {limit}"
            )
        return memoryview(bytes(view))

    def _recv(
        self,
        buf: object,
        src_addr: int,
        tag: int | None,
        ignore: int,
        context: object,
        flags: Flag,
    ) -> None:
        self._check_open()
        self._check_flags(flags, _RECV, "a receive")
        if tag is not None:
            self._need_reliable("tagged messages")
        source = None
        if src_addr != ADDR_UNSPEC:
            source = self._peer(src_addr)
        memory = octets(buf)
        multi = Flag.MULTI_RECV in flags
        posted = Posted(
            endpoint=self,
            op_context=context,
            flags=Flag.RECV | (Flag.MSG if tag is None else Flag.TAGGED),
            buf=memory,
            least_space=self.min_multi_recv if multi else None,
        )
        self._receives[posted] = None
        try:
            self.domain.fep.target.post_receive(
                ReceiveRequest(
                    memory=memory,
                    tag=tag,
                    ignore=ignore,
                    initiator=None if source is None else source.initiator_id,
                    peer=None if source is None else source.address,
                    least_space=posted.least_space,
                    context=posted,
                ),
                self.address,
            )
        except ValueError:
            del self._receives[posted]
            raise
