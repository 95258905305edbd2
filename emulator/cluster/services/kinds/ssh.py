"""Logins over the management network, by sshd, with a key pair of the cluster's own.

The private key is ``id_ed25519`` in the directory of the service; no account's keys are touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.model import MANAGEMENT

PORT = 22
KEY, HOST_KEY = "id_ed25519", "host_key"
SSHD = "/usr/sbin/sshd"  # which takes no other name than its whole path
#: Where sshd keeps the child that has no rights; it must be empty and root's.
PRIVILEGES = Path("/run/sshd")


def _command(place: ServicePlace) -> Sequence[str]:
    folder = place.directory
    for name in (KEY, HOST_KEY):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
    (folder / "authorized_keys").write_text((folder / f"{KEY}.pub").read_text())
    PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    configuration = folder / "sshd_config"
    configuration.write_text(
        f"ListenAddress {place.address}:{PORT}\n"
        f"HostKey {folder / HOST_KEY}\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nUsePAM no\nPrintMotd no\nPidFile none\n"
        "Subsystem sftp internal-sftp\n"
    )
    return (SSHD, "-D", "-e", "-f", str(configuration))


SSH = KINDS.register(
    ServiceKind(
        name="ssh",
        meaning="logins with the cluster's own key (sshd)",
        network=MANAGEMENT,
        machines=lambda machines: machines.within(MANAGEMENT),
        command=_command,
        port=PORT,
        programs=(
            NeededProgram(command=SSHD, package="openssh-server"),
            NeededProgram(command="ssh-keygen", package="openssh-client"),
        ),
    )
)
