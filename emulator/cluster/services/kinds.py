"""Every kind of service: a function that writes what it reads and returns what to run.

The place's directory is the service's own, for configuration and data; it goes with the lab.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.nvme_tcp.wire.layouts import IO_PORT
from emulator.cluster.services import llm_server, redfish, rendezvous_store
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import KINDS, NeededProgram, ServiceKind, ServicePlace
from emulator.errors import UserError
from topologies.addressing import PORT_PREFIXES
from topologies.cluster import MODEL_PORT
from topologies.model import FRONTEND, MANAGEMENT, STORAGE
from topologies.registry import parameter

Command = Callable[[ServicePlace], Sequence[str]]
Machines = Callable[[MachineMap], Sequence[str]]
HEAD = "head"
_UETEMU = (sys.executable, "-P", "-c", "from emulator.cli.main import main; main()")


def _service(
    name: str,
    meaning: str,
    network: str | None,
    machines: str | Machines,
    port: int | None = None,
    *programs: NeededProgram,
    parameters: type | None = None,
) -> Callable[[Command], ServiceKind]:
    """Register the function below as a service on ``machines``: those, or of that name."""

    def registered(command: Command) -> ServiceKind:
        chosen: Machines = (
            (lambda found: found.named(machines)) if isinstance(machines, str) else machines
        )
        kind = ServiceKind(
            name=name,
            meaning=meaning,
            network=network,
            machines=chosen,
            command=command,
            port=port,
            programs=programs,
            parameters=parameters,
        )
        return KINDS.register(kind, level=2)

    return registered


def _managed(machines: MachineMap) -> Sequence[str]:
    return machines.within(MANAGEMENT)


def _first_storage(machines: MachineMap) -> Sequence[str]:
    return machines.storage[:1]


# -- block storage of every storage node -----------------------------------------------------------
# A node has one namespace or export, a sparse file in the service's directory.

#: That file.
DISK = "disk.img"
SIZE_OCTETS, BLOCK_OCTETS = 2**30, 4096


def check_whole_blocks(**octets: int) -> None:
    """Raise UserError for one of ``octets``, by name, that is no multiple of a block."""
    for name, number in octets.items():
        if number % BLOCK_OCTETS:
            raise UserError(
                f"{name} is {number} octets, no whole blocks of {BLOCK_OCTETS}; take a multiple"
            )


def _disk_octets(place: ServicePlace, refused: str) -> int:
    octets = int(place.parameters["size"])
    if octets < BLOCK_OCTETS or octets % BLOCK_OCTETS:
        raise UserError(refused.format(octets=octets, block=BLOCK_OCTETS))
    return octets


def subsystem_of(machine: str) -> str:
    """Return the NQN of the subsystem that the storage node ``machine`` serves."""
    return f"nqn.2026-01.example.uetemu:{machine}"


@dataclass(frozen=True, kw_only=True)
class NamespaceSize:
    size: float = parameter(SIZE_OCTETS, help="octets of the namespace of each storage node")


@_service(
    "nvme",
    "block storage by NVMe/TCP, a subsystem of each storage node",
    STORAGE,
    "storage",
    IO_PORT,
    parameters=NamespaceSize,
)
def nvme(place: ServicePlace) -> Sequence[str]:
    """Run uetemu's own target; hosts are ``uetemu nvme``, and Linux by ``nvme connect``."""
    octets = _disk_octets(
        place, "nvme.size is {octets} octets; take a multiple of the block, {block}"
    )
    return (
        *_UETEMU,
        *("nvme", "target", str(place.directory / DISK), "--size", str(octets)),
        *("--block-size", str(BLOCK_OCTETS), "--subsystem", subsystem_of(place.machine)),
        *("--listen", f"{place.address}:{IO_PORT}", "--format", "json"),
    )


# -- names, files and cables -----------------------------------------------------------------------


