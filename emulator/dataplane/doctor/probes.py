"""Probes of the kernel: each tries a feature by using it.

Each trial makes, in a network namespace that ends with it, the object that a fabric would make;
where the fabric has a function for that, the trial calls the same one.  A kernel's version or its
configuration file would show less: distributions carry features back, and containers take them
away.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address
from pathlib import Path

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.kernel.kernel_objects import IFINFOMSG, IFLA_IFNAME, IFLA_LINKINFO
from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    U32,
    RouteSocket,
    attribute,
    nested,
    text,
)
from emulator.dataplane.kernel.release import release_requests
from emulator.dataplane.kernel.shaping import (
    RATESPEC,
    TC_H_ROOT,
    TCA_KIND,
    TCA_OPTIONS,
    TCMSG,
    Egress,
    egress_requests,
)
from emulator.dataplane.switch.bpf import port_program as asic_ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.errors import UserError

PORT, PORT_INDEX = "port", 101
TUNNEL_INDEX = 111
NEXTHOP, NEXTHOP_GROUP = 1, 2
NEW = NLM_F_CREATE | NLM_F_EXCL
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
IFLA_VRF_TABLE = 1
TCA_TBF_PARMS = 1
TCA_RED_PARMS, TCA_RED_STAB = 1, 2
SOL_PACKET, PACKET_VERSION, PACKET_IGNORE_OUTGOING = 263, 10, 23
ETH_P_ALL = 0x0003

#: A port that is shaped like any other, and one whose cable delay netem adds.
SHAPED = Egress(rate_bps=1e9, mtu=4500, buffer_bytes=1 << 20)
DELAYED = Egress(rate_bps=1e9, mtu=4500, buffer_bytes=1 << 20, delay_ns=1000)

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel or this process cannot do it; the message names the object and the reason."""


class Bench:
    """The throw-away namespace of one trial: a cable, and a netlink socket."""

    def __init__(self) -> None:
        """Move the calling thread into a new network namespace."""
        if _libc.unshare(namespaces.CLONE_NEWNET) != 0:
            raise Refused(os.strerror(ctypes.get_errno()))
        self.kernel = RouteSocket()
        try:
            self._lay_cable()
        except BaseException:
            self.kernel.close()
            raise

    def _lay_cable(self) -> None:
        # Both ends here: the namespace that a fabric would take from the far node is our own.
        here = os.open(namespaces.OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel_object.veth(
                self.kernel,
                (PORT, PORT_INDEX, "02:00:00:00:00:01"),
                ("peer", PORT_INDEX + 1, "02:00:00:00:00:02"),
                far_namespace=here,
                mtu=4500,
                subject="a veth pair",
            )
            self.flush()
        finally:
            os.close(here)

    def close(self) -> None:
        self.kernel.close()

    def request(self, kind: int, flags: int, body: bytes) -> None:
        self.kernel.queue(kind, flags, body, "")
        self.flush()

    def flush(self) -> None:
        try:
            self.kernel.flush()
        except OSError as error:
            raise Refused(str(error).rpartition(": ")[2]) from error

    def link(self, kind: str, data: bytes = b"") -> None:
        """Make an interface of ``kind``."""
        body = IFINFOMSG.pack(0, 0, 0, 0, 0, 0) + text(IFLA_IFNAME, "trial")
        info = nested(
            IFLA_LINKINFO, text(IFLA_INFO_KIND, kind), nested(IFLA_INFO_DATA, data) if data else b""
        )
        self.request(RTM_NEWLINK, NEW, body + info)

    def shape(self, egress: Egress, *, filters: bool) -> None:
        """Configure the port's egress as a fabric does."""
        for request in egress_requests(egress):
            if filters or request.kind != RTM_NEWTFILTER:
                self.kernel.queue(request.kind, request.flags, request.body(PORT_INDEX), "")
        self.flush()

    def queueing_discipline(
        self, name: str, options: bytes = b"", handle: int = 0x1_0000, parent: int = TC_H_ROOT
    ) -> None:
        header = TCMSG.pack(0, 0, 0, PORT_INDEX, handle, parent, 0)
        self.request(RTM_NEWQDISC, NEW, header + text(TCA_KIND, name) + options)


def named_namespaces(bench: Bench) -> None:
    """Namespaces are kept by mounting them on a file; here, on one that nobody else sees."""
    _leave_mounts()
    if _libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None) != 0:
        raise Refused(f"mount: {os.strerror(ctypes.get_errno())}")
    with tempfile.NamedTemporaryFile(prefix="uetemu-trial-", dir="/run") as name:
        path = os.fsencode(name.name)
        own = namespaces.OWN.encode()
        if _libc.mount(own, path, b"none", namespaces.MS_BIND, None) != 0:
            raise Refused(f"mount: {os.strerror(ctypes.get_errno())}")
        _libc.umount2(path, namespaces.MNT_DETACH)


