"""Topology files of other tools, known by their content, so that they are named and not misread."""

from __future__ import annotations

import re
from pathlib import Path

#: What is read in their place.
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