@_service(
    "dns",
    "names of all machines, and their addresses by DHCP (dnsmasq)",
    MANAGEMENT,
    HEAD,
    53,
    NeededProgram(command="dnsmasq", package="dnsmasq-base"),
)
def dns(place: ServicePlace) -> Sequence[str]:
    """Serve DNS and DHCP of the management network.

    ``h0`` is the machine's management address, ``h0.front`` and ``h0.stor`` are those in the other
    networks.  DHCP gives each machine the address that it has, by its MAC.
    """
    hosts, reserved = place.directory / "hosts", place.directory / "reserved"
    machines = place.machines
    with hosts.open("w") as file:
        for machine, networks in machines.addresses.items():
            for network, address in networks.items():
                name = machine if network == MANAGEMENT else f"{machine}.{PORT_PREFIXES[network]}"
                file.write(f"{address} {name}\n")
    with reserved.open("w") as file:
        for machine in machines.within(MANAGEMENT):
            port = machines.topology.network_named(MANAGEMENT).node(machine).ports[0]
            file.write(f"{port.mac},{machines.address(machine, MANAGEMENT)},{machine}\n")
    subnet = machines.subnet(place.machine, MANAGEMENT)
    return (
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-"),
        *("--no-resolv", "--no-hosts", "--local=//", "--user=root", f"--addn-hosts={hosts}"),
        *(f"--listen-address={place.address}", "--bind-interfaces", "--except-interface=lo"),
        *("--pid-file=", f"--dhcp-leasefile={place.directory / 'leases'}", "--log-dhcp"),
        *(f"--dhcp-range={subnet.network_address},static,{subnet.netmask}", "--dhcp-authoritative"),
        f"--dhcp-hostsfile={reserved}",
    )


#: Below the directory of ``files``: what it offers.
OFFERED = "offered"


@_service(
    "files", "HTTP server of files that are rolled out to all machines", MANAGEMENT, HEAD, 8000
)
def files(place: ServicePlace) -> Sequence[str]:
    offered = place.directory / OFFERED
    offered.mkdir(exist_ok=True)
    return (
        *(sys.executable, "-m", "http.server", "8000"),
        *("--bind", place.address, "--directory", str(offered)),
    )


SOCKET = "lldpd.sock"
#: Run in the namespace of host names that unshare makes: lldpd reports the host's name.
_WITH_NAME = 'hostname "$1" && shift && exec "$@"'


@_service(
    "lldp",
    "who is plugged in where, on machines and switches (lldpd)",
    None,
    lambda machines: machines.nodes(),
    None,
    NeededProgram(command="lldpd", package="lldpd"),
)
def lldp(place: ServicePlace) -> Sequence[str]:
    """Send LLDP (IEEE 802.1AB) from each port every second."""
    folder = place.directory
    configuration = folder / "lldpd.conf"
    configuration.write_text("configure lldp tx-interval 1\nconfigure lldp portidsubtype ifname\n")
    return (
        *("unshare", "--uts", "sh", "-c", _WITH_NAME, "sh", place.machine),
        *("lldpd", "-d", "-u", str(folder / SOCKET), "-P", str(folder / "lldpd.pid")),
        *("-O", str(configuration)),
    )


# -- telemetry over the management network ---------------------------------------------------------

METRICS_PORT = 9477  # as uetemu metrics has it by default
PROMETHEUS_PORT = 9090


@_service(
    "metrics",
    "ports of the backend as OpenMetrics (uetemu metrics)",
    MANAGEMENT,
    HEAD,
    METRICS_PORT,
)
def metrics(place: ServicePlace) -> Sequence[str]:
    uetemu = (sys.executable, "-c", "from emulator.cli.main import main; main()")
    return (*uetemu, "metrics", place.cluster, "--listen", f"{place.address}:{METRICS_PORT}")


@_service(
    "prometheus",
    "Prometheus, which collects the metrics of the head node",
    MANAGEMENT,
    "telemetry",
    PROMETHEUS_PORT,
    NeededProgram(command="prometheus", package="prometheus", provisioned=False),
)
def prometheus(place: ServicePlace) -> Sequence[str]:
    """Scrape the head node each second of the wall clock, and keep what came in the folder."""
    heads = place.machines.named(HEAD)
    targets = [f"{place.machines.address(one, MANAGEMENT)}:{METRICS_PORT}" for one in heads]
    own = f"{place.address}:{PROMETHEUS_PORT}"
    jobs = {"uetemu": targets, "prometheus": [own]}
    configuration = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": at}]} for job, at in jobs.items()
        ],
    }
    file = place.directory / "prometheus.yml"
    file.write_text(json.dumps(configuration, indent=1))  # JSON is YAML
    return (
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={place.directory / 'data'}",
        f"--web.listen-address={own}",
    )


# -- model servers, which users reach over the frontend --------------------------------------------

#: Of the frontend's time, in seconds, unless the user says otherwise.
TTFT_S, ITL_S = 0.020, 0.005


@dataclass(frozen=True, kw_only=True)
class AnswerTimes:
    ttft: float = parameter(TTFT_S, help="time to the first token (s)")
    itl: float = parameter(ITL_S, help="time between tokens (s)")


