"""The program's way into the kernel: shipped as an object, loaded and pinned by bpftool.

Pins live in ``/sys/fs/bpf/uetemu/<lab>/``: ``programs/`` and ``maps/``.  They outlive the process,
so that any other reads the counters; :func:`remove` takes them away by the lab's name, whatever
state they are in.  A port that the program is attached to keeps it alive beyond that.

There are two variants of the program, by the clock of the lab: with the host's it keeps time and
queues itself, with a virtual one an engine does (``virtual.h``), which maps the tables of
:mod:`emulator.dataplane.switch.virtual_state`.  The object of each serves tables of every size.
Where the sources are not those that it was made of, clang compiles them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.kernel.programs import compiler
from emulator.dataplane.kernel.programs.bpf_syscall import Map, available, open_pinned
from emulator.dataplane.settings import Clock
from emulator.dataplane.switch.bpf.layout import VALUE_BYTES, VIRTUAL_VALUE_BYTES
from emulator.errors import UserError

SOURCES = Path(__file__).parent
MAIN_SOURCE = "asic.bpf.c"
EGRESS, INGRESS, FORGET = "asic_egress", "asic_ingress", "asic_forget"
BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
PINS = BPF_FILE_SYSTEM / "uetemu"
CACHE = compiler.CACHE / "asic"
TIMEOUT_S = 120
LOG_LINES = 3  # of the verifier's, in an error message
FLAGS_OF_CLOCK: dict[Clock, tuple[str, ...]] = {"host": (), "virtual": ("-DVIRTUAL_TIME",)}
FLAGS = (
    "-O2",
    "-g",
    "-fdebug-compilation-dir=.",
    "-target",
    "bpf",
    "-mcpu=v3",
    "-Wall",
    "-Werror",
    "-c",
)

#: The objects, by clock and sources; ``python -m emulator.dataplane.switch.bpf.ship`` makes them.
SHIPPED = SOURCES / "shipped"
#: The numbers of entries in them, which stand for others: primes, found again in each multiple.
PLACEHOLDERS: Mapping[str, int] = {"PORTS": 1048573, "SWITCHES": 1048391, "PREFIXES": 1048447}
#: How the types of a program begin (magic, version, flags, octets of this header): BTF.
_BTF = struct.pack("<HBBI", 0xEB9F, 1, 0, 24)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Size:
    """The number of entries that each table of the program holds.

    ``ports``: one more than the highest interface index; ``switches``; ``prefixes``: multipath
    destinations of all switches together.  Each is rounded up to a power of two, so that labs of
    like size share an object.
    """

    ports: int = 64
    switches: int = 16
    prefixes: int = 1024

    def entries(self) -> dict[str, int]:
        """Return the number of entries by the macro that the program has it from."""
        sizes = {"PORTS": self.ports, "SWITCHES": self.switches, "PREFIXES": self.prefixes}
        return {name: _power_of_two(size) for name, size in sizes.items()}


class SwitchProgram:
    """The loaded program of one lab, through its pins.  Close it, or use ``with``.

    Tables named ``virtual_`` are None in the program for the host's clock.
    """

    in_kernel = True

    def __init__(self, lab: str) -> None:
        """Raises UserError if the lab has none."""
        self.lab = lab
        self._open: list[int] = []
        directory = pins_of(lab)
        try:
            self.egress = self._handle(directory / "programs" / EGRESS)
            self.ingress = self._handle(directory / "programs" / INGRESS)
            self.forget = self._handle(directory / "programs" / FORGET)
            self.settings = self._map(directory / "maps" / "settings")
            self.ports = self._map(directory / "maps" / "ports")
            self.routes = self._map(directory / "maps" / "routes")
            self.flowlets = self._map(directory / "maps" / "flowlets")
            self.pause_rules = self._map(directory / "maps" / "pause_rules")
            self.pause_states = self._map(directory / "maps" / "pause_states")
            self.pause_counts = self._map(directory / "maps" / "pause_counts")
            self.waiting_octets = self._map(directory / "maps" / "waiting_octets")
            self.virtual_pools = self._map_if_there(directory / "maps" / "virtual_pools")
            self.virtual_switches = self._map_if_there(directory / "maps" / "virtual_switches")
            self.virtual_ports = self._map_if_there(directory / "maps" / "virtual_ports")
        except OSError as error:
            self.close()
            raise UserError(
                f"lab {lab} has no switch program ({error.strerror}: {error.filename}): "
                "bring the lab up with one"
            ) from error
        except BaseException:
            self.close()
            raise

    def _handle(self, path: Path) -> int:
        handle = open_pinned(path)
        self._open.append(handle)
        return handle

    def _map(self, path: Path) -> Map:
        opened = Map(path)
        self._open.append(opened.handle)
        if opened.value_bytes != (VALUE_BYTES | VIRTUAL_VALUE_BYTES)[opened.name]:
            raise UserError(
                f"the switch program of lab {self.lab} is of another version of uetemu: "
                "take the lab down and bring it up again"
            )
        return opened

    def _map_if_there(self, path: Path) -> Map | None:
        return self._map(path) if path.exists() else None

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def __enter__(self) -> SwitchProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require(*, clock: Clock = "host", sources: Path = SOURCES) -> None:
    """Raise UserError if this machine can not run the program.  Makes nothing."""
    if shutil.which("bpftool") is None:
        raise UserError(
            "the switch program needs the command bpftool: run vagrant/provision.sh; switches "
            "without need --switch none"
        )
    if not shipped(clock, sources).exists() and shutil.which("clang") is None:
        raise UserError(
            "the sources of the switch program have changed, and there is no clang to compile "
            "them: run vagrant/provision.sh --with compiler"
        )
    try:
        available()
    except OSError as error:
        raise UserError(
            f"the kernel offers this process no eBPF ({error.strerror}): run as root, in a "
            "container with the capabilities BPF and NET_ADMIN"
        ) from error


def load(
    lab: str,
    size: Size | None = None,
    *,
    clock: Clock = "host",
    sources: Path = SOURCES,
    cache: Path = CACHE,
) -> SwitchProgram:
    """Bring the program for ``clock`` into the kernel for ``lab``, in place of one that it had.

    Raises UserError: a tool or eBPF is missing, or the compiler or the kernel refuses the program;
    nothing of the lab is left then.
    """
    require(clock=clock, sources=sources)
    with built(size or Size(), clock=clock, sources=sources, cache=cache) as target:
        mount()
        remove(lab)
        directory = pins_of(lab)
        directory.mkdir(parents=True)
        command = ["bpftool", "prog", "loadall", str(target), str(directory / "programs")]
        command += ["type", "classifier", "pinmaps", str(directory / "maps")]
        try:
            _pin(lab, command)
            return SwitchProgram(lab)
        except BaseException:
            remove(lab)
            raise


def _pin(lab: str, command: list[str]) -> None:
    """Run bpftool; if it is cut short, what ends a lab ends it, so that it pins nothing later."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if lab_record.directory_of(lab).is_dir():
                lab_record.add_process(lab, process.pid)
            _, complaints = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode < 0:
        raise UserError(
            f"bpftool was ended by {signal.Signals(-process.returncode).name} while it loaded the "
            "switch program, as where memory is short: try again"
        )
    if process.returncode:
        raise UserError(
            f"the kernel refuses the switch program ({_verifier_complaint(complaints)}): "
            "use a kernel of version 5.15 or newer, or switches without (--switch none)"
        )


