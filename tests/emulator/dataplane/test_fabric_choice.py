"""Topology files of other tools: each is named by its content, and what is read is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.cli.graph.graph_verb import CONTAINERLAB, find_topology
from emulator.dataplane.fabric_choice import FabricChoice, choose, told
from emulator.errors import UserError
from tests import DATA
from topologies.catalogue import load
from topologies.exports.export_registry import EXPORTS
from topologies.model import Topology

KINDS = {
    "small.topo": "a .topo of htsim, which uetemu writes and does not read",
    "simai.txt": "a topology of SimAI",
    "net.yml": "a network of ASTRA-sim",
    "fabric.clab.yml": "a topology of containerlab, which uetemu writes and does not read",
    "netlab.yml": "a topology of netlab",
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("chosen", [choose, find_topology])
def test_a_file_of_another_tool_is_named(
    chosen: Callable[[str], FabricChoice | Topology], name: str
) -> None:
    with pytest.raises(UserError, match=f"{name} is {KINDS[name]}; give a design such as"):
        chosen(str(DATA / "fabrics" / name))


@pytest.mark.parametrize("write", [EXPORTS["htsim"].write, CONTAINERLAB.write])
def test_what_is_written_for_other_tools_is_named(write: Callable[[Topology], str]) -> None:
    written = write(load("fat_tree:radix=4"))
    assert "which uetemu writes and does not read" in (told("a", written) or "")


def test_any_other_file_is_no_design(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"\xff\xfe notes")
    with pytest.raises(UserError, match=r"notes\.md is a file that is no fabric by its name"):
        choose(str(path))


def test_profiles_are_of_no_other_tool() -> None:
    profiles = list((Path(__file__).parents[3] / "topologies").glob("*.yaml"))
    assert profiles
    for profile in profiles:
        assert told(profile.name, profile.read_text()) is None
    assert told("a", "name: x\nglobal:\n  nodes: 3\ntopology:\n  nodes:\n  kind: x\n") is None
