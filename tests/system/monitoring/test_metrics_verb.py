"""``uetemu metrics`` on running labs and runs: what it exports, how it ends, what it refuses."""

import json
import signal
import threading
from collections.abc import Callable

import pytest

from emulator.cli.labs.metrics_verb import command
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunProcess
from tests.harness.lab.traffic import blast, kill
from tests.harness.runs.processes import SMALL
from tests.harness.runs.served_verb import ServedVerb
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address
from topologies.units import UnitError

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200"
OVERFULL = '{port="rail0:down2",tier="rail to gpu"}'


def test_an_incast_is_exported_and_the_end_is_clean(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=20_000, switch=parse("shallow:balance=packet"))
    to = str(gpu_address(made.topology.node("h2g0")).ip)
    senders = [blast(made, node, to, size=4000, tos=2) for node in ("h0g0", "h1g0", "h1g1")]
    try:
        with ServedVerb("metrics", made.name, "--interval", "100ms") as served:
            name = f"uetemu_port_trimmed_packets_total{OVERFULL}"
            found = served.values()
            while not (found.get(name) and found[f"uetemu_port_utilization_ratio{OVERFULL}"] > 0.8):
                assert served.process.poll() is None
                found = served.values()
            tier = '{tier="rail to gpu"}'
            assert found[f"uetemu_tier_trimmed_packets_total{tier}"] == found[name]
            assert found[f"uetemu_tier_utilization_max_ratio{tier}"] > 0.8
            assert found[f"uetemu_port_queue_peak_bytes{OVERFULL}"] > 0
            assert found["uetemu_dilation_ratio"] == 20_000
            assert not [one for one in found if "uetemu_run_" in one]  # a lab without a run
            assert served.interrupted() == (0, "")
    finally:
        kill(*senders)


def test_the_last_values_stay_for_a_while(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=20_000, switch=parse("shallow"))
    with ServedVerb("metrics", made.name, "--interval", "50ms", "--keep", "2s") as served:
        served.until("uetemu_tier_links" + '{tier="rail to gpu"}', 6)
        down = threading.Thread(target=made.close)
        down.start()
        found = served.until("uetemu_lab_running", 0)
        assert found['uetemu_tier_links{tier="rail to gpu"}'] == 6
        _, err = served.process.communicate(timeout=60)
        down.join()
        assert served.process.returncode == 0
        assert err == f"uetemu: lab {made.name} has been taken down; its last values stay for 2 s\n"


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_a_run_is_followed_to_its_end(spawn: Callable[..., RunProcess], transport: str) -> None:
    run = spawn(*SMALL, "--transport", transport, "--sizes", "32KiB,1MiB")
    run.process.send_signal(signal.SIGSTOP)  # until somebody watches
    with ServedVerb("metrics", f"{run.lab}*", "--follow", "--interval", "50ms") as served:
        assert served.values() == {"uetemu_lab_running": 0}
        run.process.send_signal(signal.SIGCONT)
        assert run.finish().status == 0
        found = served.until("uetemu_run_ended", 1)
        assert served.interrupted() == (0, "")
    facts = next(name for name in found if name.startswith("uetemu_run_info"))
    assert json.dumps(str(run.folder)) in facts
    last = run.result["rows"][-1]
    label = (
        f'{{collective="all_reduce",size_bytes="1048576",switch="{last["switch"]}",'
        f'transport="{last["transport"]}"}}'
    )
    busbw = found[f"uetemu_row_bus_bandwidth_bytes_per_fabric_second{label}"]
    assert busbw == pytest.approx(last["busbw_gbps"] * 1e9)
    assert found["uetemu_run_rows_total"] == 2
    sent = sum(row["data_packets"] for row in run.result["rows"])
    assert (
        found[
            f'uetemu_transport_data_packets_total{{kind="first",transport="{last["transport"]}"}}'
        ]
        == sent
    )
    assert found["uetemu_lab_running"] == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--listen", "here"], "'here' is no ADDRESS:PORT"),
        (["--interval", "1ms"], "take at least 50 ms of the wall clock"),
        (["--keep", "long"], "is not a time"),
        ([], "there is no lab 'nobody-has-this'"),
    ],
)
def test_bad_input_gets_a_sentence(options: list[str], sentence: str) -> None:
    with pytest.raises((UserError, UnitError)) as refused:
        command.main(["nobody-has-this", *options], standalone_mode=False)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_address_that_is_not_this_machines_is_refused(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=20_000)
    with pytest.raises(UserError, match=r"cannot listen on 192.0.2.1:0: .*--listen"):
        command.main([made.name, "--listen", "192.0.2.1:0"], standalone_mode=False)