@_service(
    "llm",
    "stand-in for a model server, with OpenAI's HTTP API",
    FRONTEND,
    lambda machines: machines.servers,
    MODEL_PORT,
    parameters=AnswerTimes,
)
def llm(place: ServicePlace) -> Sequence[str]:
    ttft_s = float(place.parameters["ttft"]) * place.dilation
    itl_s = float(place.parameters["itl"]) * place.dilation
    return (
        *(sys.executable, "-m", llm_server.__name__, place.address, str(MODEL_PORT)),
        *("--ttft", f"{ttft_s:g}", "--itl", f"{itl_s:g}"),
    )


# -- more storage ----------------------------------------------------------------------------------

#: NBD's port, registered at IANA.
NBD_PORT = 10809


@dataclass(frozen=True, kw_only=True)
class ExportSize:
    size: float = parameter(SIZE_OCTETS, help="octets of the export of each storage node")


@_service(
    "nbd",
    "block storage by NBD (nbdkit), an export of each storage node",
    STORAGE,
    "storage",
    NBD_PORT,
    NeededProgram(command="nbdkit", package="nbdkit"),
    NeededProgram(command="nbdcopy", package="libnbd-bin"),
    parameters=ExportSize,
)
def nbd(place: ServicePlace) -> Sequence[str]:
    """Run nbdkit; clients are ``nbdinfo``, ``nbdcopy``, fio and Linux's ``nbd-client``.

    nbdkit 1.32 asks for SIGTERM at the death of its parent (``prctl(PR_SET_PDEATHSIG)``), also
    without ``--exit-with-parent``.  The parent is the thread that started it, which here ends at
    once; so a shell stands between them, and ends with nbdkit.
    """
    octets = _disk_octets(place, "nbd.size is {octets} octets; take a multiple of {block}")
    disk = place.directory / DISK
    with disk.open("wb") as file:
        file.truncate(octets)
    nbdkit = ("nbdkit", "-f", "-i", place.address, "-p", str(NBD_PORT), "file", str(disk))
    return ("sh", "-c", '"$@" & wait $!', "nbd", *nbdkit)


NFS_PORT, MOUNT_PORT = 2049, 20048
EXPORT = "/data"
#: Below the directory of ``nfs``: what is shared.
SHARED = "shared"
_GANESHA = """\
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


@_service(
    "nfs",
    "file system that all machines share (nfs-ganesha, NFSv3 and NFSv4)",
    STORAGE,
    _first_storage,
    NFS_PORT,
    NeededProgram(command="ganesha.nfsd", package="nfs-ganesha-vfs"),
    NeededProgram(command="rpcbind", package="rpcbind"),
    NeededProgram(command="nfs-cp", package="libnfs-utils"),
)
def nfs(place: ServicePlace) -> Sequence[str]:
    """Serve a directory of the lab by nfs-ganesha, without a kernel module.

    Clients use libnfs, since a mount would need the kernel's client: ``nfs-cp FILE
    nfs://ADDRESS/data/FILE`` writes, ``nfs-cat`` reads.  These are NFSv3, which libnfs takes by
    default.  By NFSv4 (``?version=4``) libnfs 4.0, which Debian 12 has, reads files of any size and
    writes up to some 3,900 octets at once: it encodes each COMPOUND into 4 KiB (``Failed to encode
    COMPOUND4args``), so that no larger WRITE leaves it.

    nfs-ganesha registers NFSv3 with rpcbind (RFC 1833), and ends without one.  The machine has one
    of its own, in a mount namespace with another ``/run``: rpcbind's socket has a fixed path there.
    """
    folder, run = place.directory, place.directory / "run"
    (folder / SHARED).mkdir(exist_ok=True)
    (folder / "recovery").mkdir(exist_ok=True)
    for name in ("uetemu", "rpcbind"):
        (run / name).mkdir(parents=True, exist_ok=True)
    configuration = folder / "ganesha.conf"
    configuration.write_text(
        _GANESHA.format(
            port=NFS_PORT,
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


# -- time, which nobody sets: all machines share the kernel's clock --------------------------------


@_service(
    "ntp",
    "time: the head node serves it, the others measure theirs (chronyd -x)",
    MANAGEMENT,
    _managed,
    None,
    NeededProgram(command="chronyd", package="chrony", provisioned=False),
)
def ntp(place: ServicePlace) -> Sequence[str]:
    """Run chronyd; what clients report as the error of their clock is the network's."""
    folder = place.directory
    (server,) = place.machines.named(HEAD)
    lines = [
        f"pidfile {folder}/chronyd.pid",
        f"bindcmdaddress {folder}/chronyd.sock",
        "cmdport 0",
    ]
    if place.machine == server:
        block = place.machines.subnet(place.machine, MANAGEMENT)
        # stratum 8: how good a clock claims to be that nothing disciplines (RFC 5905)
        lines += [f"bindaddress {place.address}", f"allow {block}", "local stratum 8"]
    else:
        address = place.machines.address(server, MANAGEMENT)
        lines += ["port 0", f"server {address} iburst minpoll 0 maxpoll 4"]
    configuration = folder / "chrony.conf"
    configuration.write_text("\n".join(lines) + "\n")
    folder.chmod(0o750)  # chronyd makes no socket where others could
    return ("chronyd", "-x", "-d", "-u", "root", "-f", str(configuration))


