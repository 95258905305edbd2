"""Settings of the kernel's network stack (``/proc/sys/net``) in the namespace of a node."""

from __future__ import annotations

import os
from pathlib import Path

from topologies.model import Node

SYSCTL = Path("/proc/sys/net")

#: No address resolution, no router or listener discovery: only what is sent is on the wire, and
#: only where there is one.
QUIET: tuple[tuple[str, str], ...] = (
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    # a port without carrier leads nowhere (emulator.dataplane.kernel.fabric.cable_carrier)
    ("ipv4/conf/all/ignore_routes_with_linkdown", "1"),
    ("ipv4/conf/default/ignore_routes_with_linkdown", "1"),
)
#: What is left that a kernel sends unasked or by the host's clock: with a virtual clock, nothing.
SILENT: tuple[tuple[str, str], ...] = (
    ("ipv4/igmp_link_local_mcast_reports", "0"),
    # errors (types 3, 4, 11 and 12 of RFC 792) about packets without a way: one in 27 hours
    ("ipv4/icmp_ratemask", "6168"),
    ("ipv4/icmp_ratelimit", "100000000"),
)
#: ECMP on layer 4 (addresses and ports), hashed with the switch's own seed where the kernel can.
MULTIPATH = ("ipv4/fib_multipath_hash_policy", "1")
FORWARDING: tuple[tuple[str, str], ...] = (("ipv4/ip_forward", "1"), MULTIPATH)
HASH_SEED = "ipv4/fib_multipath_hash_seed"
#: Absent on some kernels; `uetemu doctor` reports what is lost.
OPTIONAL = frozenset(
    {
        "ipv6/conf/all/disable_ipv6",
        "ipv6/conf/default/disable_ipv6",
        HASH_SEED,
        "bridge/bridge-nf-call-iptables",
    }
)


def kernel_seed(switch: Node) -> int:
    """Return what ``HASH_SEED`` of ``switch`` is set to: the kernel's seed has 32 bits."""
    return switch.hash_seed & 0xFFFF_FFFF


def write_sysctl(name: str, value: str) -> None:
    """Set ``net.<name>`` in the namespace of the calling thread.

    Raises OSError unless the kernel is known to exist without it.
    """
    try:
        handle = os.open(SYSCTL / name, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if name in OPTIONAL:
            return
        raise
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)
