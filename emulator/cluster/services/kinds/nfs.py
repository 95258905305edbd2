"""A shared file system of all machines: NFS by nfs-ganesha on the first storage node.

It serves a directory of the lab without a kernel module.  Clients use libnfs, since a mount would
need the kernel's client: ``nfs-cp FILE nfs://ADDRESS/data/FILE`` writes, ``nfs-cat`` reads.

These are NFSv3, which libnfs takes by default.  By NFSv4 (``?version=4``) libnfs 4.0, which
Debian 12 has, reads files of any size and writes up to some 3,900 octets at once: it encodes each
COMPOUND into 4 KiB (``Failed to encode COMPOUND4args``), so that no larger WRITE leaves it.

nfs-ganesha registers NFSv3 with rpcbind (RFC 1833), and ends without one.  The machine has one of
its own, in a mount namespace with another ``/run``: rpcbind's socket has a fixed path there.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.model import STORAGE

PORT, MOUNT_PORT = 2049, 20048
EXPORT = "/data"
#: Below the service's directory: what is shared.
SHARED = "shared"
_CONFIGURATION = """\
NFS_Core_Param {{
  NFS_Protocols = 3, 4; NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = {address};
  Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false; fsid_device = true;
  mount_path_pseudo = true;
}}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{folder}/recovery"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
  Export_Id = 1; Path = "{folder}/{shared}"; Pseudo = {export}; Protocols = 3, 4;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
"""
#: Arguments: another /run, the address, and the server with its arguments.  The labs' part of /run
#: stays where it is; rpcbind ends with the server.
_BESIDE_RPCBIND = """\
set -e
mount --rbind /run/uetemu "$1/uetemu"
mount --rbind "$1" /run
setpriv --pdeathsig TERM rpcbind -f -h "$2" &
until test -S /run/rpcbind.sock; do kill -0 $! || exit 1; sleep 0.02; done
shift 2
exec "$@"
"""


def _command(place: ServicePlace) -> Sequence[str]:
    folder, run = place.directory, place.directory / "run"
    (folder / SHARED).mkdir(exist_ok=True)
    (folder / "recovery").mkdir(exist_ok=True)
    for name in ("uetemu", "rpcbind"):
        (run / name).mkdir(parents=True, exist_ok=True)
    configuration = folder / "ganesha.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            port=PORT,
            mount_port=MOUNT_PORT,
            address=place.address,
            folder=folder,
            shared=SHARED,
            export=EXPORT,
        )
    )
    return (
        *("unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", _BESIDE_RPCBIND, "nfs", str(run), place.address),
        *("ganesha.nfsd", "-F", "-L", "/dev/stdout", "-f", str(configuration)),
        *("-p", str(folder / "ganesha.pid"), "-N", "NIV_EVENT"),
    )


NFS = KINDS.register(
    ServiceKind(
        name="nfs",
        meaning="file system that all machines share (nfs-ganesha, NFSv3 and NFSv4)",
        network=STORAGE,
        machines=lambda machines: machines.named("storage")[:1],
        command=_command,
        port=PORT,
        programs=(
            NeededProgram(command="ganesha.nfsd", package="nfs-ganesha-vfs"),
            NeededProgram(command="rpcbind", package="rpcbind"),
            NeededProgram(command="nfs-cp", package="libnfs-utils"),
        ),
    )
)
