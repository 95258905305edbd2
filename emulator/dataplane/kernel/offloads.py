"""Ports finish each frame before they send it: offloads are switched off (Linux ethtool.h).

The kernel leaves checksums of its own packets, and the cutting up of large ones, to the device. A
veth pair hands them over as they are, and whoever reads them from a packet ring finds frames that
are not on any cable.  A tunnel that merges what it receives (GRO) does so in a softirq of its own.
That may run after the one that the frame came in.
"""

from __future__ import annotations

import array
import fcntl
import struct

from emulator.dataplane.kernel.netlink import RouteSocket

SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO = 0x17, 0x1F, 0x24, 0x2C
#: Without checksums the kernel drops segmentation itself; requested all the same.
OFFLOADS = (ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO)
REQUEST = struct.Struct("=16sQ16x")  # struct ifreq: name, address of the ethtool_value


def switch_off(kernel: RouteSocket, interface: str) -> None:
    """Have ``interface``, in the namespace of ``kernel``, finish each frame before it is sent."""
    for command in OFFLOADS:
        value = array.array("I", (command, 0))
        address, _ = value.buffer_info()
        fcntl.ioctl(kernel.fileno(), SIOCETHTOOL, REQUEST.pack(interface.encode(), address))
