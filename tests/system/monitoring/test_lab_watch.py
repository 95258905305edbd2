"""A lab that is watched while it goes: ports vanish one by one before its record says so."""

import subprocess

import pytest

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.virtual_state import NOW
from emulator.lab.monitoring.lab_watch import LabWatch
from emulator.lab.monitoring.metric_page import MetricPage
from tests.harness.lab.wire_tap import virtual
from tests.system.conftest import LabFactory

pytestmark = pytest.mark.root


def test_ports_that_vanish_while_a_virtual_clock_stands_keep_their_values(lab: LabFactory) -> None:
    made = virtual(lab, "rail_clos:hosts=2,gpus_per_host=1", switch=parse("lossless"))
    assert made.asic is not None
    assert made.asic.virtual is not None
    page = MetricPage()
    with LabWatch(made.name) as watch:
        watch.look()
        made.asic.virtual.switches[NOW] = 1000
        before = watch.look()
        assert before.picture is not None
        path = namespaces.path_of(made.name, "rail0")
        subprocess.run(["nsenter", f"--net={path}", "ip", "link", "delete", "down0"], check=True)
        after = watch.look()
        page.show(after)
    assert after.sample.readings == before.sample.readings
    assert after.picture == before.picture
