"""The configuration of a stand-alone endpoint, from its interface and the user's request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from emulator.errors import UserError
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import ICRC_SIZE, PATH_MTUS
from uet.wire import headers as below

#: Fields of HcaConfig that something else than ``--set`` sets.
ELSEWHERE: Final[Mapping[str, str]] = {
    "address": "--address",
    "neighbours": "--peer",
    "connections": "--listen, --connect or --peer",
    "mac": "an interface that has it",
}
_AROUND = below.UDP_HEADER.size + headers.BTH.size + ICRC_SIZE
_EXTENSIONS = headers.RETH.size + headers.IMM_DT.size


def path_mtu_for(mtu: int, *, version: int, requested: int | None) -> int:
    """Return the requested path MTU, or the largest that fits an interface's MTU.

    Raises :class:`UserError` where packets would not fit.
    """
    around = (below.IPV4 if version == 4 else below.IPV6).size + _AROUND + _EXTENSIONS
    if requested is not None:
        if requested not in PATH_MTUS:
            listed = ", ".join(map(str, PATH_MTUS))
            raise UserError(f"mtu is {requested}; InfiniBand knows {listed}")
        if requested + around > mtu:
            raise UserError(
                f"a path MTU of {requested} octets needs an interface MTU of"
                f" {requested + around}, and it has {mtu}; raise that, or choose a smaller one"
            )
        return requested
    fitting = [size for size in PATH_MTUS if size + around <= mtu]
    if not fitting:
        raise UserError(
            f"the interface's MTU of {mtu} octets is too small for RoCEv2; raise it to"
            f" {PATH_MTUS[0] + around}"
        )
    return max(fitting)
