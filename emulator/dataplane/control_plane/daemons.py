"""FRR's daemons of one switch: started in its namespace, their files in the lab's directory.

``frr/<switch>/`` of the lab holds ``frr.conf`` and ``frr.log``, and for each daemon its pid and the
socket by which ``vtysh`` talks to it.  Nothing is written elsewhere: the daemons find the lab's
directory, in a mount namespace of their own, where FRR has places that no option changes. These are
for what it would write in a crash, and for graceful restarts.  They live in the lab's network
namespaces, so whoever removes the lab ends them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from emulator.dataplane.control_plane.control_plane_choice import EBGP, EVPN, IBGP, ControlPlane
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab_record import Process
from emulator.errors import UserError

PROGRAMS = Path("/usr/lib/frr")
MANAGEMENT, ZEBRA = "mgmtd", "zebra"
VTYSH = Path("/usr/bin/vtysh")
#: FRR gives up root's rights for this user.
USER, GROUP = "frr", "frr"
CONFIGURATION = "frr.conf"
DIRECTORY = "frr"
#: Where FRR looks by default.
FIXED_PLACES = (Path("/run/frr"), Path("/etc/frr"), Path("/var/lib/frr"))
#: It makes a directory in there for what it would log in a crash.
CRASHES = Path("/var/tmp")
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    EBGP: ("bgpd",),
    IBGP: ("ospfd", "bgpd"),
    EVPN: ("bgpd",),
}
LOG = "frr.log"
#: What daemons and vtysh print while they start.
START_LOG = "start.log"
UNSHARE = ("unshare", "--uts", "--mount", "--propagation", "unchanged")
#: Before the endpoints, which may take all of the processors: FRR keeps this machine's time.
PRIORITY = ("nice", "-n", "-10")
#: Ports of a switch on which OSPF can be spoken: a group is joined on each (20 in Linux otherwise).
MOST_MEMBERSHIPS = 4096
IPV6 = Path("/proc/sys/net/ipv6/conf")
#: Of a port: a link-local address at once, and deaf to what routers advertise.
LINK_LOCAL = (
    ("accept_ra", 0),
    ("autoconf", 0),
    ("router_solicitations", 0),
    ("accept_dad", 0),
    ("disable_ipv6", 0),
)
#: A daemon that takes longer (s) to report itself has stopped.
ANSWER_S = 60
LAST_WORDS = 3  # lines of its log, of a daemon that died


def directory_of(lab: Path, switch: str) -> Path:
    """Return where the files of ``switch`` are, given the lab's own directory."""
    return lab / DIRECTORY / switch


def shown_at(lab: Path, switch: str) -> dict[Path, Path]:
    """Return where a command in ``switch`` is to see its directory: ``vtysh`` looks nowhere else.

    Empty for a node without daemons.
    """
    directory = directory_of(lab, switch)
    return {place: directory for place in FIXED_PLACES if place.is_dir() and directory.is_dir()}


def is_managed() -> bool:
    """Return whether this FRR has a management daemon, as releases after Debian 12's have."""
    return (PROGRAMS / MANAGEMENT).exists()


def programs(plane: ControlPlane) -> tuple[str, ...]:
    """The daemons of a switch, in the order in which they start.

    From FRR 10 on zebra takes part of its configuration from ``mgmtd``.
    """
    return (
        *((MANAGEMENT,) if is_managed() else ()),
        ZEBRA,
        *(("bfdd",) if plane.bfd else ()),
        *PROTOCOLS[plane.name],
    )


def require(plane: ControlPlane) -> None:
    """Raise UserError unless FRR is installed."""
    for path in (*(PROGRAMS / name for name in programs(plane)), VTYSH):
        if not path.exists():
            raise UserError(
                f"the control plane {plane.name} needs FRR and there is no {path}: install the "
                "package frr (vagrant/provision.sh does), or take static"
            )


def given_up(neighbour: str = r"[\w.:-]+") -> re.Pattern[str]:
    """Return what BGP or OSPF logs when it no longer counts on ``neighbour``, and why.

    ``neighbour`` is an expression for its address, or the port of an unnumbered session.
    """
    return re.compile(
        rf"ADJCHANGE: neighbor {neighbour}\(.*\) .*\bDown (?P<bgp>.*)"
        rf"|AdjChg: .* NbrIP {neighbour} .* Full -> (?P<ospf>.*)"
    )


def _slaves() -> list[list[str]]:
    """Return the words of each ``mount`` that keeps a switch's own mounts to itself.

    ``unshare`` can do so by itself, but not in a chroot, whose ``/`` is no mount point.
    """
    places = namespaces.mount_points()
    if Path("/") in places:
        return [["--make-rslave", "/"]]
    return [["--make-slave", str(place)] for place in places]


