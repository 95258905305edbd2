"""FRR configurations of each switch, rendered from the templates beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.speakers import speakers
from topologies.model import Topology

if TYPE_CHECKING:
    from jinja2 import Environment

#: Equal next hops of one route: what FRR of Debian was built for (``--enable-multipath``).
MOST_PATHS = 256


def render(
    topology: Topology, plane: ControlPlane, *, logs: Mapping[str, Path]
) -> Mapping[str, str]:
    """``frr.conf`` of every switch, by its name; it is to log to its file of ``logs``.

    Raises UserError for a fabric in which ``plane`` cannot be spoken.
    """
    template = _templates().get_template(f"{plane.name}.conf.j2")
    return {
        name: template.render(
            fabric=topology.name, plane=plane, me=me, log=logs[name], most_paths=MOST_PATHS
        )
        for name, me in speakers(topology, plane).items()
    }


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("emulator.dataplane.control_plane"),
        undefined=StrictUndefined,
        autoescape=False,  # it is no HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
