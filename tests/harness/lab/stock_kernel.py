"""Run a shell script on this machine's file system under Debian's kernel, in a virtual machine.

::

    QEMU -- kernel -- initramfs: busybox and the modules that reach the host's files
                         |
                         +-- 9p "/" of the host, read-only, below a tmpfs that takes all writes
                         +-- 9p /run/out, a directory of the host: what the script leaves

The processor is emulated in software, which needs nothing of the host and is the same everywhere (a
host that is a virtual machine itself may have a KVM that fails): the machine is up in some ten
seconds and works a tenth to a twentieth as fast.  The kernel is an unpacked Debian package with
``modules.dep`` made (``vagrant/provision.sh`` puts it in :data:`KERNEL`).
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

#: What has ``boot/vmlinuz-<release>`` and ``lib/modules/<release>``.
KERNEL = Path(os.environ.get("UETEMU_STOCK_KERNEL", "/var/cache/uetemu/stock-kernel"))
QEMU, BUSYBOX, MODPROBE = "qemu-system-x86_64", "busybox", "modprobe"
MODULES_OF_THE_ROOT = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
MEMORY_MIB, CORES = 2048, 2

T = TypeVar("T")
DIRECTORY, PROGRAM, FILE = 0o040755, 0o100755, 0o100644
NEWC = b"070701"

INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in {modules}; do $b insmod /modules/$module; done
p9=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $p9,cache=loose,ro host /host
$b mount -t tmpfs -o size=75% writes /writes
$b mkdir /writes/upper /writes/work
$b mount -t overlay -o lowerdir=/host,upperdir=/writes/upper,workdir=/writes/work root /root
cd /root
$b mount -t proc proc proc
$b mount -t sysfs sys sys
$b mount -t devtmpfs dev dev
$b mkdir -p dev/pts dev/shm
$b mount -t devpts devpts dev/pts
for directory in dev/shm run; do $b mount -t tmpfs -o mode=1777 tmpfs $directory; done
$b rm -rf lib/modules/{release}
$b mkdir -p lib/modules run/out run/lock
$b ln -s {modules_of_all} lib/modules/{release}
$b mount -t 9p -o $p9 out run/out
$b ifconfig lo up
exec $b switch_root /root /bin/bash /run/out/init
"""
SCRIPT = """\
export PATH={path} HOME=/root LC_ALL=C.UTF-8
cd {directory}
bash -c {script} </dev/null >/run/out/output 2>&1
echo $? >/run/out/status.part
mv /run/out/status.part /run/out/status
sync
echo o >/proc/sysrq-trigger
sleep infinity
"""


_ahead: dict[Callable[[], object], Future[object]] = {}
_machines: set[subprocess.Popen[str]] = set()
_folders: list[tempfile.TemporaryDirectory[str]] = []
_one_at_a_time = ThreadPoolExecutor(1, thread_name_prefix="stock-kernel")


def begin(boot: Callable[[], object]) -> None:
    """Call ``boot``, which runs a machine, in the background: one after the other.

    A machine takes minutes of a processor that most tests leave free.
    """
    if boot not in _ahead:
        _ahead[boot] = _one_at_a_time.submit(boot)


def ended(boot: Callable[[], T]) -> T:
    """Return what ``boot`` returned or raised, begun earlier or now."""
    begin(boot)
    return _ahead[boot].result()  # type: ignore[return-value]


def folder() -> Path:
    """A new directory that is there until :func:`switch_off`."""
    _folders.append(tempfile.TemporaryDirectory(prefix="stock-kernel-"))
    return Path(_folders[-1].name)


def switch_off() -> None:
    """No machine outlives the tests, should they be interrupted."""
    _one_at_a_time.shutdown(wait=False, cancel_futures=True)
    for machine in tuple(_machines):
        machine.kill()
    _one_at_a_time.shutdown()
    for one in _folders:
        one.cleanup()


def lacking() -> str | None:
    """Why no machine can be booted here, or None."""
    if os.uname().machine != "x86_64":
        return f"Debian's kernel is booted on x86_64 only, not on {os.uname().machine}"
    for command in (QEMU, BUSYBOX, MODPROBE):
        if shutil.which(command) is None:
            return f"the command {command} is missing; vagrant/provision.sh installs it"
    if not releases():
        return f"there is no Debian kernel in {KERNEL}; vagrant/provision.sh puts one there"
    return None


def releases() -> list[str]:
    found = (path.name.removeprefix("vmlinuz-") for path in KERNEL.glob("boot/vmlinuz-*"))
    return sorted(
        release for release in found if _modules(release).joinpath("modules.dep").exists()
    )


def has_module(name: str) -> bool:
    """Whether the kernel that is booted has a module of that name."""
    dependencies = (_modules(releases()[-1]) / "modules.dep").read_text()
    return any(line.partition(":")[0].endswith(f"/{name}.ko") for line in dependencies.splitlines())


