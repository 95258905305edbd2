"""Keep the kernel from answering transport frames, and leave nothing behind.

The kernel may have the endpoint's address itself, and would answer its packets with ICMP errors. A
classifier on ingress drops the frames behind the endpoint's raw socket. So it is on the ports of a
lab, which need not be cleared up (:mod:`emulator.dataplane.kernel.icmp_guard`).  Here the interface
is the user's, so the classifier must go when the endpoint does, however it ends: a small process of
its own waits for that and takes it away, even after SIGKILL.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.icmp_guard import (
    CLSACT,
    CLSACT_HANDLE,
    CLSACT_INGRESS,
    TCMSG,
    drop_with_nftables,
    dropping,
)
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket, attribute
from emulator.errors import UserError

# linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
_NEW_QDISC, _DEL_QDISC, _NEW_FILTER, _DEL_FILTER, _GET_FILTER = 36, 37, 44, 45, 46
_CREATE, _EXCL = 0x400, 0x200
_EGRESS = 0xFFFF_FFF3
_TCA_KIND = 1
#: After whatever else classifies here, and beside the guard of a lab.
_PRIORITY = 0xC001
_INFO = _PRIORITY << 16 | socket.htons(0x0003)  # ETH_P_ALL
#: Handles of classifiers: the guard, and whether such a one has made the qdisc or found it.
_GUEST, _OWNER = 1 << 30, 2 << 30
_PID = (1 << 30) - 1
_NO_CLASSIFIER = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def guarded_interface(index: int, name: str, frames: TransportFrames) -> Iterator[str]:
    """Drop ``frames`` on ingress of an interface while the block, or this process, lives.

    Gives the mechanism: ``"clsact"`` or ``"nftables"``.  Raises :class:`UserError` if the kernel
    has neither.
    """
    keep, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        _stand_guard(keep, index)
    os.close(keep)
    try:
        yield _silence(index, name, guard, frames)
    finally:
        os.close(alive)
        os.waitpid(guard, 0)


def _stand_guard(keep: int, index: int) -> None:
    """The guard: wait for the endpoint's end, clear up, leave without Python's own end."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        # Nothing of the endpoint's may stay open because of its guard.
        os.closerange(3, keep)
        os.closerange(max(keep + 1, 3), os.sysconf("SC_OPEN_MAX"))
        while os.read(keep, 1):
            pass
        _restore(index, os.getpid())
    finally:
        os._exit(0)


def _silence(index: int, name: str, guard: int, frames: TransportFrames) -> str:
    netlink = RouteSocket()
    made = False
    try:
        made = _make_qdisc(netlink, index)
        inherited = any(there & _OWNER for there in _ours(netlink, index))
        handle = guard & _PID | (_OWNER if made or inherited else _GUEST)
        header = TCMSG.pack(socket.AF_UNSPEC, index, handle, CLSACT_INGRESS, _INFO)
        body = header + dropping(frames)
        netlink.queue(_NEW_FILTER, _CREATE, body, f"the classifier on {name}")
        netlink.flush()
    except KernelRefusal as refusal:
        if refusal.errno not in _NO_CLASSIFIER:
            raise UserError(f"the kernel cannot be kept from answering: {refusal}") from None
        if made:
            _remove_qdisc(netlink, index)
        drop_with_nftables(name, frames, why=str(refusal), table=_table(guard))
        return "nftables"
    finally:
        netlink.close()
    return "clsact"


def _make_qdisc(netlink: RouteSocket, index: int) -> bool:
    """Return whether there was no clsact qdisc before."""
    header = TCMSG.pack(socket.AF_UNSPEC, index, CLSACT_HANDLE, CLSACT, 0)
    netlink.queue(_NEW_QDISC, _CREATE | _EXCL, header + attribute(_TCA_KIND, b"clsact\0"), "clsact")
    try:
        netlink.flush()
    except KernelRefusal as refusal:
        if refusal.errno != errno.EEXIST:
            raise
        return False
    return True


def _remove_qdisc(netlink: RouteSocket, index: int) -> None:
    header = TCMSG.pack(socket.AF_UNSPEC, index, CLSACT_HANDLE, CLSACT, 0)
    netlink.queue(_DEL_QDISC, 0, header + attribute(_TCA_KIND, b"clsact\0"), "clsact")
    netlink.flush()


def _handles(netlink: RouteSocket, index: int, parent: int) -> Iterator[tuple[int, int]]:
    """Priority and handle of every classifier on a side of the qdisc."""
    request = TCMSG.pack(socket.AF_UNSPEC, index, 0, parent, 0)
    for payload in netlink.dump(_GET_FILTER, request):
        _, _, handle, _, info = TCMSG.unpack_from(payload)
        if handle:  # else it is the head of a list of classifiers
            yield info >> 16, handle


def _ours(netlink: RouteSocket, index: int) -> list[int]:
    """Handles of the classifiers of all endpoints like this one."""
    return [
        handle
        for priority, handle in _handles(netlink, index, CLSACT_INGRESS)
        if priority == _PRIORITY and handle & (_OWNER | _GUEST)
    ]


def _restore(index: int, guard: int) -> None:
    """Take away what :func:`_silence` may have made; what is gone already is well."""
    netlink = RouteSocket()
    try:
        mine = [handle for handle in _ours(netlink, index) if handle & _PID == guard & _PID]
        for handle in mine:
            header = TCMSG.pack(socket.AF_UNSPEC, index, handle, CLSACT_INGRESS, _INFO)
            netlink.queue(_DEL_FILTER, 0, header + attribute(_TCA_KIND, b"bpf\0"), "classifier")
            netlink.flush()
        left = [*_handles(netlink, index, CLSACT_INGRESS), *_handles(netlink, index, _EGRESS)]
        if not left and any(handle & _OWNER for handle in mine):
            _remove_qdisc(netlink, index)
    except KernelRefusal:
        pass  # the interface itself has gone, and all of this with it
    finally:
        netlink.close()
    if shutil.which("nft") is not None and _has_table(guard):
        subprocess.run(["nft", "delete", "table", "inet", _table(guard)], check=False)


def _table(guard: int) -> str:
    return f"uetemu-fep-{guard}"


def _has_table(guard: int) -> bool:
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
    return f"{_table(guard)}\n" in listed.stdout
