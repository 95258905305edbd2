"""NVMe/TCP against Linux's: what runs inside the machine that test_linux_nvme.py boots.

::

    namespace "far": uetemu nvme           veth            this namespace: nvme-tcp, nvmet
        e0 10.98.0.1, fd98::1     ---------------------    e0 10.98.0.2, fd98::2

Linux's host and target work in the machine's first namespace.  All cases held against Debian's
6.1.176-1 with nvme-cli 2.3-3.  Each case leaves what came of it in ``results.json``; a case that
fails does not stop the others.
"""

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import emulator.cli.nvme_verb
from tests.harness.lab.endpoint_process import Endpoint

#: What a process would spend most of its time on.
_PRELOADED = emulator.cli.nvme_verb
OUT = Path("/run/out")
NAMESPACE = "far"
OURS, THEIRS = {4: "10.98.0.1", 6: "fd98::1"}, {4: "10.98.0.2", 6: "fd98::2"}
PORT = 4420
NQN, KERNEL_NQN = "nqn.2026-01.example:ours", "nqn.2026-01.example:kernel"
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
BLOCK = 512
MIB = 1 << 20
SIZE = 32 * MIB
BUDGET = 120.0
NVMET = Path("/sys/kernel/config/nvmet")


def command(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=BUDGET)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


def build() -> None:
    for module in ("nvmet-tcp", "nvme-tcp"):
        command("modprobe", module)
    if not Path("/sys/kernel/config").is_mount():
        command("mount", "-t", "configfs", "none", "/sys/kernel/config")
    command("ip", "netns", "add", NAMESPACE)
    command("ip", "link", "add", "e0", "type", "veth", "peer", "name", "e0", "netns", NAMESPACE)
    for end, addresses in ((("-n", NAMESPACE), OURS), ((), THEIRS)):
        command("ip", *end, "addr", "add", f"{addresses[4]}/24", "dev", "e0")
        command("ip", *end, "addr", "add", f"{addresses[6]}/64", "dev", "e0", "nodad")
        command("ip", *end, "link", "set", "e0", "up")
        command("ip", *end, "link", "set", "lo", "up")


# -- our target, Linux's host ----------------------------------------------------------------------


@contextlib.contextmanager
def our_target(*words: str) -> Iterator[Endpoint]:
    ours = Endpoint(
        "nvme", "target", "-n", NAMESPACE, "--memory", str(SIZE), "-s", NQN, "--format", "json",
        *words,
    )  # fmt: skip
    try:
        ours.wait_for("start", BUDGET)
        yield ours
    finally:
        if ours.process.poll() is None:
            ours.process.terminate()
            ours.end(budget=BUDGET)


def nvme(*words: str) -> Any:
    return json.loads(command("nvme", *words, "--output-format=json"))


@contextlib.contextmanager
def linux_host(*words: str, version: int = 4) -> Iterator[Path]:
    """Linux's block device of our namespace 1."""
    command(
        "nvme", "connect", "-t", "tcp", "-a", OURS[version], "-s", str(PORT), "-n", NQN,
        "--hostnqn", HOST_NQN, *words,
    )  # fmt: skip
    try:
        give_up = time.monotonic() + BUDGET
        while time.monotonic() < give_up:
            found = [
                path
                for path in Path("/sys/class/block").glob("nvme*n1")
                if int((path / "size").read_text()) and Path("/dev", path.name).is_block_device()
            ]
            if found:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("no block device came")
        yield Path("/dev") / found[0].name
    finally:
        command("nvme", "disconnect", "-n", NQN)


def dd(*words: str) -> None:
    command("dd", "status=none", *words)


def same_file(one: Path, other: Path, what: str) -> None:
    have, wanted = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, other))
    assert have == wanted, what


