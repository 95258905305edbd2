"""The endpoint's configuration as far as its interface and a software stack decide it."""

from __future__ import annotations

from typing import Final

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from uet.config import FepConfig
from uet.wire.codes import CRC_SIZE, ICV_SIZE, PAYLOAD_MTUS

#: What differs from FepConfig's own defaults, which are for a fabric's time: an endpoint in
#: software on an ordinary kernel needs milliseconds where a NIC needs microseconds.
REAL_TIME: Final[dict[str, object]] = {
    "rto_init_time": 100_000_000,
    "nack_retx_time": 100_000_000,
    "close_req_time": 1_000_000_000,
    "new_pdc_time": 1_000_000_000,
    "restart_time": 100_000_000,
}
#: Payload octets (UES 3.4.1.11) that every implementation has.
PREFERRED_PAYLOAD = 4096


def frames_of(config: FepConfig) -> TransportFrames:
    """Return what an endpoint takes from its interface.

    Both encapsulations' frames are kept from the kernel: a peer may have chosen the other.
    """
    return TransportFrames(udp_ports=(config.udp_port,), ip_protocols=(config.ip_protocol,))


def payload_for(
    mtu: int, *, version: int, native: bool, crc: bool, secure: bool, requested: int | None
) -> int:
    """Return the requested payload MTU, or the largest (to 4096) that fits an interface's MTU.

    ``version`` is that of IP; all sizes are octets.  Raises :class:`UserError` where packets
    would not fit.
    """
    from uet.wire import headers

    ip = headers.IPV4.size if version == 4 else headers.IPV6.size
    carrier = headers.ENTROPY.size if native else headers.UDP_HEADER.size
    extension = max(headers.SES_RENDEZVOUS.size, headers.SES_CSWAP.size)
    around = ip + carrier + headers.RUD_REQ.size + headers.SES_STD_SOM.size + extension
    if secure:
        around += headers.TSS_SSI.size + ICV_SIZE
    elif crc:
        around += CRC_SIZE
    if requested is not None:
        if requested + around > mtu:
            raise UserError(
                f"a payload MTU of {requested} octets needs an interface MTU of"
                f" {requested + around},"
                f" and it has {mtu}; raise that, or choose a smaller one"
            )
        return requested
    room = min(mtu - around, PREFERRED_PAYLOAD)
    fitting = [size for size in PAYLOAD_MTUS if size <= room]
    if not fitting:
        raise UserError(
            f"the interface's MTU of {mtu} octets is too small for UET; raise it to"
            f" {PAYLOAD_MTUS[0] + around}"
        )
    return max(fitting)