#: The program of the Python package moto, beside the interpreter.
MOTO = Path(sys.executable).with_name("moto_server")


@_service(
    "s3",
    "object store with the interface of S3 (moto)",
    STORAGE,
    _first_storage,
    9000,
    NeededProgram(command=str(MOTO), package="uetemu[s3]"),
)
def s3(place: ServicePlace) -> Sequence[str]:
    """Keep objects in memory.

    Requests have to be signed, by whatever key: the store does not check who it is, and refuses
    objects to requests without a signature.
    """
    return (str(MOTO), "--host", place.address, "--port", "9000")


@_service(
    "ptp",
    "time by PTP: the head node is the grandmaster, the others measure (ptp4l)",
    MANAGEMENT,
    _managed,
    None,
    NeededProgram(command="ptp4l", package="linuxptp"),
)
def ptp(place: ServicePlace) -> Sequence[str]:
    """Run ptp4l without setting a clock (``free_running``).

    The offset that clients report is the error of software time stamps over this network.
    Messages are multicast over UDP (IEEE 1588-2008, Annex D).
    """
    (grandmaster,) = place.machines.named(HEAD)
    port = place.machines.port(place.machine, MANAGEMENT)
    settings = {
        "free_running": 1,
        "time_stamping": "software",
        "network_transport": "UDPv4",
        "uds_address": place.directory / "ptp4l.sock",
        "masterOnly" if place.machine == grandmaster else "slaveOnly": 1,
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    configuration = place.directory / "ptp4l.conf"
    configuration.write_text(f"[global]\n{lines}")
    return ("ptp4l", "-f", str(configuration), "-i", port, "-m", "-q")


# -- power, jobs and logins ------------------------------------------------------------------------


@_service(
    "redfish",
    "power of machines, off and on, which pulls their cables (Redfish)",
    MANAGEMENT,
    HEAD,
    8001,
)
def redfish_service(place: ServicePlace) -> Sequence[str]:
    return (sys.executable, "-m", redfish.__name__, place.cluster, place.address, "8001")


RENDEZVOUS_PORT = 29_500  # as PyTorch has it by default (MASTER_PORT)


@_service(
    "rendezvous",
    "keys and values, by which the ranks of a job find each other",
    MANAGEMENT,
    HEAD,
    RENDEZVOUS_PORT,
)
def rendezvous(place: ServicePlace) -> Sequence[str]:
    module = rendezvous_store.__name__
    return (sys.executable, "-m", module, place.address, str(RENDEZVOUS_PORT))


KEY, HOST_KEY = "id_ed25519", "host_key"
SSHD = "/usr/sbin/sshd"  # which takes no other name than its whole path
#: Where sshd keeps the child that has no rights; it must be empty and root's.
PRIVILEGES = Path("/run/sshd")


@_service(
    "ssh",
    "logins with the cluster's own key (sshd)",
    MANAGEMENT,
    _managed,
    22,
    NeededProgram(command=SSHD, package="openssh-server"),
    NeededProgram(command="ssh-keygen", package="openssh-client"),
)
def ssh(place: ServicePlace) -> Sequence[str]:
    """Run sshd with the private key ``id_ed25519``; no account's keys are touched."""
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
        f"ListenAddress {place.address}:22\n"
        f"HostKey {folder / HOST_KEY}\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nUsePAM no\nPrintMotd no\nPidFile none\n"
        "Subsystem sftp internal-sftp\n"
    )
    return (SSHD, "-D", "-e", "-f", str(configuration))