def pins_of(lab: str) -> Path:
    return PINS / lab_record.check_name(lab)


def remove(lab: str) -> bool:
    """Take away all pins of ``lab``; whether there were any.  Ports keep what is attached."""
    directory = pins_of(lab)
    if not directory.exists():
        return False
    shutil.rmtree(directory)
    return True


def labs() -> list[str]:
    """Names of all labs that have pins."""
    if not PINS.is_dir():
        return []
    return sorted(path.name for path in PINS.iterdir() if lab_record.LAB_NAME.fullmatch(path.name))


@contextmanager
def built(
    size: Size, *, clock: Clock = "host", sources: Path = SOURCES, cache: Path = CACHE
) -> Iterator[Path]:
    """Yield the object file: the shipped one with tables of ``size``.

    Where the sources have changed since, it is from the cache, or made now and kept there if the
    cache can be written; raises UserError with the compiler's first error.
    """
    ready = shipped(clock, sources)
    if not ready.exists():
        with compiled(size.entries(), clock=clock, sources=sources, cache=cache) as target:
            yield target
        return
    with os.fdopen(os.memfd_create("asic"), "wb") as file:
        file.write(sized(ready.read_bytes(), size))
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def shipped(clock: Clock, sources: Path = SOURCES) -> Path:
    """Return where the object that is made of these sources has its place."""
    return SHIPPED / f"{clock}-{compiler.digest_of(_parts(sources))}.o"


