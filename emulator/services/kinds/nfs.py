"""A shared file system of all machines: NFSv4 by nfs-ganesha on the first storage node.

It serves a directory of the lab without a kernel module.  Clients use libnfs, as
``nfs-cat nfs://ADDRESS/data/FILE?version=4``: a mount would need the kernel's client.  libnfs 4.0,
which Debian 12 has, reads files of any size and fails to write more than some hundred octets.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.services.service_registry import NeededProgram, ServiceKind, ServicePlace, register
from topologies.model import STORAGE

PORT = 2049
EXPORT = "/data"
#: Below the service's directory: what is shared.
SHARED = "shared"
_CONFIGURATION = """\
NFS_Core_Param {{
  NFS_Protocols = 4; NFS_Port = {port}; Bind_addr = {address};
  Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false; fsid_device = true;
}}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{folder}/recovery"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
  Export_Id = 1; Path = "{folder}/{shared}"; Pseudo = {export}; Protocols = 4;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
"""


def _command(place: ServicePlace) -> Sequence[str]:
    folder = place.directory
    (folder / SHARED).mkdir(exist_ok=True)
    (folder / "recovery").mkdir(exist_ok=True)
    configuration = folder / "ganesha.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            port=PORT, address=place.address, folder=folder, shared=SHARED, export=EXPORT
        )
    )
    return (
        *("ganesha.nfsd", "-F", "-L", "/dev/stdout", "-f", str(configuration)),
        *("-p", str(folder / "ganesha.pid"), "-N", "NIV_EVENT"),
    )


NFS = register(
    ServiceKind(
        name="nfs",
        summary="file system that all machines share (nfs-ganesha, NFSv4)",
        network=STORAGE,
        machines=lambda machines: machines.named("storage")[:1],
        command=_command,
        port=PORT,
        programs=(
            NeededProgram(command="ganesha.nfsd", package="nfs-ganesha-vfs"),
            NeededProgram(command="nfs-cp", package="libnfs-utils"),
        ),
    )
)
