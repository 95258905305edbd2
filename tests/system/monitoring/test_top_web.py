"""``uetemu top --web`` on a running lab and a run: its stream of states, its end, its refusals."""

import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest

from emulator.cli.labs.top_verb import command
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunProcess
from tests.harness.lab.traffic import blast, kill
from tests.harness.runs.processes import ENDLESS
from tests.harness.runs.served_verb import BUDGET_S, ServedVerb
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200"


def states(served: ServedVerb, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first state of the stream that is such; the stream must not end before."""
    with urlopen(f"{served.url}events", timeout=BUDGET_S) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        for line in stream:
            if line.startswith(b"data: "):
                state: dict[str, Any] = json.loads(line[6:])
                if until(state):
                    return state
    raise AssertionError("the stream ended")


def test_an_incast_is_streamed_until_the_lab_goes(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=20_000, switch=parse("shallow:balance=packet"))
    to = str(gpu_address(made.topology.node("h2g0")).ip)
    senders = [blast(made, node, to, size=4000, tos=2) for node in ("h0g0", "h1g0", "h1g1")]
    with ServedVerb("top", made.name, "--web", "--interval", "100ms") as served:
        try:
            assert made.name in served.get()

            def full(state: dict[str, Any]) -> bool:
                links = {row[0]: row for row in state.get("links", ())}
                return bool(links) and links["rail0:down2"][3] > 0.8

            state = states(served, full)
        finally:
            kill(*senders)
        assert max(state["lines"]["utilisation"]) > 0.8
        assert state["run"] is None
        assert state["dilation"] == 20_000
        down = threading.Thread(target=made.close)
        down.start()
        state = states(served, lambda one: one["ended"] is not None)
        assert state["ended"] == f"lab {made.name} has been taken down"
        assert state["links"]  # its last values
        _, err = served.process.communicate(timeout=BUDGET_S)
        down.join()
        assert (served.process.returncode, err) == (0, f"uetemu: {state['ended']}\n")


def test_a_run_is_streamed_and_ctrl_c_ends_the_page_alone(spawn: Callable[..., RunProcess]) -> None:
    run = spawn(*ENDLESS)
    run.event("started")
    with ServedVerb("top", run.lab, "--web", "--interval", "100ms") as served:
        state = states(served, lambda one: any(row[2] for row in one.get("links", ())))
        assert state["clock"] == "virtual"
        assert state["dilation"] is None
        assert state["run"]["scenario"] == "allreduce"
        assert served.interrupted() == (0, "")
    assert run.process.poll() is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--web", "--once"], "leave --once, --format and --rows out"),
        (["--web", "--format", "json"], "leave --once, --format and --rows out"),
        (["--web", "--listen", "x"], "'x' is no ADDRESS:PORT"),
        (["--listen", "127.0.0.1:1"], "give --web with it"),
        (["--web"], "there is no lab 'nobody-has-this'"),
    ],
)
def test_bad_input_gets_a_sentence(options: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        command.main(["nobody-has-this", *options], standalone_mode=False)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