def their_io(device: Path, name: str) -> None:
    """Writes and reads by dd, past the page cache and through it, small and large."""
    draw = random.Random(name)
    source, copy = OUT / f"{name}-in", OUT / f"{name}-out"
    for octets, size, more in (
        (MIB, "512k", ("oflag=direct",)),
        (64 * BLOCK, "512", ("oflag=direct",)),
        (256 << 10, "64k", ("conv=fsync",)),
    ):
        source.write_bytes(draw.randbytes(octets))
        dd(f"if={source}", f"of={device}", f"bs={size}", *more)
        dd(f"if={device}", f"of={copy}", f"bs={size}", "iflag=direct,count_bytes",
           f"count={octets}")  # fmt: skip
        same_file(copy, source, f"{octets} octets by {size}")
    # several commands at a time
    writers = [
        subprocess.Popen(["dd", "status=none", f"if={source}", f"of={device}", "bs=16k",
                          f"seek={place}M", "oflag=direct,seek_bytes"])
        for place in (4, 6, 8, 10)
    ]  # fmt: skip
    assert [writer.wait(BUDGET) for writer in writers] == [0, 0, 0, 0]
    for place in (4, 6, 8, 10):
        dd(f"if={device}", f"of={copy}", "bs=256k", f"skip={place}M", "count=1",
           "iflag=direct,skip_bytes")  # fmt: skip
        same_file(copy, source, f"the writer at {place} MiB")


def their_host(name: str, *connect: str, version: int = 4) -> dict[str, Any]:
    with our_target() as ours, linux_host(*connect, version=version) as device:
        control = f"/dev/{device.name[: device.name.index('n', 4)]}"
        facts = nvme("id-ctrl", control)
        assert facts["mn"].strip() == "uetemu NVMe/TCP", facts
        assert facts["subnqn"] == NQN, facts
        namespace = nvme("id-ns", str(device))
        assert namespace["nsze"] == SIZE // BLOCK, namespace
        their_io(device, name)
        if not connect:
            their_tools(device, control)
    counters: dict[str, Any] = ended_well(ours)
    assert counters["tx_r2ts"] > 0, counters
    return counters


def their_tools(device: Path, control: str) -> None:
    """Our controller answers what nvme-cli asks, and takes its discards."""
    health = nvme("smart-log", control)
    assert int(health["host_write_commands"]) > 0, health
    assert nvme("error-log", control)["errors"], "no entries"
    assert nvme("fw-log", control), "no slots"
    descriptors = command("nvme", "ns-descs", str(device))
    assert "uuid" in descriptors, descriptors
    command("nvme", "flush", str(device))
    command("nvme", "get-feature", control, "-f", "7")
    source = OUT / "before"
    source.write_bytes(random.Random(1).randbytes(64 << 10))
    dd(f"if={source}", f"of={device}", "bs=64k", "oflag=direct")
    command("blkdiscard", "-z", "-o", "0", "-l", "4096", str(device))
    command("blkdiscard", "-o", "8192", "-l", "4096", str(device))
    copy = OUT / "after"
    dd(f"if={device}", f"of={copy}", "bs=64k", "count=1", "iflag=direct")
    expected = bytearray(source.read_bytes())
    expected[:4096] = expected[8192:12288] = bytes(4096)
    assert copy.read_bytes() == bytes(expected), "discarded blocks"


def their_discovery(name: str) -> dict[str, Any]:
    with our_target() as ours:
        records = nvme("discover", "-t", "tcp", "-a", OURS[4], "-s", str(PORT))["records"]
        found = {record["subnqn"]: record for record in records}
        assert found[NQN]["traddr"] == OURS[4], records
        assert found[NQN]["trsvcid"] == str(PORT), records
    return ended_well(ours)


def their_keep_alive(name: str) -> dict[str, Any]:
    """A host that stays idle for several periods keeps its controller."""
    with our_target() as ours, linux_host("--keep-alive-tmo", "1") as device:
        time.sleep(3.5)  # periods of a second
        dd(f"if={device}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct")
    counters: dict[str, Any] = ended_well(ours)
    assert counters["keep_alives"] >= 2, counters
    assert "keep_alive_timeouts" not in counters, counters
    return counters


