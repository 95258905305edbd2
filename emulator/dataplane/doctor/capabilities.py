"""Capabilities of this machine and its kernel, and substitutes for those they lack.

:func:`probe` answers for everything at once, :func:`has` for one thing; both find out by trying
(:mod:`emulator.dataplane.doctor.probes`), take some milliseconds and leave nothing behind.
:func:`require` is for code that cannot do without.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

from emulator.dataplane.doctor import known_to_work
from emulator.dataplane.doctor import probes as trials
from emulator.dataplane.kernel import rights
from emulator.errors import UserError
from emulator.logs import plain_logger
from emulator.machine_memory import machine_memory

_log = plain_logger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_SWITCH_ASIC = "switch-asic"


class CapabilityKind(StrEnum):
    MACHINE = "machine"
    KERNEL = "kernel"
    TOOL = "tool"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Something that a machine may offer.

    ``used_for`` is what uetemu does with it, ``stands_in`` what takes its place where it is absent
    (None: nothing does), ``remedy`` how to get it.  ``needed`` features are those without which,
    stand-ins counted, no fabric runs.
    """

    name: str
    kind: CapabilityKind
    used_for: str
    remedy: str
    stands_in: str | None = None
    needed: bool = False
    look: Callable[[], tuple[bool, str]]


@dataclass(frozen=True, kw_only=True)
class MachineCapability:
    """One feature on this machine.  ``detail`` is where it is, how much, or why it is absent."""

    name: str
    kind: CapabilityKind
    used_for: str
    present: bool
    detail: str
    stands_in: str | None
    needed: bool


class Capabilities(Mapping[str, MachineCapability]):
    """Every capability of this machine by name."""

    def __init__(self, found: Mapping[str, MachineCapability]) -> None:
        self._found = dict(found)

    def __getitem__(self, name: str) -> MachineCapability:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def lacking(self) -> tuple[MachineCapability, ...]:
        """Return what is needed, absent, and not stood in for."""
        return tuple(
            found
            for found in self.values()
            if found.needed and not found.present and not self._stood_in(found)
        )

    def _stood_in(self, found: MachineCapability) -> bool:
        substitute = SUBSTITUTES.get(found.name)
        return substitute is not None and self[substitute].present


#: Needed feature -> feature that does instead.
SUBSTITUTES = {"clsact": "nftables"}


def probe(*, known: bool = False) -> Capabilities:
    """Everything, tried now.

    With ``known`` the switch program is not tried where it is known to work.
    """
    in_kernel = [
        name for name, feature in FEATURES.items() if feature.kind is CapabilityKind.KERNEL
    ]
    if known and known_to_work.is_known():
        in_kernel.remove(_SWITCH_ASIC)
        refusals = {_SWITCH_ASIC: None} | trials.refusals(in_kernel)
    else:
        refusals = trials.refusals(in_kernel)
        if refusals[_SWITCH_ASIC] is None:
            known_to_work.note()
    for name, refusal in refusals.items():
        if refusal is not None:
            _log.info("probe %s: %s", name, refusal)
    found = {}
    for name, feature in FEATURES.items():
        if feature.kind is CapabilityKind.KERNEL:
            found[name] = capability(feature, *_kernel_answer(refusals[name]))
        else:
            found[name] = capability(feature, *feature.look())
    return Capabilities(found)


@cache
def has(name: str) -> bool:
    """Return whether the machine offers feature ``name``; probed once per process."""
    present, _ = FEATURES[name].look()
    return present


def require(*names: str, purpose: str) -> None:
    """Raise :class:`UserError` for the first of ``names`` that is absent.

    ``purpose`` completes "to ...": ``require("netem", purpose="delay frames on the cable")``.
    """
    for name in names:
        feature = FEATURES[name]
        present, detail = feature.look()
        if not present:
            raise UserError(f"{name} is needed to {purpose}: {detail}; {remedy(name, detail)}")


