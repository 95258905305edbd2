"""Attachment of the switch program to a port, and its settings there.

The egress program comes after the one that releases senders
(:mod:`emulator.dataplane.kernel.release`), so it sees every frame once; on arrival it comes first.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network

from emulator.dataplane.kernel.icmp_guard import CLSACT_INGRESS
from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    RTM_DELTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    U32,
    KernelRefusal,
    RouteSocket,
    attribute,
    nested,
    text,
)
from emulator.dataplane.kernel.release import (
    CLSACT,
    CLSACT_EGRESS,
    CLSACT_HANDLE,
    DIRECT_ACTION,
    ETH_P_ALL_ON_WIRE,
    TCA_BPF_FD,
    TCA_BPF_FLAGS,
    TCA_BPF_NAME,
)
from emulator.dataplane.kernel.shaping import TCA_KIND, TCA_OPTIONS, TCMSG
from emulator.dataplane.switch.bpf.layout import (
    FAULTS_AT,
    FLOWLETS,
    HOPS,
    PORT_HEAD,
    PORT_KEY,
    ROUTE,
    ROUTE_KEY,
    TAIL,
    TAIL_AT,
    unpack,
)
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.errors import UserError

PREFERENCE = 0x10  # behind the release program, before filters of the user's
HANDLE = 1


def attach(
    kernel: RouteSocket,
    index: int,
    program: SwitchTables,
    *,
    subject: str,
    arrival_only: bool = False,
) -> None:
    """Queue what attaches both programs to port ``index`` (lab-unique); replaces older ones.

    With ``arrival_only`` just the one for what arrives: a NIC's port, which has no switch's queue.
    The port does nothing before :func:`configure`.  The caller flushes ``kernel``.
    """
    # Without NLM_F_EXCL it is no error if a clsact is there already.
    header = TCMSG.pack(0, 0, 0, index, CLSACT_HANDLE, CLSACT, 0)
    kernel.queue(RTM_NEWQDISC, NLM_F_CREATE, header + text(TCA_KIND, "clsact"), f"{subject}, ASIC")
    for parent, handle, name in _places(program):
        if arrival_only and parent != CLSACT_INGRESS:
            continue
        options = nested(
            TCA_OPTIONS,
            attribute(TCA_BPF_FD, U32(handle)),
            text(TCA_BPF_NAME, f"uetemu-{name}"),
            attribute(TCA_BPF_FLAGS, U32(DIRECT_ACTION)),
        )
        body = _filter(index, parent) + text(TCA_KIND, "bpf") + options
        kernel.queue(RTM_NEWTFILTER, NLM_F_CREATE, body, f"{subject}, ASIC")


def detach(kernel: RouteSocket, index: int, *, subject: str) -> None:
    """Take both programs off port ``index``, now; no error if they are not there."""
    for parent in (CLSACT_EGRESS, CLSACT_INGRESS):
        body = _filter(index, parent) + text(TCA_KIND, "bpf")
        kernel.queue(RTM_DELTFILTER, 0, body, f"{subject}, ASIC")
        try:
            kernel.flush()
        except KernelRefusal as refusal:
            if refusal.errno not in (errno.ENOENT, errno.EINVAL):  # EINVAL: not even a clsact
                raise


def configure(program: SwitchTables, index: int, settings: bytes) -> None:
    """Configure port ``index`` by ``settings``.

    See :func:`~emulator.dataplane.switch.switch_profile.port_settings`.

    Takes effect with the next packet; what is in the queues stays.
    """
    check_index(program, index)
    check_switch(program, unpack(TAIL, settings, TAIL_AT)["switch_number"])
    program.settings.put(PORT_KEY.pack(index), settings)


def with_faults_of(settings: bytes, other: bytes, *, scaled: bool = False) -> bytes:
    """``settings`` of a port, with the faults and the rate, which faults reduce, of ``other``.

    ``scaled``: with its thresholds, too.
    """
    (rate, _), (_, seed) = PORT_HEAD.unpack_from(other), PORT_HEAD.unpack_from(settings)
    return b"".join(
        (
            PORT_HEAD.pack(rate, seed),
            (other if scaled else settings)[PORT_HEAD.size : FAULTS_AT],
            other[FAULTS_AT:TAIL_AT],
            settings[TAIL_AT:],
        )
    )


def set_route(
    program: SwitchTables,
    switch: int,
    destination: IPv4Network | IPv6Network,
    ports: Sequence[int],
) -> None:
    """Set the egress ports of switch number ``switch`` towards ``destination``.

    ``ports`` are interface indices in the order of the kernel's multipath route, all of equal
    weight.  Only round robin and least loaded look them up; a route that they do not find is hashed
    by flow. While the kernel leaves out a dead hop, pass the shorter list.
    """
    if not 1 <= len(ports) <= HOPS:
        raise UserError(
            f"{len(ports)} next hops to {destination}: a switch balances over 1 to {HOPS} of them"
        )
    check_switch(program, switch)
    for index in ports:
        check_index(program, index)
    hops = (*ports, *[0] * (HOPS - len(ports)))
    try:
        program.routes.put(_route_key(switch, destination), ROUTE.pack(0, len(ports), *hops, 0))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"the switch program of lab {program.lab} was built for {program.routes.entries} "
            "multipath destinations: build it for more prefixes"
        ) from error


def check_index(program: SwitchTables, index: int) -> None:
    """Raise UserError if the program has no place for interface index ``index``."""
    if not 0 < index < program.settings.entries:
        raise UserError(
            f"interface index {index} is outside the {program.settings.entries} ports that the "
            f"switch program of lab {program.lab} was built for: build it for more"
        )


def check_switch(program: SwitchTables, switch: int) -> None:
    """Raise UserError if the program has no place for switch number ``switch``."""
    room = program.flowlets.entries // FLOWLETS
    if not 0 <= switch < room:
        raise UserError(
            f"switch number {switch} is outside the {room} switches that the switch program of "
            f"lab {program.lab} was built for: build it for more"
        )


def _route_key(switch: int, destination: IPv4Network | IPv6Network) -> bytes:
    if isinstance(destination, IPv4Network):
        length = 96 + destination.prefixlen
        address = bytes(10) + b"\xff\xff" + destination.network_address.packed
    else:
        length, address = destination.prefixlen, destination.network_address.packed
    return ROUTE_KEY.pack(32 + length, switch, address)


def _places(program: SwitchTables) -> tuple[tuple[int, int, str], ...]:
    return (
        (CLSACT_EGRESS, program.egress, "egress"),
        (CLSACT_INGRESS, program.ingress, "ingress"),
    )


def _filter(index: int, parent: int) -> bytes:
    return TCMSG.pack(0, 0, 0, index, HANDLE, parent, PREFERENCE << 16 | ETH_P_ALL_ON_WIRE)
