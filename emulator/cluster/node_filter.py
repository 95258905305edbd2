"""Filters of packets in a node of a lab, by nftables."""

from __future__ import annotations

import subprocess

from emulator.dataplane.lab import Lab
from emulator.errors import UserError

ANSWER_S = 20.0


def nft(lab: Lab, node: str, *arguments: str, text: str = "") -> str:
    """Run ``nft`` in ``node`` with ``text`` as its input; return what it prints.

    Raises UserError with its reason if it refuses.
    """
    with lab.popen(
        node,
        ["nft", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(text, timeout=ANSWER_S)
    if process.returncode:
        stated = err.strip().splitlines() or ["no reason"]
        raise UserError(f"the filter of {node} cannot be set or read: {stated[0]}")
    return str(out)
