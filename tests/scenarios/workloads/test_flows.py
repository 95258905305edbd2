"""Flows of more writes than can be compiled soon are refused, and what is named would do."""

import re

import pytest
from click.testing import CliRunner

from emulator.cli.run_verb import command
from emulator.errors import UserError
from scenarios.workloads.flows import Flow, Traffic, across_rails
from topologies import catalogue
from topologies.catalogue import load

FABRIC = catalogue.load("rail_clos:hosts=2,gpus_per_host=1,spines=1,uplinks_per_spine=1")


def traffic(length: int, message: int) -> Traffic:
    return Traffic(FABRIC, (Flow(source=0, destination=1, length=length),), message, 1, 1)


@pytest.mark.parametrize(
    ("length", "message"),
    [(524_288, 1), (2**40, 64 * 2**10), (3_000_000_000, 4095)],
    ids=["octets", "packets", "short"],
)
def test_the_message_that_is_named_would_do(length: int, message: int) -> None:
    with pytest.raises(UserError, match=r"writes of \d+ B, and more than \d+ ") as refused:
        traffic(length, message)
    (named,) = re.findall(r"--param message=(\d+)", str(refused.value))
    traffic(length, int(named))
    with pytest.raises(UserError):
        traffic(length, int(named) // 2)


def test_many_writes_of_a_packet_or_more_go_through() -> None:
    traffic(2**32, 4096 + 1024)


def test_more_flows_than_writes_would_do_name_no_message() -> None:
    paced = Flow(source=0, destination=1, length=2**20, every_ns=1, message=1)
    with pytest.raises(UserError, match=r"minutes: take shorter flows, or fewer GPUs$"):
        Traffic(FABRIC, (paced,), 64, 1, 1)


def test_the_command_line_names_a_message_that_would_do() -> None:
    words = "permutation --fabric model --param message=1 --param in_flight=1 --sizes 32KiB"
    ended = CliRunner().invoke(command, words.split())
    assert isinstance(ended.exception, UserError)
    assert "524288 writes of 1 B" in str(ended.exception)
    assert "--param message=4, shorter flows" in str(ended.exception)


def test_each_rank_has_a_partner_on_another_rail_and_server() -> None:
    topology = load("rail_clos:hosts=4,gpus_per_host=4")
    partners = across_rails(topology, 1)
    assert sorted(partners) == list(range(16))
    for rank, to in enumerate(partners):
        assert rank // 4 != to // 4
        assert rank % 4 != to % 4


def test_a_large_fabric_needs_no_deep_recursion() -> None:
    topology = load("fat_tree:radix=64,leaves=40,gpus_per_host=8")
    partners = across_rails(topology, 1)
    assert sorted(partners) == list(range(len(topology.gpus)))


def test_a_fabric_without_one_is_refused() -> None:
    with pytest.raises(UserError, match="partner of its own"):
        across_rails(load("rail_clos:hosts=2,gpus_per_host=1"), 1)
