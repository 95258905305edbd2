"""What the running kernel lacks, on Debian's: netem, VLANs, bonds, modules loaded on demand.

Boots that kernel in a virtual machine on this machine's own files and runs a part of the tests
there.  On a kernel that has netem they run as they are, and this one has nothing to add.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from emulator.asic import program as asic_program
from emulator.asic.fitting import size_of
from emulator.asic.program import Size
from emulator.fabric import capabilities
from tests.fabric import stock_kernel
from tests.fabric.stock_kernel import Outcome
from tests.fabric.test_bonds import SHAPE as BONDED
from topologies import catalogue

pytestmark = [pytest.mark.root, pytest.mark.slow]

CHECKOUT = Path(__file__).parents[2]
BUDGET_S = 900.0  # beside other tests, on a slow machine

#: Each is in the machine to answer: does it do there what it does here?
CHECKS = (
    "tests/fabric/test_cable_delay.py",
    "tests/fabric/test_release.py",
    "tests/fabric/test_endpoint_nic.py::test_back_pressure_instead_of_loss",
    "tests/fabric/test_build.py::test_every_gpu_reaches_every_other",
    "tests/fabric/test_build.py::test_expedited_forwarding_and_routing_are_control",
    "tests/fabric/test_build.py::test_control_goes_before_data",
    "tests/fabric/test_vlans.py::TestWithVlans",
    "tests/fabric/test_containerlab.py::TestWithVlansAndBonds",
    "tests/fabric/test_stretched_rails.py::"
    "test_marks_come_out_of_the_tunnel_and_nothing_is_trimmed_in_it",
    "tests/fabric/test_bonds.py::TestWithBonds",
    "tests/fabric/test_multihoming.py::TestWithSegments",
    "tests/asic/test_against_kernel.py",
    "tests/fabric/test_lab_asic.py::test_incast_is_marked_and_trimmed_at_the_last_hop",
)


def lacking() -> str | None:
    """Why there is nothing to do here, or None."""
    if os.geteuid() == 0 and capabilities.has("netem"):
        return "this kernel has netem: the tests that need it ran here"
    return stock_kernel.lacking()


def boot() -> Outcome:
    pytest_there = (
        f"{sys.executable} -m pytest -p no:cacheprovider --basetemp=/tmp/pytest"
        f" --timeout={BUDGET_S:g}"  # an emulated processor is slow
        f" --junitxml=/run/out/results.xml --durations=0 {' '.join(CHECKS)}"
    )
    # nothing may be left: no namespace, no lab, no process that one of them started
    for size in (Size(), size_of(catalogue.load(BONDED))):
        with asic_program.built(size):
            pass  # into the cache of this machine: an emulated processor takes long to compile
    script = f"uname -r; {pytest_there}; status=$?; ls -A /run/netns /run/uetemu; exit $status"
    return stock_kernel.run(
        script, directory=CHECKOUT, files=stock_kernel.folder(), budget_s=BUDGET_S
    )


@pytest.mark.boots(lacking, boot)
def test_fabrics_work_on_debians_kernel() -> None:
    if reason := lacking():
        pytest.skip(reason)
    outcome = stock_kernel.ended(boot)
    story = outcome.console[-2000:] + outcome.output[-8000:]
    assert outcome.status is not None, f"not done after {outcome.seconds:.0f} s:\n{story}"
    assert outcome.status == 0, story
    cases = ElementTree.parse(outcome.files / "results.xml").findall(".//testcase")
    assert len(cases) >= len(CHECKS)
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert skipped == [], story
    assert outcome.output.rstrip().endswith("/run/netns:\n\n/run/uetemu:"), story
