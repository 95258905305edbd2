"""Keep the kernel from answering transport frames, and leave nothing behind.

The kernel may have the endpoint's address itself, and would answer UET with ICMP errors.  As
:mod:`emulator.endpoint.silence` does for the ports of a lab, a classifier on ingress drops the
frames behind the endpoint's raw socket.  Here the interface is the user's, so the classifier must
go when the endpoint does, however it ends: a small process of its own waits for that and takes it
away, even after SIGKILL.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from emulator.endpoint.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.fabric.netlink import U16, U32, KernelRefusal, RouteSocket, attribute, attributes

# linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
_NEW_QDISC, _DEL_QDISC, _NEW_FILTER, _DEL_FILTER, _GET_FILTER = 36, 37, 44, 45, 46
_CREATE, _EXCL = 0x400, 0x200
_TCMSG = struct.Struct("=BxxxiIII")
_CLSACT, _CLSACT_HANDLE = 0xFFFF_FFF1, 0xFFFF_0000
_INGRESS, _EGRESS = 0xFFFF_FFF2, 0xFFFF_FFF3
_TCA_KIND, _TCA_OPTIONS = 1, 2
_BPF_OPS_LEN, _BPF_OPS, _BPF_NAME, _BPF_FLAGS = 4, 5, 7, 8
_DIRECT_ACTION = 1
_UNSPEC, _DROP = 0xFFFF_FFFF, 2
#: After whatever else classifies here, and beside a lab's own silence.
_PRIORITY = 0xC001
_INFO = _PRIORITY << 16 | socket.htons(0x0003)  # ETH_P_ALL
#: Names of classifiers: in a qdisc that was there before, and in one that we made.
_GUEST, _OWNER = b"uetemu-fep\0", b"uetemu-fep-own\0"
_NO_CLASSIFIER = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def quiet(index: int, name: str, frames: TransportFrames) -> Iterator[str]:
    """Drop ``frames`` on ingress of an interface while the block, or this process, lives.

    Gives the mechanism: ``"clsact"`` or ``"nftables"``.  Raises :class:`UserError` if the kernel
    has neither.
    """
    handle = os.getpid()
    keep, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        _stand_guard(keep, alive, index, handle)
    os.close(keep)
    try:
        yield _silence(index, name, handle, frames)
    finally:
        os.close(alive)
        os.waitpid(guard, 0)


def _stand_guard(keep: int, alive: int, index: int, handle: int) -> None:
    """The guard: wait for the endpoint's end, clear up, leave without Python's own end."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(alive)
        while os.read(keep, 1):
            pass
        _restore(index, handle)
    finally:
        os._exit(0)


def _silence(index: int, name: str, handle: int, frames: TransportFrames) -> str:
    netlink = RouteSocket()
    try:
        made = _make_qdisc(netlink, index)
        names = [known for known, _ in _classifiers(netlink, index, _INGRESS)]
        program = frames.program(matching=_DROP, other=_UNSPEC, only_for_us=False)
        options = (
            attribute(_BPF_OPS_LEN, U16(len(program)))
            + attribute(_BPF_OPS, b"".join(program))
            + attribute(_BPF_NAME, _OWNER if made or _OWNER in names else _GUEST)
            + attribute(_BPF_FLAGS, U32(_DIRECT_ACTION))
        )
        header = _TCMSG.pack(socket.AF_UNSPEC, index, handle, _INGRESS, _INFO)
        body = header + attribute(_TCA_KIND, b"bpf\0") + attribute(_TCA_OPTIONS, options)
        netlink.queue(_NEW_FILTER, _CREATE | _EXCL, body, f"the classifier on {name}")
        netlink.flush()
    except KernelRefusal as refusal:
        if refusal.errno not in _NO_CLASSIFIER:
            raise UserError(f"the kernel cannot be kept from answering UET: {refusal}") from None
        _drop_with_nftables(name, handle, frames, str(refusal))
        return "nftables"
    finally:
        netlink.close()
    return "clsact"


def _make_qdisc(netlink: RouteSocket, index: int) -> bool:
    """Whether there was no clsact qdisc before."""
    header = _TCMSG.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, _CLSACT, 0)
    netlink.queue(_NEW_QDISC, _CREATE | _EXCL, header + attribute(_TCA_KIND, b"clsact\0"), "clsact")
    try:
        netlink.flush()
    except KernelRefusal as refusal:
        if refusal.errno != errno.EEXIST:
            raise
        return False
    return True


def _classifiers(netlink: RouteSocket, index: int, parent: int) -> Iterator[tuple[bytes, int]]:
    """Name (empty where it has none) and handle of every classifier of a qdisc's side."""
    request = _TCMSG.pack(socket.AF_UNSPEC, index, 0, parent, 0)
    for payload in netlink.dump(_GET_FILTER, request):
        _, _, handle, _, _ = _TCMSG.unpack_from(payload)
        if not handle:
            continue  # the chain's own entry
        label = b""
        for kind, value in attributes(payload, _TCMSG.size):
            if kind == _TCA_OPTIONS:
                label = next(
                    (bytes(item) for part, item in attributes(value) if part == _BPF_NAME), b""
                )
        yield label, handle


def _restore(index: int, handle: int) -> None:
    """Take away what :func:`_silence` may have made; what is gone already is well."""
    netlink = RouteSocket()
    try:
        ours = [
            label
            for label, number in _classifiers(netlink, index, _INGRESS)
            if number == handle and label in (_OWNER, _GUEST)
        ]
        if ours:
            header = _TCMSG.pack(socket.AF_UNSPEC, index, handle, _INGRESS, _INFO)
            netlink.queue(_DEL_FILTER, 0, header + attribute(_TCA_KIND, b"bpf\0"), "classifier")
            netlink.flush()
        if _OWNER in ours and not any(
            True for side in (_INGRESS, _EGRESS) for _ in _classifiers(netlink, index, side)
        ):
            header = _TCMSG.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, _CLSACT, 0)
            netlink.queue(_DEL_QDISC, 0, header + attribute(_TCA_KIND, b"clsact\0"), "clsact")
            netlink.flush()
    except KernelRefusal:
        pass  # the interface itself has gone, and all of this with it
    finally:
        netlink.close()
    if shutil.which("nft") is not None and _tables(handle):
        subprocess.run(["nft", "delete", "table", "inet", _table(handle)], check=False)


def _table(handle: int) -> str:
    return f"uetemu-fep-{handle}"


def _tables(handle: int) -> bool:
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
    return f"{_table(handle)}\n" in listed.stdout


def _drop_with_nftables(name: str, handle: int, frames: TransportFrames, why: str) -> None:
    if shutil.which("nft") is None:
        raise UserError(
            f"this kernel has no BPF classifier ({why}) and the nft command is missing; install"
            " the package nftables"
        )
    ports = ", ".join(map(str, frames.udp_ports))
    protocols = ", ".join(map(str, frames.ip_protocols))
    rules = [f'iifname "{name}" udp dport {{ {ports} }} drop'] if ports else []
    rules += [f'iifname "{name}" meta l4proto {{ {protocols} }} drop'] if protocols else []
    chain = ["chain ingress {", "type filter hook prerouting priority raw", *rules, "}"]
    script = "\n".join([f"table inet {_table(handle)} {{", *chain, "}"])
    done = subprocess.run(
        ["nft", "-f", "-"], input=script, text=True, capture_output=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"the kernel can drop UET frames neither by a BPF classifier ({why}) nor by nftables"
            f" ({said}); see uetemu doctor"
        )
