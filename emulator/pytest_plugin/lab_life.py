"""A lab for as long as a test needs it, or longer if the test fails and its lab is to be kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from emulator.dataplane import cleanup
from emulator.dataplane.lab import Lab
from emulator.pytest_plugin.kept_labs import LABS
from topologies.model import Topology


@contextmanager
def built(name: str, topology: Topology, **settings: Any) -> Iterator[Lab]:
    """Yield the lab that ``Lab.create`` makes; it is gone behind the block.

    With ``--uetemu-keep-lab`` or ``--uetemu-shell`` it stays if the test fails
    (:mod:`emulator.pytest_plugin.kept_labs`).
    """
    if not LABS.requested:
        with Lab.create(name, topology, **settings) as lab:
            yield lab
        return
    made = Lab.create(name, topology, **settings | {"persistent": True})
    LABS.up.append(name)
    try:
        yield made
    except (Exception, pytest.fail.Exception):
        LABS.left.append(name)
        raise
    finally:
        LABS.up.remove(name)
        made.close()
        if name not in LABS.left and name not in LABS.kept and cleanup.exists(name):
            cleanup.take_down(name)