@dataclass(frozen=True)
class Outcome:
    """``status`` is the script's exit status, None if it did not come to its end.

    ``console`` is what kernel and boot said, ``files`` the directory that was ``/run/out``.
    """

    status: int | None
    output: str
    console: str
    files: Path
    seconds: float


def run(
    script: str, *, directory: Path, files: Path, budget_s: float, devices: Sequence[str] = ()
) -> Outcome:
    """Boot, run the shell script in ``directory``, switch off; at most ``budget_s`` (wall clock).

    ``files`` is an empty directory; in the machine it is ``/run/out``, and all that stays.
    ``devices`` are options of QEMU for what the machine has beside (:func:`cable_end`).
    """
    release = releases()[-1]
    modules = _in_order(release, MODULES_OF_THE_ROOT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    (files / "init").write_text(
        SCRIPT.format(path=_quoted(path), directory=_quoted(str(directory)), script=_quoted(script))
    )
    initramfs = files / "initramfs"
    initramfs.write_bytes(_initramfs(release, modules))
    log = files / "console"
    argv = [
        # with the thread of the pool, that is with the tests, however those end
        *("setpriv", "--pdeathsig", "KILL"),
        *(QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", str(CORES), "-m", str(MEMORY_MIB)),
        *("-kernel", str(KERNEL / f"boot/vmlinuz-{release}"), "-initrd", str(initramfs)),
        # no TSC watchdog: emulated, every other clock costs microseconds to read; no check that
        # the timer ticks in time, which on a busy host ends in "IO-APIC + timer doesn't work"
        *("-append", "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable mitigations=off"),
        *("-serial", f"file:{log}"),
        *_shared("host", Path("/"), "readonly=on,multidevs=remap"),
        *_shared("out", files, "multidevs=remap"),
        *devices,
    ]
    started = time.monotonic()
    machine = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _machines.add(machine)
    try:
        _, complaints = machine.communicate(timeout=budget_s)
    except subprocess.TimeoutExpired:
        machine.kill()
        _, complaints = machine.communicate()
    except BaseException:
        machine.kill()
        machine.wait()
        raise
    finally:
        _machines.discard(machine)
    initramfs.unlink()
    status = _text(files / "status").strip()
    return Outcome(
        status=int(status) if status else None,
        output=_text(files / "output"),
        console=complaints + _text(log),
        files=files,
        seconds=time.monotonic() - started,
    )


def cable_end(number: int, sockets: Path) -> tuple[str, ...]:
    """Return QEMU's options for a NIC at end ``number``, 0 or 1, of a cable between two machines.

    The cable is a pair of datagram sockets in the directory ``sockets``; a frame is lost while the
    other machine is off.  The NIC's driver is ``virtio_net``, its MAC ends in ``number``.
    """
    here, there = (sockets / f"end{end}" for end in (number, 1 - number))
    ends = f"local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
    return (
        *("-netdev", f"dgram,id=cable,{ends}"),
        *("-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:0{number},romfile="),
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _shared(tag: str, path: Path, options: str) -> tuple[str, ...]:
    return (
        *("-fsdev", f"local,id={tag},path={path},security_model=none,{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    )


def _modules(release: str) -> Path:
    return KERNEL / "lib/modules" / release


def _in_order(release: str, names: tuple[str, ...]) -> list[Path]:
    """The files of modules ``names`` and of all they need, in the order in which they load."""
    needs: dict[str, list[str]] = {}
    for line in (_modules(release) / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in needs}
    ordered: dict[str, None] = {}
    for name in names:
        file = by_name.get(name.replace("-", "_"))
        if file is not None:  # else it is built in
            ordered |= dict.fromkeys([*reversed(needs[file]), file])
    return [_modules(release) / path for path in ordered]


def _initramfs(release: str, modules: list[Path]) -> bytes:
    busybox = shutil.which(BUSYBOX)
    assert busybox is not None
    init = INIT.format(
        release=release,
        modules=" ".join(path.name for path in modules),
        modules_of_all=_modules(release).resolve(),
    )
    directories = ("bin", "dev", "host", "modules", "proc", "root", "writes")
    entries = [(name, DIRECTORY, b"") for name in directories]
    entries += [("bin/busybox", PROGRAM, Path(busybox).read_bytes())]
    entries += [("init", PROGRAM, init.encode())]
    entries += [(f"modules/{path.name}", FILE, path.read_bytes()) for path in modules]
    return gzip.compress(_archive(entries), 1)


def _archive(entries: list[tuple[str, int, bytes]]) -> bytes:
    """A cpio archive in the format that the kernel unpacks (its initramfs buffer format)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        out += NEWC + b"".join(b"%08x" % field for field in fields) + path
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)