def _parts(sources: Path) -> list[Path]:
    return [*sources.glob("*.c"), *sources.glob("*.h")]


def sized(program: bytes, size: Size) -> bytes:
    """Return ``program`` with tables of ``size``: their lengths are those of arrays in its BTF."""
    start = program.index(_BTF)
    offset, octets = struct.unpack_from("<II", program, start + 8)
    first = start + 24 + offset
    words = array("I", program[first : first + octets])
    for name, entries in size.entries().items():
        for place, word in enumerate(words):
            if word and word % PLACEHOLDERS[name] == 0:
                words[place] = word // PLACEHOLDERS[name] * entries
    return program[:first] + words.tobytes() + program[first + octets :]


@contextmanager
def compiled(
    entries: Mapping[str, int], *, clock: Clock, sources: Path = SOURCES, cache: Path = CACHE
) -> Iterator[Path]:
    """Yield what clang makes of the sources, with these numbers of entries in the tables."""
    macros = (f"-D{name}={number}" for name, number in entries.items())
    # Paths stand in the line information: as seen from the sources, they are the same everywhere.
    flags = (*FLAGS, *macros, *FLAGS_OF_CLOCK[clock], f"-ffile-prefix-map={sources}=.")
    flags = (*flags, "-idirafter", f"/usr/include/{_multiarch()}")
    with compiler.compiled(
        sources / MAIN_SOURCE,
        flags,
        parts=_parts(sources),
        suffix=".o",
        cache=cache,
        subject="the switch program",
        remedy="run vagrant/provision.sh --with compiler",
    ) as target:
        yield target


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _multiarch() -> str:
    return f"{platform.machine()}-linux-gnu"


def mount(*, anew: bool = False) -> None:
    """See to it that pins have their file system; it stays, as systemd would have mounted it.

    ``anew``: an empty one over whatever is there, for threads with mounts of their own.
    """
    for line in Path("/proc/thread-self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[4] == str(BPF_FILE_SYSTEM) and right.split()[0] == "bpf" and not anew:
            return
    if _libc.mount(b"bpf", os.fsencode(BPF_FILE_SYSTEM), b"bpf", 0, b"mode=0700") != 0:
        reason = os.strerror(ctypes.get_errno())
        raise UserError(
            f"the bpf file system cannot be mounted at {BPF_FILE_SYSTEM} ({reason}): "
            "mount it there from outside of the container"
        )


def _verifier_complaint(complaints: str) -> str:
    """Return the last lines of the verifier's log, or of other complaints."""
    log = complaints
    if match := re.search(r"BEGIN PROG LOAD LOG -+\n(.*?)\n?-+ END PROG", complaints, re.S):
        log = match[1]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    stated = [line for line in lines if not line.startswith(("processed ", "verification time"))]
    return "; ".join(stated[-LOG_LINES:]) or "no reason given"
