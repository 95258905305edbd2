"""Test the addressing plan from outside: no MAC is another maker's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.wire.tshark import write
from topologies import addressing as plan
from topologies import catalogue
from topologies.elements import FRONTEND, Role


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_wireshark_takes_no_mac_for_another_makers(tmp_path: Path) -> None:
    stretched = catalogue.load("clos:subnets=stretched,segments=2,hosts=2")
    macs = {port.mac for node in stretched.nodes for port in node.ports}
    macs |= {bridge.mac for node in stretched.nodes for bridge in node.bridges}
    macs |= {plan.switch_mac(role, switch=9, port=1) for role in Role}
    macs |= {plan.router_mac(switch=3), plan.segment_mac(switch=3)}
    macs.add(plan.machine_mac(FRONTEND, machine=5))
    frames = [bytes(6) + bytes.fromhex(mac.replace(":", "")) + bytes(48) for mac in sorted(macs)]
    capture = write(tmp_path / "macs.pcap", frames)
    command = ["tshark", "-N", "m", "-r", str(capture), "-T", "fields", "-e", "eth.src_resolved"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == sorted(macs)
