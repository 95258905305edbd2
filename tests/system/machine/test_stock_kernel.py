"""Test what the running kernel lacks, on Debian's: netem, VLANs, bonds, modules loaded on demand.

Boots that kernel in a virtual machine on this machine's own files and runs a part of the tests
there.  On a kernel that has netem they run as they are, and this one has nothing to add.
"""

import os
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest

from emulator.dataplane.control_plane import static_entries
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.switch_fitting import size_of
from tests import CHECKOUT
from tests.harness.lab import stock_kernel
from tests.harness.lab.stock_kernel import Outcome
from tests.harness.lab.traffic import within
from tests.system.control_plane.test_settled_runs import SEGMENTS
from tests.system.engine.test_run_digests import RUNS
from tests.system.fabric.test_bonds import SHAPE as BONDED
from topologies import catalogue

pytestmark = [pytest.mark.root, pytest.mark.slow]

BUDGET_S = 1200.0  # beside other tests, on a slow machine

#: Each is in the machine to answer: does it do there what it does here?
CHECKS = (
    "tests/system/fabric/test_cable_delay.py",
    "tests/system/endpoint/test_socket_release.py",
    "tests/system/endpoint/test_endpoint_nic.py::test_back_pressure_instead_of_loss",
    "tests/system/fabric/test_fabric_build.py::test_every_gpu_reaches_every_other",
    "tests/system/fabric/test_fabric_build.py::test_expedited_forwarding_and_routing_are_control",
    "tests/system/fabric/test_fabric_build.py::test_control_goes_before_data",
    "tests/system/fabric/test_vlans.py::TestWithVlans",
    "tests/system/fabric/test_containerlab.py::TestWithVlansAndBonds",
    "tests/system/fabric/test_stretched_rails.py::"
    "test_marks_come_out_of_the_tunnel_and_nothing_is_trimmed_in_it",
    "tests/system/fabric/test_bonds.py::TestWithBonds",
    "tests/system/fabric/test_inner_carrier.py::test_bridge_loses_carrier_with_its_last_port",
    "tests/system/fabric/test_inner_carrier.py::test_bond_has_heard_of_a_pulled_cable",
    "tests/system/control_plane/test_multihoming.py::TestWithSegments",
    "tests/system/asic/test_against_kernel.py",
    "tests/system/asic/test_lab_asic.py::test_incast_is_marked_and_trimmed_at_the_last_hop",
    "tests/system/engine/test_run_digests.py::test_listed_runs_have_their_digests[uet]",
    "tests/system/engine/test_run_digests.py::test_listed_runs_have_their_digests[two workers]",
    "tests/system/engine/test_run_digests.py::test_listed_runs_have_their_digests[trimming]",
    "tests/system/engine/test_run_digests.py::test_listed_runs_have_their_digests[bonds]",
)
#: What the runs among them are on.
OF_DIGESTS = (
    "rail_clos:hosts=2,gpus_per_host=2,spines=1",
    "rail_clos:hosts=5,gpus_per_host=1,spines=1,uplinks_per_spine=1",
    "clos:hosts=2,gpus_per_host=1,nic_ports=2,homing=bond,spines=1",
)


def lacking() -> str | None:
    """Why there is nothing to do here, or None."""
    if os.geteuid() == 0 and capabilities.has("netem"):
        return "this kernel has netem: the tests that need it ran here"
    return stock_kernel.lacking()


#: Runs of a fabric whose GPUs are Ethernet segments, while a switch of one fails: five switches
#: with FRR's daemons.
SEGMENTS_CHECK = (
    "tests/system/control_plane/test_settled_runs.py::"
    "test_routes_change_at_the_same_frame_in_every_run[segments]"
)
#: Runs that a modelled fabric is held to, and that take bonds or VLANs of the kernel.
MODELLED = (
    *("bonds", "bonds, a cable pulled", "bonds, native UET"),
    "VLANs, a rail without carrier",
)
#: Those among them whose GPUs are Ethernet segments, with FRR's daemons in five switches.
MODELLED_SEGMENTS = ("Ethernet segments", "Ethernet segments, a cable pulled")
#: Tenants whose VRFs are devices of the kernel.
TENANTS_CHECKS = ("tests/system/cluster/test_tenant_vrfs.py",)


def boot() -> Outcome:
    for size in (Size(), size_of(catalogue.load(BONDED))):
        with asic_program.built(size):
            pass  # into the cache of this machine: an emulated processor takes long to compile
    for spec in OF_DIGESTS:
        with asic_program.built(size_of(catalogue.load(spec)), clock="virtual"):
            pass
    return booted(*CHECKS)


