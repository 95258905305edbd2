"""The library that marks zebra's entries of next hops: it changes those, and nothing else."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl import RTM_DELNEIGH, RTM_NEWNEIGH

from emulator.dataplane.control_plane import static_entries
from emulator.dataplane.control_plane.control_plane_choice import parse
from emulator.dataplane.control_plane.daemons import PROGRAMS, SwitchDaemons
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.kernel_objects import (
    NDA_DST,
    NDA_LLADDR,
    NDA_NH_ID,
    NDMSG,
    NTF_EXT_LEARNED,
    NUD_NOARP,
    NUD_REACHABLE,
)
from emulator.dataplane.kernel.netlink import HEADER, U32, attribute
from emulator.errors import UserError
from topologies import catalogue

HOMED = "clos:hosts=1,gpus_per_host=2,nic_ports=2,spines=2,subnets=stretched,homing=esi"
STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched"
#: argv: port of the receiver, hexadecimal requests that are sent as one batch
SEND = """
import socket, sys
out = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)  # NETLINK_USERSOCK
out.sendmsg([bytearray.fromhex(sys.argv[2])], [], 0, (int(sys.argv[1]), 0))
"""
MAC = attribute(NDA_LLADDR, bytes(6))
NEXTHOP = attribute(NDA_NH_ID, U32(7))
TUNNEL = attribute(NDA_DST, bytes(4))


def entry(
    kind: int = RTM_NEWNEIGH,
    family: int = socket.AF_BRIDGE,
    attributes: bytes = MAC + NEXTHOP,
    state: int = NUD_REACHABLE,
) -> bytes:
    body = NDMSG.pack(family, 0, 0, 5, state, NTF_EXT_LEARNED, 0) + attributes
    return HEADER.pack(HEADER.size + len(body), kind, 0, 1, 0) + body


def sent(requests: Sequence[bytes], library: Path) -> bytes:
    """Return what arrives of ``requests`` from a process that has the library."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_USERSOCK) as here:
        here.bind((0, 0))
        here.settimeout(30)
        port, _ = here.getsockname()
        subprocess.run(
            [sys.executable, "-c", SEND, str(port), b"".join(requests).hex()],
            env=os.environ | {"LD_PRELOAD": str(library)},
            check=True,
        )
        return here.recv(1 << 16)


def test_entries_of_next_hops_become_static_and_all_else_arrives_as_it_was(tmp_path: Path) -> None:
    others = [
        entry(attributes=MAC + TUNNEL),
        entry(kind=RTM_DELNEIGH),
        entry(family=socket.AF_INET),
        entry(attributes=b""),
        HEADER.pack(HEADER.size + 4, RTM_NEWNEIGH, 0, 1, 0) + bytes(4),  # cut short
    ]
    marked = entry(state=NUD_REACHABLE | NUD_NOARP)
    with static_entries.built(tmp_path) as library:
        assert sent([entry(), *others, entry()], library) == b"".join([marked, *others, marked])
        cut = HEADER.pack(4096, RTM_NEWNEIGH, 0, 1, 0) + entry()  # says more than there is
        assert sent([cut], library) == cut


def test_library_is_for_zebra_and_no_other_daemon(tmp_path: Path) -> None:
    plane = parse("evpn:bfd=off")
    assert plane is not None
    switch = SwitchDaemons(tmp_path, "rail0", plane)
    plain = switch.start_command()[-1].splitlines()
    preloaded = switch.start_command(library=Path("/cache/x.so"))[-1].splitlines()
    changed = [(a, b) for a, b in zip(plain, preloaded, strict=True) if a != b]
    assert changed == [
        (line, f"env LD_PRELOAD=/cache/x.so {line}")
        for line in plain
        if line.startswith(str(PROGRAMS / "zebra"))
    ]
    assert len(changed) == 1


@pytest.mark.parametrize(("spec", "works"), [(HOMED, True), (STRETCHED, False), (STRETCHED, True)])
def test_zebra_has_no_library_where_the_kernel_or_the_fabric_does_without(
    monkeypatch: pytest.MonkeyPatch, spec: str, works: bool
) -> None:
    monkeypatch.setattr(capabilities, "has", lambda name: works)
    with static_entries.library(catalogue.load(spec)) as library:
        assert library is None


def test_library_that_does_not_load_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(capabilities, "has", lambda name: False)
    homed = catalogue.load(HOMED)
    with static_entries.library(homed) as library:
        assert library is not None
        broken = tmp_path / "broken.so"
        broken.write_bytes(library.read_bytes()[:100])
    monkeypatch.setattr(static_entries, "built", lambda: nullcontext(broken))
    with pytest.raises(UserError, match=r"broken\.so \(.*\): set UETEMU_CACHE"):
        static_entries.library(homed).__enter__()


def test_kernel_that_needs_the_library_is_named_where_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(capabilities, "has", lambda name: False)
    homed = catalogue.load(HOMED)
    static_entries.require(homed)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    static_entries.require(catalogue.load(STRETCHED))
    with pytest.raises(UserError, match=r"only if they are static .*: run .* --with compiler"):
        static_entries.require(homed)
