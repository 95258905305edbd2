"""GPUs with two ports in runs: both carry, either may be pulled or swallow what comes in."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.runs.processes import begun, ended

TWO_PORTS = "clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2"
PLANES = f"{TWO_PORTS},planes=own"
FOUR_PORTS = "clos:hosts=2,gpus_per_host=2,rails_per_switch=2,spines=1,nic_ports=4"


def run(folder: Path, spec: str, *arguments: str) -> dict[str, Any]:
    """Return the one row of an AllReduce, with the packets that each port of a GPU has sent."""
    size = () if "--sizes" in arguments else ("--sizes", "1MiB")
    words = ("--topology", spec, *size, "--iterations", "1", "--fabric", "model")
    process = begun(folder, *words, "--param", "warmups=0", "--capture", "none", *arguments)
    ended(process)
    (row,) = process.result["rows"]
    assert row["wrong"] == 0
    return {
        **row,
        "sent": {name: port["tx_packets"] for name, port in process.result["ports"].items()},
    }


@pytest.mark.parametrize("spec", [TWO_PORTS, PLANES, FOUR_PORTS])
def test_a_port_without_carrier_is_left_alone(spec: str, tmp_path: Path) -> None:
    both = run(tmp_path, spec)["sent"]
    assert both["h0g0:eth0"] == pytest.approx(both["h0g0:eth1"], rel=0.2)
    pulled = run(tmp_path, spec, "--fault", "t=1ns link h0g0:eth0 down")["sent"]
    # what is sent before, in the undisturbed iteration, is all that the port carries
    assert pulled["h0g0:eth0"] < 1.2 * both["h0g0:eth0"]
    assert pulled["h0g0:eth1"] > 1.8 * both["h0g0:eth1"]


def test_a_port_that_swallows_what_comes_in_is_avoided(tmp_path: Path) -> None:
    """Its entropy values are not acknowledged; the neighbour that sends to h0g0 learns that."""
    size = ("--sizes", "8MiB")
    both = run(tmp_path, TWO_PORTS, *size)["sent"]
    black = run(tmp_path, TWO_PORTS, *size, "--fault", "t=1ns link rail0:down0 blackhole=out")[
        "sent"
    ]
    swallowed, carried = (black[name] - both[name] for name in ("h1g0:eth0", "h1g0:eth1"))
    assert swallowed < carried / 4