def boot_for_segments() -> Outcome:
    with asic_program.built(size_of(catalogue.load(SEGMENTS)), clock="virtual"):
        pass
    return booted(SEGMENTS_CHECK)


def boot_for_tenants() -> Outcome:
    return booted(*TENANTS_CHECKS)


def boot_for_models() -> Outcome:
    return booted_for_runs(MODELLED)


def boot_for_modelled_segments() -> Outcome:
    return booted_for_runs(MODELLED_SEGMENTS)


def booted_for_runs(names: Collection[str]) -> Outcome:
    """Run the listed runs ``names`` in the machine, with programs that are compiled before."""
    for run in RUNS:
        if run["name"] in names:
            words = shlex.split(run["command"])
            spec = words[words.index("--topology") + 1]
            with asic_program.built(size_of(catalogue.load(spec)), clock="virtual"):
                pass
    listed = "tests/system/engine/test_run_digests.py::test_listed_runs_have_their_digests"
    return booted(*(f"{listed}[{name}]" for name in names))


def booted(*checks: str) -> Outcome:
    """Run the tests ``checks`` in the machine; what zebra has preloaded is compiled before."""
    with static_entries.built():
        pass
    pytest_there = (
        f"{sys.executable} -m pytest -p no:cacheprovider --basetemp=/tmp/pytest"
        f" --timeout={BUDGET_S:g}"  # an emulated processor is slow
        f" --junitxml=/run/out/results.xml --durations=0 {shlex.join(checks)}"
    )
    # nothing may be left: no namespace, no lab, no process that one of them started
    script = f"uname -r; {pytest_there}; status=$?; ls -A /run/netns /run/uetemu; exit $status"
    return stock_kernel.run(
        script, directory=CHECKOUT, files=stock_kernel.folder(), budget_s=BUDGET_S
    )


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_machine_ends_with_the_tests(end: signal.Signals, tmp_path: Path) -> None:
    if reason := lacking():
        pytest.skip(reason)
    program = (
        "import pathlib, tempfile; from tests.harness.lab import stock_kernel as machine\n"
        "run = lambda: machine.run('sleep 600', directory=pathlib.Path('/'),"
        f" files=pathlib.Path({str(tmp_path)!r}), budget_s=600)\n"
        "machine.begin(run); machine.ended(run)\n"
    )
    tests = subprocess.Popen([sys.executable, "-c", program], cwd=CHECKOUT)
    try:
        within(60, lambda: machines_on(tmp_path) != [], "a machine boots")
    finally:
        tests.send_signal(end)
        tests.wait()
    within(60, lambda: machines_on(tmp_path) == [], "the machine ends")


def machines_on(files: Path) -> list[int]:
    """The processes whose command line names ``files``, as QEMU's does."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            words = line.read_bytes()
            if words.startswith(stock_kernel.QEMU.encode()) and os.fsencode(files) in words:
                found.append(int(line.parent.name))
    return found


@pytest.mark.boots(lacking, boot)
def test_fabrics_work_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    assert_passed(stock_kernel.ended(boot), len(CHECKS))


@pytest.mark.nightly
@pytest.mark.timeout(BUDGET_S + 300)
def test_segments_outlive_a_switch_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    assert_passed(stock_kernel.ended(boot_for_segments), 1)


@pytest.mark.nightly
@pytest.mark.timeout(BUDGET_S + 300)
def test_tenants_have_vrf_devices_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    assert_passed(stock_kernel.ended(boot_for_tenants), len(TENANTS_CHECKS))


@pytest.mark.nightly
@pytest.mark.timeout(BUDGET_S + 300)
def test_bonds_and_vlans_have_the_digests_of_models_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    assert_passed(stock_kernel.ended(boot_for_models), len(MODELLED))


@pytest.mark.nightly
@pytest.mark.timeout(BUDGET_S + 300)
def test_segments_have_the_digests_of_models_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    assert_passed(stock_kernel.ended(boot_for_modelled_segments), len(MODELLED_SEGMENTS))


def assert_passed(outcome: Outcome, tests: int) -> None:
    """The machine ended, at least so many ``tests`` passed there, and nothing is left of them."""
    story = outcome.console[-2000:] + outcome.output[-8000:]
    assert outcome.status is not None, f"not done after {outcome.seconds:.0f} s:\n{story}"
    assert outcome.status == 0, story
    cases = ElementTree.parse(outcome.files / "results.xml").findall(".//testcase")
    assert len(cases) >= tests
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert skipped == [], story
    assert outcome.output.rstrip().endswith("/run/netns:\n\n/run/uetemu:"), story