class SwitchDaemons:
    """The daemons of ``switch``, whether this process started them or another."""

    def __init__(self, lab: Path, switch: str, plane: ControlPlane) -> None:
        self.switch = switch
        self.plane = plane
        self.directory = directory_of(lab, switch)

    def prepare(self, configuration: str) -> None:
        """Write what the daemons are to read."""
        self.directory.mkdir(parents=True)
        crashes = self.directory / "tmp"
        crashes.mkdir()
        (self.directory / CONFIGURATION).write_text(configuration)
        (self.directory / "vtysh.conf").write_text("service integrated-vtysh-config\n")
        for path in (self.directory, crashes):
            shutil.chown(path, USER, GROUP)

    def start_command(
        self,
        link_local: Iterable[str] = (),
        library: Path | None = None,
        spaces: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """Return the command that starts the daemons in the switch's namespace.

        It ends when all have their configuration.

        Each daemon goes to the background by itself, when it is ready.  The ports ``link_local``
        get an IPv6 address first, which no other port of a fabric has.  Zebra has ``library``
        preloaded (:mod:`emulator.dataplane.control_plane.static_entries`).  ``spaces`` are the
        namespaces that are its VRFs, by name: they are all that it sees where Linux keeps named
        ones.
        """
        places = {place: self.directory for place in FIXED_PLACES if place.is_dir()}
        places[CRASHES] = self.directory / "tmp"
        steps = [shlex.join(["mount", *words]) for words in _slaves()]
        steps += [
            shlex.join(["mount", "--bind", str(directory), str(place)])
            for place, directory in places.items()
        ]
        steps += self._shown_spaces(spaces or {})
        steps.append(f"echo {self.switch} > /proc/sys/kernel/hostname")
        steps.append(f"echo {MOST_MEMBERSHIPS} > /proc/sys/net/ipv4/igmp_max_memberships")
        for port in link_local:
            settings = IPV6 / port
            steps += [f"echo {value} > {settings / name}" for name, value in LINK_LOCAL]
        for name in programs(self.plane):
            words = self._daemon(name)
            if spaces and name == ZEBRA:
                words.append("--vrfwnetns")
            if library is not None and name == ZEBRA:
                words = ["env", f"LD_PRELOAD={library}", *words]
            steps.append(shlex.join(words))
        steps.append(shlex.join([*self._vtysh(), "--boot"]))
        return [*PRIORITY, *UNSHARE, "sh", "-ec", "\n".join(steps)]

    def _shown_spaces(self, spaces: Mapping[str, Path]) -> list[str]:
        """Return the commands that show the daemons ``spaces`` and no other named namespaces."""
        shown = self.directory / "netns"
        steps = [shlex.join(["mkdir", str(shown)])] if spaces else []
        for name, path in spaces.items():
            place = str(shown / name)
            steps.append(shlex.join(["touch", place]))
            steps.append(shlex.join(["mount", "--bind", str(path), place]))
        if spaces:
            steps.append(shlex.join(["mount", "--rbind", str(shown), str(namespaces.DIRECTORY)]))
        return steps

    def _daemon(self, name: str) -> list[str]:
        where = self.directory
        words = [str(PROGRAMS / name), "--daemon"]
        if name != MANAGEMENT:  # which has no file of its own
            words += ["--config_file", os.devnull]
        words += ["--pid_file", str(where / f"{name}.pid"), "--vty_socket", str(where)]
        words += ["--socket", str(where / "zserv.api"), "--vty_port", "0"]
        if name == "bfdd" and not is_managed():  # later ones have no such socket
            words += ["--bfdctl", str(where / "bfdd.sock")]
        return words

    def _vtysh(self) -> list[str]:
        where = str(self.directory)
        return [str(VTYSH), "--vty_socket", where, "--config_dir", where]

    def configure(self, *lines: str) -> None:
        """Give FRR ``lines`` of configuration.  Raises UserError if it refuses one."""
        self.vtysh("configure terminal", *lines)

    def vtysh(self, *commands: str) -> str:
        """Return what FRR answers to ``commands``, such as ``show bgp summary json``.

        Raises UserError if it refuses one.
        """
        command = " / ".join(commands)
        try:
            answer = subprocess.run(
                [*self._vtysh(), *(word for one in commands for word in ("--command", one))],
                capture_output=True,
                text=True,
                check=False,
                timeout=ANSWER_S,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"vtysh of {self.switch}: no answer within {ANSWER_S} s to {commands[0]!r}; a "
                "daemon of FRR there has stopped or the machine is overloaded"
            ) from None
        if answer.returncode or answer.stdout.startswith("% "):
            stated = (answer.stderr or answer.stdout).strip().splitlines() or ["no answer"]
            raise UserError(f"vtysh of {self.switch}, {command!r}: {stated[0]}")
        return answer.stdout

    def neighbours_alive(self) -> int:
        """Return how many neighbours BFD has up.

        Raises UserError if the daemon does not answer.
        """
        peers = json.loads(self.vtysh("show bfd peers brief json"))
        return sum(peer["status"] == "up" for peer in peers)

    @property
    def start_log(self) -> Path:
        """The file that takes what the daemons print while they start.

        A pipe would never end: daemons of FRR 10 keep their standard output.
        """
        return self.directory / START_LOG

    def last_words(self) -> list[str]:
        """Return the last lines that the daemons logged, or printed if they logged none."""
        printed = self.start_log.read_text(errors="replace") if self.start_log.exists() else ""
        return (self.log() or printed).strip().splitlines()[-LAST_WORDS:]

    def log(self) -> str:
        """Return what the daemons have logged."""
        try:
            return (self.directory / LOG).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def ready_daemons(self) -> int:
        """Return how many daemons have written their process id, which they do when ready."""
        return sum((self.directory / f"{name}.pid").exists() for name in programs(self.plane))

    def check_alive(self) -> None:
        """Raise UserError with its last words if a daemon has died."""
        for name in programs(self.plane):
            pid = 0
            with suppress(OSError, ValueError):
                pid = int((self.directory / f"{name}.pid").read_text())
            if pid == 0 or Process.of(pid) is None:
                words = " / ".join(self.last_words()) or "nothing"
                raise UserError(f"{name} of {self.switch} has died; the last it logged: {words}")
