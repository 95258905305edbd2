"""``mpirun`` with ranks on this machine, or on two namespaces that are machines of their own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.runs.processes import until, user_environment

_UETEMU = (sys.executable, "-c", "import sys; from emulator.cli.main import main; sys.exit(main())")
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: Enters a machine as ``ssh`` would: its network, its name, and places that no other one sees.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
own="for place in PLACES; do mount -t tmpfs none \\$place; done"
exec nsenter --net=/run/netns/PREFIX-$host unshare --uts --mount \\
    sh -c "hostname PREFIX-$host && $own && $*"
"""
_PLACES = ("/var/tmp", "/dev/shm", "/run/netns", "/run/uetemu")


def mpirun(ranks: int, *words: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Begin ``uetemu`` with ``words`` as so many ranks on this machine."""
    return subprocess.Popen(
        ["mpirun", "--oversubscribe", *options, "-n", str(ranks), *_UETEMU, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=user_environment() | _AS_ROOT,
        start_new_session=True,
    )


def pid_of_rank(launcher: subprocess.Popen[str], rank: int) -> int:
    """Return the process of a rank that ``launcher`` has started on this machine."""

    def find() -> dict[str, int] | None:
        for children in Path(f"/proc/{launcher.pid}/task").glob("*/children"):
            for pid in map(int, children.read_text().split()):
                environment = Path(f"/proc/{pid}/environ").read_text()
                if f"\0OMPI_COMM_WORLD_RANK={rank}\0" in environment:
                    return {"pid": pid}
        return None

    return int(until(find)["pid"])


def sentences(errors: str) -> list[str]:
    """Return the lines of uetemu itself, without what the launcher adds, and without progress."""
    lines = [line for line in errors.splitlines() if line.startswith("uetemu: ")]
    return [line for line in lines if not re.match(r"uetemu: \d+ of \d+ (trials|seeds)", line)]


class Machines:
    """Two namespaces, joined by a cable, as machines with one rank and two of a job."""

    def __init__(self, folder: Path, private: Path) -> None:
        self._prefix = f"uetest{os.getpid()}"
        self._addresses = ("10.77.0.1", "10.77.0.2")
        self._agent = folder / "agent"
        places = " ".join(map(str, (*_PLACES, private)))
        self._agent.write_text(_AGENT.replace("PREFIX", self._prefix).replace("PLACES", places))
        self._agent.chmod(0o755)

    def name(self, number: int) -> str:
        """Return the host name of a machine: 0 or 1."""
        return f"{self._prefix}-{self._addresses[number]}"

    def make(self) -> None:
        """Make both, and the cable between them."""
        for number in range(2):
            _ip("netns", "add", self.name(number))
            _ip("-n", self.name(number), "link", "set", "lo", "up")
        _ip("-n", self.name(0), "link", "add", "e0", "type", "veth", "peer", "name", "e0",
            "netns", self.name(1))  # fmt: skip
        for number, address in enumerate(self._addresses):
            _ip("-n", self.name(number), "addr", "add", f"{address}/24", "dev", "e0")
            _ip("-n", self.name(number), "link", "set", "e0", "up")

    def remove(self) -> None:
        """Remove both; nothing remains of the cable."""
        for number in range(2):
            subprocess.run(["ip", "netns", "del", self.name(number)], capture_output=True)

    def mpirun(self, *words: str) -> subprocess.Popen[str]:
        """Begin ``uetemu`` as three ranks over TCP: one beside the launcher, two on the other."""
        first, second = self._addresses
        network = f"{first}/24"
        launcher = [
            *("mpirun", "--mca", "plm_rsh_agent", str(self._agent), "--mca", "btl", "tcp,self"),
            *("--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network),
            *("--host", f"{first}:1,{second}:2", "-n", "3", "-x", "PYTHONPATH"),
        ]
        host = f'hostname {self.name(0)}; exec "$@"'
        return subprocess.Popen(
            [*("nsenter", f"--net=/run/netns/{self.name(0)}", "unshare", "--uts"),
             *("sh", "-c", host, "sh", *launcher, *_UETEMU, *words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=user_environment() | _AS_ROOT,
            start_new_session=True,
        )  # fmt: skip


@contextmanager
def two_machines(folder: Path, private: Path) -> Iterator[Machines]:
    """Make two machines; the second does not see the files of the first below ``private``."""
    machines = Machines(folder, private)
    try:
        machines.make()
        yield machines
    finally:
        machines.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
