"""The condition of a fabric: cables without carrier or with silent faults, and dead GPUs.

A cable is dead while anything holds it down: itself, a switch at one of its ends, a NIC.  So a
switch that comes up again does not revive a cable that was pulled for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.run.faults.fault_elements import Element, element
from topologies.model import Link, Topology, TopologyError


@dataclass(frozen=True)
class Condition:
    """The elements that are ``down``, in the order of their failures, and the silent ``faults``.

    Faults are those of cables, both ways, but for a black hole that is ``one_way``.
    """

    down: tuple[Element, ...] = ()
    faults: Mapping[Link, Faults] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return not self.down and not self.faults

    @property
    def dead(self) -> frozenset[Link]:
        """The cables without carrier."""
        return frozenset(link for one in self.down for link in one.links)

    @property
    def dead_gpus(self) -> frozenset[str]:
        """Return the GPUs whose processes have ended, whatever their cables have."""
        return frozenset(name for one in self.down for name in one.gpus)

    @property
    def separates(self) -> bool:
        """Return whether anything may be cut off: a cable is impassable, or a GPU dead."""
        return bool(self.impassable or self.dead_gpus)

    @property
    def impassable(self) -> frozenset[Link]:
        """The cables that no transport comes over: dead, or a black hole, if only one way."""
        black = {link for link, faults in self.faults.items() if faults.black_hole}
        return self.dead | black

    def of(self, link: Link) -> Faults:
        """Return the faults of ``link`` at the switch ports at its ends.

        A dead cable swallows all.
        """
        faults = self.faults.get(link, NONE)
        return replace(faults, unplugged=True) if link in self.dead else faults

    def __hash__(self) -> int:
        return hash((self.down, frozenset(self.faults.items())))

    def lowered(self, one: Element) -> Condition:
        return replace(self, down=(*self.down, one))

    def raised(self, one: Element) -> Condition:
        return replace(self, down=tuple(other for other in self.down if other != one))

    def faulted(self, links: tuple[Link, ...], **changes: Any) -> Condition:
        """Return this condition with ``changes`` to the silent faults of ``links``."""
        faults = dict(self.faults)
        for link in links:
            after = replace(faults.pop(link, NONE), **changes)
            if after != NONE:
                faults[link] = after
        return replace(self, faults=faults)

    def healed(self, links: tuple[Link, ...]) -> Condition:
        """Return the condition without silent faults of ``links``."""
        left = {link: faults for link, faults in self.faults.items() if link not in links}
        return replace(self, faults=left)

    def words(self) -> list[str]:
        """One clause for each thing that is not as it should be."""
        lines = [f"{one} {'dead' if one.mortal else 'down'}" for one in self.down]
        for link, faults in self.faults.items():
            reported = " ".join(described(faults, link))
            lines.append(f"link {link.a} {reported}")
        return lines

    def as_data(self) -> dict[str, object]:
        """Return the condition as JSON has it; :func:`from_data` reads it."""
        return {
            "down": [[one.kind, one.name] for one in self.down],
            "faults": {str(link.a): asdict(faults) for link, faults in self.faults.items()},
        }


SOUND = Condition()


def from_data(data: Mapping[str, Any], topology: Topology) -> Condition:
    """Return what :meth:`Condition.as_data` wrote.  Raises :class:`UserError` if it is not that."""
    try:
        return Condition(
            tuple(element(kind, name, topology) for kind, name in data["down"]),
            {
                element("link", name, topology).links[0]: Faults(**fields)
                for name, fields in data["faults"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, TopologyError) as wrong:
        raise UserError(f"the record of the faults cannot be read ({wrong})") from None


def described(faults: Faults, link: Link) -> list[str]:
    """``faults`` of ``link`` in the words of the grammar."""
    way = f"={faults.one_way}" if faults.one_way else ""
    reported = [f"blackhole{way}"] if faults.black_hole else []
    if faults.rate != 1:
        reported.append(f"rate={faults.rate * link.rate_bps / 1e9:g}Gbps")
    if faults.scaled:
        reported.append("thresholds=scaled")
    if faults.loss:
        reported.append(f"loss={100 * faults.loss:g}%")
    if faults.bit_errors:
        reported.append(f"ber={faults.bit_errors:g}")
    if faults.corruption:
        reported.append(f"corrupt={100 * faults.corruption:g}%")
    return reported