def our_target_ends(name: str) -> dict[str, Any]:
    """Linux's host goes on with a target that was started again."""
    words = ("--reconnect-delay", "1", "--ctrl-loss-tmo", "60")
    with our_target() as first, linux_host(*words) as device:
        dd(f"if={device}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct")
        first.process.terminate()
        first.end(budget=BUDGET)
        with our_target() as second:
            dd(f"if={device}", "of=/dev/null", "bs=4k", "count=64", "iflag=direct")
            command("nvme", "disconnect", "-n", NQN)
        counters: dict[str, Any] = ended_well(second)
    assert counters["commands"] > 0, counters
    return counters


def their_multipath(name: str) -> dict[str, Any]:
    """Linux's native multipath has two of our ports as paths, and goes on when one is cut off."""
    second = "10.98.1.1"
    command("ip", "link", "add", "e1", "type", "veth", "peer", "name", "e1", "netns", NAMESPACE)
    command("ip", "-n", NAMESPACE, "addr", "add", f"{second}/24", "dev", "e1")
    command("ip", "addr", "add", "10.98.1.2/24", "dev", "e1")
    command("ip", "-n", NAMESPACE, "link", "set", "e1", "up")
    command("ip", "link", "set", "e1", "up")
    times = ("--keep-alive-tmo", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "60")
    source, copy = OUT / f"{name}-in", OUT / f"{name}-out"
    source.write_bytes(random.Random(name).randbytes(8 * MIB))
    try:
        with our_target() as ours, linux_host(*times) as device:
            command(
                "nvme", "connect", "-t", "tcp", "-a", second, "-s", str(PORT), "-n", NQN,
                "--hostnqn", HOST_NQN, *times,
            )  # fmt: skip
            assert live_paths() == [OURS[4], second], command("nvme", "list-subsys")
            dd(f"if={source}", f"of={device}", "bs=64k", "count=32", "oflag=direct")
            command("ip", "-n", NAMESPACE, "link", "set", "e0", "down")
            dd(f"if={source}", f"of={device}", "bs=64k", "skip=32", "seek=32", "oflag=direct")
            assert live_paths() == [second], command("nvme", "list-subsys")
            dd(f"if={device}", f"of={copy}", "bs=64k", "count=128", "iflag=direct")
            same_file(copy, source, "what two paths wrote")
    finally:
        command("ip", "link", "del", "e1")
        command("ip", "-n", NAMESPACE, "link", "set", "e0", "up")
        # Linux has taken the address away with the link.
        command("ip", "-n", NAMESPACE, "addr", "replace", f"{OURS[6]}/64", "dev", "e0", "nodad")
    assert ours.process.returncode == 0, ours.error
    return ours.counters


def live_paths() -> list[str]:
    """Return the addresses of our subsystem at which Linux has a live controller."""
    found = []
    for control in sorted(Path("/sys/class/nvme").glob("nvme*")):
        state, address = ((control / name).read_text().strip() for name in ("state", "address"))
        if state == "live":
            found.append(address.partition("traddr=")[2].partition(",")[0])
    return found


def ended_well(ours: Endpoint) -> dict[str, int]:
    faults = [event for event in ours.events if event.get("fault")]
    assert faults == []
    assert ours.process.returncode == 0, ours.error
    assert "bad_pdus" not in ours.counters, ours.counters
    assert "data_digest_errors" not in ours.counters, ours.counters
    return ours.counters


# -- Linux's target, our host ----------------------------------------------------------------------


@contextlib.contextmanager
def linux_target(version: int = 4) -> Iterator[None]:
    """nvmet with a file behind namespace 1, by configfs."""
    store = OUT / "nvmet.img"
    store.write_bytes(b"")
    os.truncate(store, SIZE)
    subsystem, port = NVMET / "subsystems" / KERNEL_NQN, NVMET / "ports" / "1"
    namespace = subsystem / "namespaces" / "1"
    for directory in (subsystem, namespace, port):
        directory.mkdir()
    (subsystem / "attr_allow_any_host").write_text("1")
    (namespace / "device_path").write_text(str(store))
    (namespace / "buffered_io").write_text("1")  # 9p has no direct I/O
    (namespace / "enable").write_text("1")
    (port / "addr_trtype").write_text("tcp")
    (port / "addr_adrfam").write_text(f"ipv{version}")
    (port / "addr_traddr").write_text(THEIRS[version])
    (port / "addr_trsvcid").write_text(str(PORT))
    link = port / "subsystems" / KERNEL_NQN
    link.symlink_to(subsystem)
    try:
        yield
    finally:
        link.unlink()
        for directory in (port, namespace, subsystem):
            directory.rmdir()


