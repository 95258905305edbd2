"""Slurm on two machines, each a network namespace: its controller is on the first one.

Nobody proves who he is to it (``auth/none``): it is reached from these namespaces alone.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.lab.traffic import within
from tests.harness.runs.ranked_runs import inside, joined_machines

_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
TmpFS={folder}/tmp-%n
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster of two machines, with its controller on ``first`` and its files in ``folder``."""

    folder: Path
    first: str

    def command(self, *words: str, machine: str | None = None) -> list[str]:
        """Return a command of Slurm that finds this cluster: on the first machine, or another."""
        found = f"SLURM_CONF={self.folder / 'slurm.conf'}"
        return ["env", found, *inside(machine or self.first), *words]

    def is_ready(self) -> bool:
        """Return whether both machines wait for jobs."""
        asked = self.command("sinfo", "--noheader", "--format=%T %D")
        done = subprocess.run(asked, capture_output=True, text=True)
        return done.stdout.split() == ["idle", "2"]


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start Slurm's daemons, and end them and all that they have started."""
    with joined_machines() as addresses, ExitStack() as stack:
        first, *_ = addresses
        text = _CONFIGURATION.format(first=first, address=addresses[first], folder=folder)
        for name, address in addresses.items():
            text += f"NodeName={name} NodeAddr={address} CPUs=2 State=UNKNOWN\n"
            (folder / f"tmp-{name}").mkdir()
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(text)
        cluster = SlurmCluster(folder, first)
        daemons: list[tuple[str, ...]] = [(first, "slurmctld", "-D")]
        daemons += [(name, "slurmd", "-D", "-N", name) for name in addresses]
        for machine, *words in daemons:
            log = stack.enter_context((folder / f"{machine}.{words[0]}.out").open("w"))
            command = cluster.command(*words, machine=machine)
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(_end, daemon)
        within(30, cluster.is_ready, "two idle machines")
        yield cluster


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    finally:
        daemon.kill()
        daemon.wait()