def cables(bench: Bench) -> None:
    """The bench has one, or there would be no bench."""


def bridge(bench: Bench) -> None:
    kernel_object.bridge(bench.kernel, "trial", 111, "02:00:00:00:00:03", subject="")
    bench.flush()


def htb(bench: Bench) -> None:
    bench.shape(SHAPED, filters=False)


def u32(bench: Bench) -> None:
    bench.shape(SHAPED, filters=True)


def netem(bench: Bench) -> None:
    bench.shape(DELAYED, filters=False)


def tbf(bench: Bench) -> None:
    rate = RATESPEC.pack(0, 1, 0, 0, 0, 125_000_000)
    parameters = rate + RATESPEC.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", 1 << 20, 1 << 16, 0)
    bench.queueing_discipline("tbf", nested(TCA_OPTIONS, attribute(TCA_TBF_PARMS, parameters)))


def clsact(bench: Bench) -> None:
    """An endpoint's own filter on the ingress of its port."""
    try:
        mechanism = guard_interface(PORT, TransportFrames())
    except UserError as error:
        raise Refused(str(error)) from error
    if mechanism != "clsact":
        raise Refused("no classifier on a port's ingress")


def ebpf(bench: Bench) -> None:
    """The program of a rail switch's ports."""
    try:
        requests = release_requests()
    except UserError as error:
        raise Refused(str(error)) from error
    for request in requests:
        bench.request(request.kind, request.flags, request.body(PORT_INDEX))


def switch_asic(bench: Bench) -> None:
    """The switch program: compiled, past the verifier, pinned, and on a port.

    Its pins are in a file system that nobody else sees: they belong to no lab, and whoever cleans
    up after labs would take them away.
    """
    _leave_mounts()
    name = f"trial-{secrets.token_hex(5)}"
    try:
        asic_program.mount(anew=True)
        with asic_program.load(name, Size(ports=2, switches=1, prefixes=1)) as program:
            asic_ports.attach(bench.kernel, PORT_INDEX, program, subject="")
            bench.flush()
    except UserError as error:
        raise Refused(str(error)) from error
    finally:
        asic_program.remove(name)


def _leave_mounts() -> None:
    """Unmount the calling thread's later mounts together with the thread."""
    if _libc.unshare(namespaces.CLONE_NEWNS) != 0:
        raise Refused(os.strerror(ctypes.get_errno()))
    try:
        namespaces.propagate(namespaces.MS_PRIVATE)
    except OSError as error:
        raise Refused(f"mounts cannot be made private: {error}") from error


def bpf_filesystem(bench: Bench) -> None:
    """Check where maps of the switch program are kept: a file system that is or can be mounted."""
    _leave_mounts()
    try:
        asic_program.mount()
    except UserError as error:
        raise Refused(str(error)) from error


def red(bench: Bench) -> None:
    """RED with ECN (kernel ``struct tc_red_qopt``)."""
    parameters = struct.pack("=IIIBBBB", 400_000, 30_000, 90_000, 1, 10, 10, 1)
    table = attribute(TCA_RED_STAB, bytes(256))
    bench.queueing_discipline(
        "red", nested(TCA_OPTIONS, attribute(TCA_RED_PARMS, parameters), table)
    )


def vlan(bench: Bench) -> None:
    """A bridge that minds VLANs, a port in one, and the switch's own interface there."""
    kernel, mac = bench.kernel, "02:00:00:00:00:03"
    kernel_object.bridge(kernel, "trial", 111, mac, vlans=True, mtu=4500, subject="")
    kernel_object.raise_link(kernel, PORT_INDEX, bridge=111, subject="")
    kernel_object.vlan_member(kernel, PORT_INDEX, 10, subject="")
    kernel_object.vlan_member(kernel, 111, 10, of_bridge=True, subject="")
    kernel_object.vlan_interface(kernel, "rail", 112, 10, bridge=111, mac=mac, subject="")
    bench.flush()


def vrf(bench: Bench) -> None:
    bench.link("vrf", attribute(IFLA_VRF_TABLE, struct.pack("=I", 10)))


def bonding(bench: Bench) -> None:
    """A bond with a port, and a bridge in which one port is another's backup."""
    kernel = bench.kernel
    kernel_object.bond(kernel, "bond", 111, "02:00:00:00:00:03", mtu=4500, look_ms=10, subject="")
    kernel_object.bond_port(kernel, PORT_INDEX + 1, 111, subject="")
    kernel_object.bridge(kernel, "trial", 112, "02:00:00:00:00:04", subject="")
    for port in (PORT_INDEX, 111):
        kernel_object.raise_link(kernel, port, bridge=112, subject="")
    kernel_object.keep_quiet(kernel, 111, subject="")
    kernel_object.backup_port(kernel, PORT_INDEX, 111, subject="")
    bench.flush()


