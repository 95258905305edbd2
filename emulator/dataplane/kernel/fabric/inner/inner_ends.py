"""Make the namespace in which the inner ends of all cables meet."""

from __future__ import annotations

from collections.abc import Callable

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.inner import passage
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.offloads import switch_off
from emulator.dataplane.kernel.port_counters import ports_not_ready
from emulator.dataplane.kernel.sysctls import QUIET, SILENT, write_sysctl
from emulator.dataplane.wires import NODE, Wires
from topologies.model import CableEnd


class InnerEnds:
    """The namespace ``wires`` of a lab that is being built."""

    def __init__(self, lab: str, wires: Wires) -> None:
        """Make the namespace.  Raises FileExistsError if its name is taken."""
        self.name = NODE
        self.wires = wires
        self.path = namespaces.path_of(lab, NODE)

        def make() -> None:
            namespaces.make(self.path)
            for name, value in (*QUIET, *SILENT):
                write_sysctl(name, value)
            self.kernel = RouteSocket()

        namespaces.visitor().run(make)
        self._namespace = self.path.open("rb")

    def terminate(self) -> None:
        """Let go of the namespace; it is removed by the lab's name."""
        self.kernel.close()
        self._namespace.close()

    def lay(self, kernel: RouteSocket, end: CableEnd, *, mac: str, mtu: int) -> None:
        """Queue on ``kernel``, which is in the node of ``end``, the veth pair of that port."""
        inner = self.wires.index(end)
        kernel_object.veth(
            kernel,
            (end.port, self.wires.indices[end], mac),
            (self.wires.name(end), inner, _mac(inner)),
            far_namespace=self._namespace.fileno(),
            mtu=mtu,
            subject=f"cable at {end}",
        )

    def configure(self, alias: Callable[[CableEnd], str]) -> None:
        """Bring all inner ends to work, each under the ``alias`` of its port."""
        for end in self.wires.ends.values():
            if not self.wires.here(end.node):
                continue
            index, subject = self.wires.index(end), f"inner end of {end}"
            switch_off(self.kernel, self.wires.name(end))
            passage.queue_qdisc(self.kernel, index, subject=subject)
            kernel_object.raise_link(self.kernel, index, alias=alias(end), subject=subject)
        self.kernel.flush()
        passage.add_filters(self.kernel, self.wires)

    def ready(self) -> bool:
        """Return whether every inner end can send."""
        return not ports_not_ready(self.kernel)


def _mac(index: int) -> str:
    """A locally administered address (IEEE 802, 8.4) of no node: those begin with 12."""
    return bytes((0x06, *index.to_bytes(5, "big"))).hex(":")