def remedy(name: str, refusal: str) -> str:
    """Return how to get feature ``name``, which was refused for the reason ``refusal``."""
    feature = FEATURES[name]
    kernel = feature.kind is CapabilityKind.KERNEL
    return (kernel and rights.way_out(refusal)) or feature.remedy


def capability(feature: Feature, present: bool, detail: str) -> MachineCapability:
    return MachineCapability(
        name=feature.name,
        kind=feature.kind,
        used_for=feature.used_for,
        present=present,
        detail=detail,
        stands_in=None if present else feature.stands_in,
        needed=feature.needed,
    )


def _root() -> tuple[bool, str]:
    return os.geteuid() == 0, f"user id {os.geteuid()}"


def _shared_memory() -> tuple[bool, str]:
    """Room for GPU memories, which are files there if a run has several workers."""
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError as error:
        return False, f"{SHARED_MEMORY}: {error.strerror}"
    if not os.access(SHARED_MEMORY, os.W_OK):
        return False, f"{SHARED_MEMORY} is not writable"
    text = f"{_gib(usage.free)} free in {SHARED_MEMORY}"
    return usage.free > 0, text


def _memory() -> tuple[bool, str]:
    memory = machine_memory()
    return True, f"{_gib(memory.available)} available of {_gib(memory.total)}"


def _cores() -> tuple[bool, str]:
    usable = len(os.sched_getaffinity(0))
    return True, f"{usable} usable"


def _mininet() -> tuple[bool, str]:
    present = importlib.util.find_spec("mininet") is not None
    return present, "in this Python" if present else "this Python has no module mininet"


def _command(name: str) -> tuple[bool, str]:
    path = shutil.which(name)
    return path is not None, path or "not installed"


def _kernel_answer(refusal: str | None) -> tuple[bool, str]:
    return refusal is None, refusal or "works"


def _try(name: str) -> tuple[bool, str]:
    return _kernel_answer(trials.refusals([name])[name])


def _gib(octets: int) -> str:
    return f"{octets / 2**30:.1f} GiB"


def _kernel(
    name: str, used_for: str, *, stands_in: str | None = None, needed: bool = False
) -> Feature:
    return Feature(
        name=name,
        kind=CapabilityKind.KERNEL,
        used_for=used_for,
        stands_in=stands_in,
        needed=needed,
        remedy="use a kernel that offers it, such as Debian's own (vagrant/Vagrantfile boots one)",
        look=partial(_try, name),
    )


def _tool(
    command: str,
    package: str,
    used_for: str,
    *,
    stands_in: str | None = None,
    installer: str = "vagrant/provision.sh",
) -> Feature:
    """Return a tool of ``package``, and of a call of the ``installer`` unless that is empty."""
    by_installer = f", or run {installer}" if installer else ""
    return Feature(
        name=command,
        kind=CapabilityKind.TOOL,
        used_for=used_for,
        stands_in=stands_in,
        remedy=f"install the Debian package {package}{by_installer}",
        look=partial(_command, command),
    )


def _machine(
    name: str, used_for: str, look: Callable[[], tuple[bool, str]], remedy: str, *, needed: bool
) -> Feature:
    return Feature(
        name=name,
        kind=CapabilityKind.MACHINE,
        used_for=used_for,
        look=look,
        remedy=remedy,
        needed=needed,
    )


FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        _machine("root", "building fabrics", _root, "run it as root", needed=True),
        _machine("cores", "one process per GPU", _cores, "give the machine more", needed=False),
        _machine("memory", "data and agents", _memory, "give the machine more", needed=False),
        _machine(
            "shared-memory",
            "GPU memory",
            _shared_memory,
            "mount a tmpfs there (a container: --shm-size)",
            needed=True,
        ),
        _machine(
            "mininet",
            "nodes, links, topologies",
            _mininet,
            "install the Debian package mininet, or run vagrant/provision.sh",
            needed=True,
        ),
        _kernel("namespaces", "a GPU or a switch each", needed=True),
        _kernel("veth", "cables", needed=True),
        _kernel("bridge", "rails", needed=True),
        _kernel("multipath", "ECMP routes", needed=True),
        _kernel("multipath-hash-seed", "switches that hash unlike each other"),
        _kernel("htb", "link rates", needed=True),
        _kernel("u32", "priority of control packets", needed=True),
        _kernel("packet-socket", "the NIC of an endpoint", needed=True),
        _kernel("packet-ignore-outgoing", "the NIC of an endpoint", needed=True),
        _kernel(
            "clsact",
            "no ICMP errors for transport frames; switch ASIC",
            stands_in="an nftables rule; --switch none",
            needed=True,
        ),
        _kernel("nftables", "filters of your own; stands in for clsact"),
        _kernel(
            "netem",
            "cable delay of ping in uetemu up",
            stands_in="a delay line at endpoints; the switch ASIC for loss, duplication, ...",
        ),
        _kernel("red", "comparing the switch ASIC's marks", stands_in="none; the ASIC marks"),
        _kernel("ebpf", "rail switches that own what they queue, switch ASIC", needed=True),
        _kernel("bpf-filesystem", "counters of the switch ASIC", stands_in="--switch none"),
        _kernel(
            _SWITCH_ASIC,
            "ECN, trimming, load balancing, faults, counters",
            stands_in="--switch none: plain queues",
        ),
        _kernel("vxlan", "stretched rails (subnets=stretched)"),
        _kernel("tbf", "nothing yet"),
        _kernel("vlan", "rails as VLANs (vlans=on)", stands_in="a bridge per rail"),
        _kernel(
            "vrf",
            "tenants of a frontend (isolation=vrf)",
            stands_in="a network namespace for each VRF (isolation=netns)",
        ),
        _kernel(
            "bonding", "two ports of a GPU as one (homing=bond, esi)", stands_in="homing=paths"
        ),
        _kernel("fdb-nexthop", "EVPN multihoming (homing=esi)", stands_in="homing=bond, paths"),
        _kernel(
            "fdb-nexthop-learned",
            "homing=esi: zebra's own entries",
            stands_in="entries marked static on their way to the kernel",
        ),
        _tool("dumpcap", "wireshark-common", "captures", stands_in="tcpdump"),
        _tool("tcpdump", "tcpdump", "captures without dumpcap", stands_in="dumpcap"),
        _tool("mergecap", "wireshark-common", "captures of several nodes"),
        _tool("tshark", "tshark", "reading captures"),
        _tool(
            "dot",
            "graphviz",
            "uetemu graph as SVG",
            stands_in="--format text, dot or mermaid",
            installer="vagrant/provision.sh --with drawings",
        ),
        _tool("mnexec", "mininet", "Mininet's own command mn"),
        _tool(
            "clang",
            "clang",
            "changed switch programs, homing=esi",
            stands_in="homing=bond",
            installer="vagrant/provision.sh --with compiler",
        ),
        _tool("bpftool", "bpftool", "switch ASIC", stands_in="--switch none"),
        _tool("vtysh", "frr", "routing protocols", stands_in="--control-plane static"),
        *(
            _tool(
                command,
                package,
                f"service {name} of a cluster",
                stands_in="its other services",
                installer="" if own else "vagrant/provision.sh --with cluster",
            )
            for name, command, package, own in (
                ("dns", "dnsmasq", "dnsmasq-base", False),
                ("ntp", "chronyd", "chrony", True),
                ("ptp", "ptp4l", "linuxptp", False),
                ("lldp", "lldpd", "lldpd", False),
                ("ssh", "sshd", "openssh-server", False),
                ("nfs", "ganesha.nfsd", "nfs-ganesha-vfs", False),
                ("nbd", "nbdkit", "nbdkit", False),
                ("prometheus", "prometheus", "prometheus", True),
            )
        ),
    )
}
