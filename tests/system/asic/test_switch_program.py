"""The program comes into the kernel, stays while it is wanted, and leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl import RTM_GETTFILTER

from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.programs import bpf_syscall as kernel
from emulator.dataplane.kernel.release import CLSACT_EGRESS
from emulator.dataplane.kernel.shaping import TCMSG
from emulator.dataplane.switch.balancing import Balancing, LoadBalancing
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import FLOWLETS, VALUE_BYTES
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from emulator.dataplane.switch.switch_profile import port_settings
from emulator.errors import UserError
from tests.harness.asic.port_bench import NEAR, Bench, Namespace, cable, profile

pytestmark = pytest.mark.root

REFUSED = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "GPL";
SEC("tc") int asic_egress(struct __sk_buff *skb) { return *(__u8 *)(long)skb->data; }
SEC("tc") int asic_ingress(struct __sk_buff *skb) { return skb->len; }
"""


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Sources of the program that differ from those of the shipped objects."""
    sources = tmp_path / "sources"
    shutil.copytree(asic_program.SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    with (sources / "random.h").open("a") as file:
        file.write("/* changed */\n")
    return sources


def filters(kernel: RouteSocket, index: int) -> int:
    body = TCMSG.pack(0, 0, 0, index, 0, CLSACT_EGRESS, 0)
    return sum(
        1
        for payload in kernel.dump(RTM_GETTFILTER, body)
        if TCMSG.unpack_from(payload)[6] >> 16 == ports.PREFERENCE
    )


def test_layouts_agree_with_the_object(program: SwitchProgram) -> None:
    directory = asic_program.pins_of(program.lab) / "maps"
    for name, octets in VALUE_BYTES.items():
        opened = kernel.Map(directory / name)
        assert opened.value_bytes == octets
        opened.close()


def test_other_process_opens_the_pins_and_remove_takes_them(program: SwitchProgram) -> None:
    assert program.lab in asic_program.labs()
    with SwitchProgram(program.lab) as other:
        assert other.settings.entries == 64
    assert asic_program.remove(program.lab)
    assert not asic_program.remove(program.lab)
    assert program.lab not in asic_program.labs()
    with pytest.raises(UserError, match="has no switch program"):
        SwitchProgram(program.lab)


def test_attach_twice_and_detach(program: SwitchProgram) -> None:
    with ExitStack() as stack:
        bench = Bench(program, stack)
        ports.attach(bench.near.kernel, NEAR, program, subject="near")
        bench.near.kernel.flush()
        assert filters(bench.near.kernel, NEAR) > 0
        for _ in range(2):  # the second has nothing to do
            ports.detach(bench.near.kernel, NEAR, subject="near")
            assert filters(bench.near.kernel, NEAR) == 0


def test_detach_from_a_port_that_never_had_it() -> None:
    near, far = Namespace(), Namespace()
    try:
        cable(near, far, 11, 12)
        ports.detach(near.kernel, 11, subject="near")
    finally:
        near.close()
        far.close()


def test_nothing_is_compiled_for_an_unchanged_program(
    program_lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bpftool = shutil.which("bpftool")
    assert bpftool is not None
    (tmp_path / "bpftool").symlink_to(bpftool)
    monkeypatch.setenv("PATH", str(tmp_path))
    size = Size(ports=100, switches=5, prefixes=30)
    with asic_program.load(program_lab, size, cache=tmp_path / "cache") as loaded:
        assert loaded.settings.entries == 128
        assert loaded.pause_counts.entries == 128
        assert loaded.routes.entries == 32
        assert loaded.flowlets.entries == 8 * FLOWLETS
    assert not (tmp_path / "cache").exists()


def test_second_load_of_a_changed_program_is_cached(
    program_lab: str, changed: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"

    def load(ports: int) -> None:
        asic_program.load(program_lab, Size(ports=ports), sources=changed, cache=cache).close()

    for _ in range(2):
        load(100)
        (kept,) = cache.iterdir()
    first = kept.stat().st_mtime_ns
    load(128)  # rounds up alike
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [first]
    load(129)
    assert len(list(cache.iterdir())) == 2


def test_changed_source_is_compiled_anew(changed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with asic_program.built(Size(), sources=changed, cache=cache) as first:
        assert first.exists()
    with (changed / "random.h").open("a") as file:
        file.write("/* changed again */\n")
    with asic_program.built(Size(), sources=changed, cache=cache) as second:
        assert second.name != first.name


def test_cache_that_cannot_be_written(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    with asic_program.built(Size(), sources=changed, cache=cache) as target:
        assert target.exists()


def test_a_killed_process_leaves_only_pins(program_lab: str, cache: Path) -> None:
    script = (
        "import sys, signal, pathlib\n"
        "from emulator.dataplane.switch.bpf import switch_program as program\n"
        f"loaded = program.load({program_lab!r}, cache=pathlib.Path({str(cache)!r}))\n"
        "print('loaded', flush=True); signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loaded\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert program_lab in asic_program.labs()
    assert asic_program.remove(program_lab)
    assert not asic_program.pins_of(program_lab).exists()


def test_the_verifiers_last_words(program_lab: str, tmp_path: Path) -> None:
    (tmp_path / asic_program.MAIN_SOURCE).write_text(REFUSED)
    with pytest.raises(UserError, match="kernel refuses the switch program") as caught:
        asic_program.load(program_lab, sources=tmp_path, cache=tmp_path / "cache")
    assert "invalid access to packet" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert program_lab not in asic_program.labs()


def test_compiler_errors(program_lab: str, tmp_path: Path) -> None:
    (tmp_path / asic_program.MAIN_SOURCE).write_text("nonsense;\n")
    with pytest.raises(UserError, match="clang cannot compile"):
        asic_program.load(program_lab, sources=tmp_path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [("clang", "no clang .*: run .* --with compiler"), ("bpftool", "needs the command bpftool")],
)
def test_missing_tool(
    command: str,
    told: str,
    changed: Path,
    program_lab: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in {"clang", "bpftool"} - {command}:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=told):
        asic_program.load(program_lab, sources=changed, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_no_ebpf(program_lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(kernel, "bpf", refuse)
    with pytest.raises(UserError, match="no eBPF"):
        asic_program.load(program_lab, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_index_beyond_the_tables(program: SwitchProgram) -> None:
    with pytest.raises(UserError, match="interface index 64 is outside the 64 ports"):
        ports.configure(program, 64, b"")


def test_switch_beyond_the_tables(program: SwitchProgram) -> None:
    way = LoadBalancing(method=Balancing.FLOW, switch=16)
    settings = port_settings(profile(), rate_bps=1e9, dilation=1, seed=1, balancing=way)
    with pytest.raises(UserError, match="switch number 16 is outside the 16 switches"):
        ports.configure(program, NEAR, settings)
