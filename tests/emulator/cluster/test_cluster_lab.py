"""The dilations of a cluster's networks are those requested, or the defaults."""

import pytest

from emulator.cluster.cluster_lab import DEFAULTS, dilations, member_name
from emulator.errors import UserError
from topologies import catalogue

CLUSTER = catalogue.load("cluster")


def test_what_is_not_set_has_its_default() -> None:
    assert dilations(CLUSTER, ["storage=7.5"]) == {**DEFAULTS, "storage": 7.5}


@pytest.mark.parametrize(
    ("word", "stated"),
    [
        ("storage", "is not NETWORK=NUMBER"),
        ("storge=1", "did you mean storage"),
        ("backend=1", "set by --dilation"),
        ("storage=0", "a number above 0"),
        ("storage=inf", "a number above 0"),
        ("storage=nan", "a number above 0"),
        ("storage=x", "a number above 0"),
    ],
)
def test_a_wrong_word_is_refused(word: str, stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        dilations(CLUSTER, [word])


def test_a_fabric_alone_has_no_networks_to_stretch() -> None:
    with pytest.raises(UserError, match="the topology has no other networks"):
        dilations(catalogue.load("clos"), ["storage=2"])


def test_a_name_must_leave_room_for_those_of_the_networks() -> None:
    with pytest.raises(UserError, match="too long"):
        member_name("a" * 24, "storage")