def vxlan(bench: Bench) -> None:
    kernel_object.vxlan(
        bench.kernel,
        "trial",
        TUNNEL_INDEX,
        vni=1,
        local=IPv4Address("127.0.0.1"),
        mtu=1500,
        subject="",
    )
    bench.flush()


def fdb_nexthop(bench: Bench) -> None:
    """The far ends of tunnels as a group of next hops, which entries of a bridge's table share."""
    gateway = attribute(kernel_object.NHA_GATEWAY, IPv4Address("192.0.2.1").packed)
    group = attribute(kernel_object.NHA_GROUP, kernel_object.NEXTHOP_GROUP.pack(NEXTHOP))
    for number, family, what in (
        (NEXTHOP, socket.AF_INET, gateway),
        (NEXTHOP_GROUP, socket.AF_UNSPEC, group),
    ):
        body = kernel_object.NHMSG.pack(family, 0, 0, 0, 0)
        body += attribute(kernel_object.NHA_ID, U32(number)) + what
        body += attribute(kernel_object.NHA_FDB, b"")
        bench.request(kernel_object.RTM_NEWNEXTHOP, NEW, body)


def fdb_nexthop_learned(bench: Bench) -> None:
    """An entry with a group of next hops as zebra makes it: learned by somebody else, not static.

    Linux refuses it since the correction of CVE-2026-98023.
    """
    vxlan(bench)
    fdb_nexthop(bench)
    state, flags = kernel_object.NUD_REACHABLE, kernel_object.NTF_EXT_LEARNED
    flags |= kernel_object.NTF_SELF
    body = kernel_object.NDMSG.pack(socket.AF_BRIDGE, 0, 0, TUNNEL_INDEX, state, flags, 0)
    body += attribute(kernel_object.NDA_LLADDR, bytes.fromhex("020000000005"))
    body += attribute(kernel_object.NDA_NH_ID, U32(NEXTHOP_GROUP))
    bench.request(RTM_NEWNEIGH, NEW, body)


def multipath(bench: Bench) -> None:
    _write_sysctl("net/ipv4/fib_multipath_hash_policy", "1")


def multipath_hash_seed(bench: Bench) -> None:
    _write_sysctl("net/ipv4/fib_multipath_hash_seed", "1")


def packet_socket(bench: Bench) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(SOL_PACKET, PACKET_VERSION, 1)  # TPACKET_V2: a ring in shared memory
        raw.bind((PORT, ETH_P_ALL))


def packet_ignore_outgoing(bench: Bench) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)


def nftables(bench: Bench) -> None:
    if shutil.which("nft") is None:
        raise Refused("the command nft is missing: install the package nftables")
    table = (
        "table inet trial {\n"
        "chain c { type filter hook prerouting priority raw; udp dport 9 drop; }\n"
        "}\n"
    )
    done = subprocess.run(
        ["nft", "-f", "-"], input=table, text=True, capture_output=True, timeout=10
    )
    if done.returncode:
        raise Refused(done.stderr.strip().partition("\n")[0])


def _write_sysctl(name: str, value: str) -> None:
    """Write a setting of the bench's own namespace (``/proc/sys/net`` shows the caller's)."""
    (Path("/proc/sys") / name).write_text(value)


#: Every trial by the name of what it tries; each is given a bench of its own.
TRIALS: Mapping[str, Callable[[Bench], None]] = {
    "namespaces": named_namespaces,
    "veth": cables,
    "bridge": bridge,
    "multipath": multipath,
    "multipath-hash-seed": multipath_hash_seed,
    "htb": htb,
    "u32": u32,
    "packet-socket": packet_socket,
    "packet-ignore-outgoing": packet_ignore_outgoing,
    "clsact": clsact,
    "ebpf": ebpf,
    "bpf-filesystem": bpf_filesystem,
    "switch-asic": switch_asic,
    "nftables": nftables,
    "netem": netem,
    "red": red,
    "tbf": tbf,
    "vlan": vlan,
    "vrf": vrf,
    "bonding": bonding,
    "vxlan": vxlan,
    "fdb-nexthop": fdb_nexthop,
    "fdb-nexthop-learned": fdb_nexthop_learned,
}


def refusals(names: Iterable[str]) -> dict[str, str | None]:
    """Return for each probe None, or the kernel's reason for the refusal.  A few ms each.

    Works in a thread that ends with it, and with the thread the namespaces; the calling thread
    never leaves its own.
    """
    answers: dict[str, str | None] = {}

    def work() -> None:
        for name in names:
            answers[name] = _refusal(name)

    thread = threading.Thread(target=work, name="trials")
    thread.start()
    thread.join()
    return answers


def _refusal(name: str) -> str | None:
    try:
        bench = Bench()
        try:
            TRIALS[name](bench)
        finally:
            bench.close()
    except (Refused, OSError, subprocess.TimeoutExpired) as error:
        return _sentence(error)
    return None


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the kernel has no such setting"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
