"""The services that are requested are those planned, or a sentence says why they cannot be."""

import pytest

from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import KINDS, NeededProgram, ServiceKind, plan_services
from emulator.errors import UserError
from topologies import catalogue
from topologies.model import MANAGEMENT

MACHINES = MachineMap(catalogue.load("cluster"))


def test_machines_are_known_by_what_they_are() -> None:
    assert MACHINES.servers == ("h0", "h1", "h2", "h3")
    assert MACHINES.users == ("user0",)
    assert MACHINES.named("storage") == ("storage0", "storage1")
    assert MACHINES.address("h0", MANAGEMENT) == "100.80.0.2"


def test_a_service_runs_where_its_kind_or_the_user_says() -> None:
    assert [one.name for one in plan_services("files", MACHINES)] == ["files@head0"]
    chosen = plan_services("files@h0+storage1+h0", MACHINES)
    assert [one.name for one in chosen] == ["files@h0", "files@storage1"]
    assert plan_services("none", MACHINES) == plan_services("", MACHINES) == ()


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("fles", "did you mean files"),
        ("files,files@h0", "given twice"),
        ("files@h9", "there is no machine 'h9'"),
        ("files@user0", "user0 is not in the network management; it is in frontend"),
    ],
)
def test_a_wrong_request_is_refused(text: str, stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        plan_services(text, MACHINES)


def test_a_cluster_without_the_network_has_no_place() -> None:
    alone = MachineMap(catalogue.load("cluster:networks=frontend"))
    with pytest.raises(UserError, match="head0 is not in the network management"):
        plan_services("files", alone)
    with pytest.raises(UserError, match="no machine here has a place"):
        plan_services("files", MachineMap(catalogue.load("clos")))


def test_a_missing_program_is_named_with_its_package() -> None:
    kind = ServiceKind(
        name="moon",
        meaning="the moon's tides",
        network=MANAGEMENT,
        machines=lambda machines: machines.servers,
        command=lambda place: ["moond"],
        programs=(NeededProgram(command="moond-is-nowhere", package="moon"),),
    )
    KINDS.register(kind)
    try:
        with pytest.raises(UserError, match=r"run vagrant/provision\.sh --with cluster"):
            plan_services("moon", MACHINES)
    finally:
        KINDS.remove("moon")
