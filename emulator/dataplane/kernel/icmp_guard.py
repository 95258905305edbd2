"""Keep the kernel from answering transport frames.

The endpoint's stack lives in userspace. To the kernel a transport frame is addressed to a port
where nobody listens, and earns an ICMP error.  A classifier on the port's ingress drops such
frames; the endpoint's raw socket has already taken its copy by then.  Everything else (ping, ARP,
BGP) passes.

The classifier is the socket filter's own classic BPF program with drop as its verdict. It is
``cls_bpf`` in direct-action mode on a clsact qdisc, set up by two netlink requests.  Where the
kernel has no ``cls_bpf``, an nftables rule in the namespace does the same.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import subprocess

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError

_NLMSG = struct.Struct("=IHHII")
#: ``struct tcmsg`` and the numbers of clsact (linux/rtnetlink.h, linux/pkt_sched.h).
TCMSG = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")

_RTM_NEWQDISC, _RTM_NEWTFILTER = 36, 44
_REQUEST, _ACK, _CREATE, _EXCL, _REPLACE = 0x1, 0x4, 0x400, 0x200, 0x100
CLSACT = 0xFFFF_FFF1  # TC_H_CLSACT
CLSACT_HANDLE = 0xFFFF_0000
CLSACT_INGRESS = 0xFFFF_FFF2
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_OPS_LEN, _TCA_BPF_OPS, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 4, 5, 7, 8
_DIRECT_ACTION = 1
_TC_ACT_UNSPEC, _TC_ACT_SHOT = 0xFFFF_FFFF, 2
#: After any other ingress program of the lab (those come first, and may pass frames on).
_PRIORITY = 0xC000


def guard_interface(interface: str, frames: TransportFrames) -> str:
    """Drop ``frames`` on ingress of ``interface`` in the current network namespace.

    Returns the mechanism: ``"clsact"`` or ``"nftables"``.  Raises :class:`UserError` when the
    kernel offers neither.
    """
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        raise UserError(
            f"the port {interface} is not there; did somebody delete it while the lab was built?"
        ) from None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            _request(netlink, _RTM_NEWQDISC, _EXCL, _clsact(index), tolerate=errno.EEXIST)
            # Of an endpoint that was here before, with another transport, nothing may stay.
            _request(netlink, _RTM_NEWTFILTER, _REPLACE, _classifier(index, frames))
    except OSError as failure:
        if failure.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        table = f"uetemu-silence-{interface}"
        drop_with_nftables(interface, frames, why=os.strerror(failure.errno or 0), table=table)
        return "nftables"
    return "clsact"


def _clsact(index: int) -> bytes:
    header = TCMSG.pack(socket.AF_UNSPEC, index, CLSACT_HANDLE, CLSACT, 0)
    return header + _attribute(_TCA_KIND, b"clsact\0")


def _classifier(index: int, frames: TransportFrames) -> bytes:
    info = _PRIORITY << 16 | socket.htons(0x0003)  # ETH_P_ALL
    header = TCMSG.pack(socket.AF_UNSPEC, index, 1, CLSACT_INGRESS, info)
    return header + dropping(frames)


def dropping(frames: TransportFrames) -> bytes:
    """Return the attributes of a classifier (cls_bpf) that drops ``frames``."""
    program = frames.program(matching=_TC_ACT_SHOT, other=_TC_ACT_UNSPEC, only_for_us=False)
    options = (
        _attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(program)))
        + _attribute(_TCA_BPF_OPS, b"".join(program))
        + _attribute(_TCA_BPF_NAME, b"uetemu-silence\0")
        + _attribute(_TCA_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    )
    return _attribute(_TCA_KIND, b"bpf\0") + _attribute(_TCA_OPTIONS, options)


def _attribute(kind: int, value: bytes) -> bytes:
    data = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def _request(
    netlink: socket.socket, kind: int, where_it_exists: int, body: bytes, *, tolerate: int = 0
) -> None:
    flags = _REQUEST | _ACK | _CREATE | where_it_exists
    netlink.send(_NLMSG.pack(_NLMSG.size + len(body), kind, flags, 0, 0) + body)
    answer = netlink.recv(65536)
    (code,) = struct.unpack_from("=i", answer, _NLMSG.size)  # struct nlmsgerr
    if code and -code != tolerate:
        raise OSError(-code, os.strerror(-code))


def drop_with_nftables(interface: str, frames: TransportFrames, *, why: str, table: str) -> None:
    """Do the same by rules in a table of that name, which replaces one that is there."""
    if shutil.which("nft") is None:
        raise UserError(
            f"this kernel has no BPF classifier ({why}) and the nft command is missing;"
            " install the package nftables"
        )
    ports = ", ".join(map(str, frames.udp_ports))
    protocols = ", ".join(map(str, frames.ip_protocols))
    rules = []
    if frames.udp_ports:
        rules.append(f'iifname "{interface}" udp dport {{ {ports} }} drop')
    if frames.ip_protocols:
        rules.append(f'iifname "{interface}" meta l4proto {{ {protocols} }} drop')
    name = f"table inet {table}"
    lines = [
        name,
        f"delete {name}",  # so that a second call does not add the rules twice
        f"{name} {{",
        "chain ingress {",
        "type filter hook prerouting priority raw",
        *rules,
        "}",
        "}",
    ]
    script = "\n".join(lines)
    done = subprocess.run(["nft", "-f", "-"], input=script, text=True, capture_output=True)
    if done.returncode:
        stated = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"the kernel can drop transport frames neither by a BPF classifier ({why}) nor by"
            f" nftables ({stated}); see `uetemu doctor`"
        )
