"""LLDP on every machine and switch, by lldpd: who is plugged in where (IEEE 802.1AB)."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)

SOCKET = "lldpd.sock"
#: Seconds between what a port sends.
INTERVAL_S = 1
#: Run in the namespace of host names that unshare makes: lldpd reports the host's name.
_SCRIPT = 'hostname "$1" && shift && exec "$@"'


def _command(place: ServicePlace) -> Sequence[str]:
    folder = place.directory
    configuration = folder / "lldpd.conf"
    configuration.write_text(
        f"configure lldp tx-interval {INTERVAL_S}\nconfigure lldp portidsubtype ifname\n"
    )
    return (
        *("unshare", "--uts", "sh", "-c", _SCRIPT, "sh", place.machine),
        *("lldpd", "-d", "-u", str(folder / SOCKET), "-P", str(folder / "lldpd.pid")),
        *("-O", str(configuration)),
    )


LLDP = KINDS.register(
    ServiceKind(
        name="lldp",
        meaning="who is plugged in where, on machines and switches (lldpd)",
        network=None,
        machines=lambda machines: machines.nodes(),
        command=_command,
        programs=(NeededProgram(command="lldpd", package="lldpd"),),
    )
)