def ask(*words: str, status: int = 0) -> list[dict[str, Any]]:
    ours = Endpoint("nvme", *words, "-n", NAMESPACE, "--format", "json")
    ours.end(budget=BUDGET)
    assert ours.process.returncode == status, ours.error
    return ours.events


def our_host(name: str, *words: str, version: int = 4) -> dict[str, Any]:
    place = THEIRS[version] if version == 4 else f"[{THEIRS[version]}]"
    to = (place, *words)
    disk = (*to, "-s", KERNEL_NQN)
    with linux_target(version):
        subsystems = {event["nqn"]: event for event in ask("discover", *to)}
        assert subsystems[KERNEL_NQN]["address"] == THEIRS[version], subsystems
        controller, namespace = ask("identify", *disk)
        assert controller["model"] == "Linux", controller
        assert namespace["octets"] == SIZE, namespace
        source, copy = OUT / f"{name}-in", OUT / f"{name}-out"
        source.write_bytes(random.Random(name).randbytes(MIB))
        (wrote,) = ask("write", *disk, "--offset", "64k", str(source))
        assert wrote["counters"]["r2ts"] > 0, wrote
        (read,) = ask("read", *disk, "--offset", "64k", "--length", str(MIB),
                      "-o", str(copy))  # fmt: skip
        same_file(copy, source, "what was read")
        stored = (OUT / "nvmet.img").read_bytes()[64 << 10 :][:MIB]
        assert hashlib.sha256(stored).hexdigest() == wrote["sha256"], "what Linux stored"
        bench = ("--count", "128", "--depth", "32", "--pattern", "randwrite", "--verify")
        (small,) = ask("bench", *disk, *bench)
        assert small["wrong"] == 0, small
    for event in (wrote, read, small):
        counters = event["counters"]
        assert not counters["bad_pdus"] + counters["data_digest_errors"], counters
        assert not counters["timeouts"] + counters["failed_commands"], counters
    return {"small": small["counters"], "latency_us": small["latency_us"]}


def ours_is_refused(name: str) -> dict[str, Any]:
    """A subsystem that Linux does not have, and a namespace."""
    with linux_target():
        ask("identify", THEIRS[4], "-s", NQN, status=1)
        ask("read", THEIRS[4], "-s", KERNEL_NQN, "--nsid", "7", status=1)
    return {}


CASES: dict[str, Callable[[str], dict[str, Any]]] = {
    "their_discovery": their_discovery,
    "their_host": their_host,
    "their_host_digests_ipv6": lambda name: their_host(
        name, "--hdr-digest", "--data-digest", "--nr-io-queues", "1", version=6
    ),
    "their_host_no_flow_control": lambda name: their_host(name, "--disable-sqflow"),
    "their_keep_alive": their_keep_alive,
    "our_target_ends": our_target_ends,
    "their_multipath": their_multipath,
    "our_host": our_host,
    "our_host_digests_ipv6": lambda name: our_host(
        name, "--digests", "both", "--queues", "2", "--no-flow-control", version=6
    ),
    "ours_is_refused": ours_is_refused,
}


def main(requested: Sequence[str]) -> None:
    """Run those cases, or all."""
    build()
    results = {}
    for name in requested or CASES:
        began = time.monotonic()
        reported: dict[str, Any] = {"ok": False}
        try:
            reported["counters"] = CASES[name](name)
            reported["ok"] = True
        except Exception:  # noqa: BLE001  # the others shall run all the same
            reported["story"] = traceback.format_exc()
        reported["seconds"] = round(time.monotonic() - began, 1)
        results[name] = reported
        sys.stdout.write(f"{name}: {json.dumps(reported)}\n")
        sys.stdout.flush()
        (OUT / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
