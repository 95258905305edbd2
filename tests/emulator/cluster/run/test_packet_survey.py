"""A survey of packets finds those that are of another network."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from scapy.utils import wrpcap

from emulator.cluster.run.packet_survey import foreign_ports, survey
from emulator.cluster.services import kinds
from emulator.errors import UserError
from topologies.cluster import MODEL_PORT

OWN = [IPv4Network("100.80.0.0/13")]


def written(folder: Path, *packets: Packet) -> Path:
    path = folder / "seen.pcap"
    wrpcap(str(path), [Ether() / packet for packet in packets])
    return path


def test_packets_of_the_network_and_broadcasts_are_its_own(tmp_path: Path) -> None:
    found = survey(
        written(
            tmp_path,
            IP(src="100.80.0.2", dst="100.80.0.3") / ICMP(),
            IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67),
            ARP(psrc="100.80.0.2", pdst="100.80.0.3"),
        ),
        OWN,
    )
    assert sum(found.packets.values()) == 3
    assert not found.foreign


@pytest.mark.parametrize(
    ("source", "destination"), [("10.0.1.2", "100.80.0.3"), ("100.80.0.2", "100.72.0.5")]
)
def test_a_packet_of_another_network_is_foreign(
    tmp_path: Path, source: str, destination: str
) -> None:
    packet = IP(src=source, dst=destination) / UDP(sport=1, dport=4791)
    found = survey(written(tmp_path, packet), OWN)
    assert sum(found.foreign.values()) == 1


def test_a_port_of_another_network_is_foreign_at_any_address(tmp_path: Path) -> None:
    ends = IP(src="100.80.0.2", dst="100.80.0.3")
    path = written(tmp_path, ends / TCP(sport=40_000, dport=2049), ends / TCP(dport=29_500))
    found = survey(path, OWN, {2049, 4791})
    assert sum(found.foreign.values()) == 1
    assert (found.by_port[2049], found.by_port[29_500]) == (1, 1)


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.pcap"
    path.write_text("no capture")
    with pytest.raises(UserError, match="cannot be read by tshark"):
        survey(path, OWN)


def test_training_storage_and_model_servers_have_no_place_on_management() -> None:
    assert {4791, 4793, kinds.NFS_PORT, MODEL_PORT} <= foreign_ports()
    assert not {22, kinds.RENDEZVOUS_PORT, kinds.files.port} & foreign_ports()
