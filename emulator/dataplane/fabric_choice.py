"""The fabric that a user requests: a spec of the catalogue, or a file with a fabric profile.

::

    pod:nic_rate=400G       a design, with parameters
    my_fabric.yaml          a file of one's own
    pod.yaml                one of those that come with uetemu, if there is none here of that name
    dc.infragraph.json      an InfraGraph infrastructure; also .infragraph.yaml

Topology files of other tools are known by their content, so that they are named and not misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.switch import switch_choice as choice
from emulator.errors import Misfit, UserError
from topologies import catalogue
from topologies.advice import question
from topologies.model import Topology

if TYPE_CHECKING:
    from topologies.profile.fabric_file import FabricFile

SUFFIXES = (".yaml", ".yml")
INFRAGRAPH = (".infragraph.json", ".infragraph.yaml", ".infragraph.yml")
LONGEST_LAB = 24  # characters of a lab's name
#: What is read in place of files of other tools.
READ = (
    "give a design such as fat_tree:radix=8, a fabric profile (.yaml, uetemu validate --schema) or "
    "an InfraGraph file (.infragraph.json)"
)
#: Octets by which a file is known.
HEAD = 1 << 16
_OF_A_PROFILE = re.compile(r"^(segment|pod|multi_pod|global|networks)\s*:", re.MULTILINE)


def _keys(*names: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"^{name}\s*:", re.MULTILINE) for name in names)


#: Each kind, and what a text of it has, all of it.
_KINDS = {
    "a .topo of htsim, which uetemu writes and does not read": (
        re.compile(r"^Nodes\s+\d+\s*$", re.MULTILINE),
        re.compile(r"^Tiers\s+\d+\s*$", re.MULTILINE),
    ),
    "a topology of SimAI": (re.compile(r"\A\s*(\d+\s+){5}[A-Za-z]\w*\s*\n[\d\s]+\n"),),
    "a network of ASTRA-sim": _keys("topology", "npus_count"),
    "a topology of containerlab, which uetemu writes and does not read": (
        *_keys("topology"),
        re.compile(r"^\s+nodes\s*:", re.MULTILINE),
        re.compile(r"\b(endpoints|kind|kinds)\s*:"),
    ),
    "a topology of netlab": _keys("nodes", "(links|module|provider|defaults)"),
}


@dataclass(frozen=True, kw_only=True)
class FabricChoice:
    """``spec`` is what the user wrote, and ``label`` its short name.

    ``switch`` is a profile's choice of switches, as :mod:`emulator.dataplane.switch.switch_choice`
    reads it; None: it has none.  ``file`` is the profile, if it is one.
    """

    spec: str
    label: str
    topology: Topology
    switch: str | None = None
    file: FabricFile | None = None

    @property
    def transport(self) -> str | None:
        """The transport that a profile names; None: it names none."""
        return None if self.file is None else self.file.transport

    @property
    def lab(self) -> str:
        """A name for a lab of it: ``label`` in the letters that such a name takes."""
        name = re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")
        return name[:LONGEST_LAB].rstrip("-") or "fabric"

    @contextmanager
    def answering(self, error: type[UserError] = Misfit) -> Iterator[None]:
        """Turn an error of the block into a TextError with the file and line of the profile.

        An error of a specification passes as it is.
        """
        try:
            yield
        except error as refusal:
            if self.file is None:
                raise
            from topologies.profile.yaml_lines import TextError

            parameters = refusal.parameters if isinstance(refusal, Misfit) else ()
            problem = self.file.problem(str(refusal), parameters)
            raise TextError([problem], self.spec) from None


def is_file(what: str) -> bool:
    """Return whether ``what`` is the name of a fabric's file, there or not."""
    return what.strip().lower().endswith((*SUFFIXES, *INFRAGRAPH))


def choose(what: str) -> FabricChoice:
    """Return the fabric that ``what`` names.

    Raises UserError or TopologyError, one sentence; of a file with its name and line.
    """
    if not is_file(what):
        if what.partition(":")[0].strip() not in catalogue.DESIGNS and Path(what).is_file():
            raise UserError(told_of_file(Path(what)))
        topology = catalogue.load(what)
        return FabricChoice(spec=what, label=topology.name, topology=topology)
    # What reads files is loaded where there is one.
    from topologies.imports.infragraph_file import LARGEST_JSON, read_infragraph
    from topologies.profile import fabric_file
    from topologies.profile.yaml_lines import LARGEST_TEXT

    name = what.strip()
    if name.lower().endswith(INFRAGRAPH):
        topology = read_infragraph(_text(name, LARGEST_JSON), name)
        label = Path(name).name.lower().rpartition(".infragraph.")[0]
        return FabricChoice(spec=name, label=label or "infragraph", topology=topology)
    text = _text(name, LARGEST_TEXT)
    if (stated := told(name, text)) is not None:
        raise UserError(stated)
    read = fabric_file.read(text, name)
    label = Path(name).stem.lower()
    chosen = FabricChoice(
        spec=name, label=label, topology=read.topology, switch=read.switch, file=read
    )
    with chosen.answering(UserError):
        control_plane.of(chosen.topology)
        if chosen.switch is not None:
            choice.requested(chosen.switch)
    return chosen


def shipped() -> list[str]:
    """Names of the profiles that come with uetemu."""
    return sorted(
        each.name for each in resources.files("topologies").iterdir() if is_file(each.name)
    )


def _text(name: str, most: int) -> str:
    path = Path(name)
    try:
        if not path.exists() and name in shipped():
            return (resources.files("topologies") / name).read_text(encoding="utf-8")
        with path.open(encoding="utf-8") as file:
            return file.read(most + 1)  # what is longer is refused unread
    except UnicodeDecodeError:
        raise UserError(
            f"{name} is not text in UTF-8; take a fabric profile or InfraGraph"
        ) from None
    except OSError as error:
        asked = question(path.name, shipped(), likeness=0.8)
        hint = f"; {asked} It comes with uetemu" if asked else ""
        raise UserError(f"{name} cannot be read: {error.strerror}{hint}") from None


def told(name: str, text: str) -> str | None:
    """Return the sentence on the file ``name``, if ``text`` is of another tool."""
    if _OF_A_PROFILE.search(text):
        return None
    for kind, signs in _KINDS.items():
        if all(sign.search(text) for sign in signs):
            return f"{name} is {kind}; {READ}"
    return None


def told_of_file(path: Path) -> str:
    """Return the sentence on the file at ``path``, whose name is of nothing that is read here."""
    try:
        with path.open("rb") as file:
            text = file.read(HEAD).decode("utf-8", "replace")
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return told(str(path), text) or f"{path} is a file that is no fabric by its name; {READ}"
