"""Libraries of collectives: what they choose, and what GPUs take for it."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.sim.endpoint.operations.schedule import Compute
from scenarios.collectives.communicators import Communicator, communicators
from scenarios.collectives.library import LIBRARIES, LibraryChoice, choose
from topologies.analysis.round_trip import ACK_BYTES, base_rtt_ns
from topologies.catalogue import load

CLUSTER = "rail_clos:hosts=2,gpus_per_host=8,spines=0"


def cluster() -> Communicator:
    (communicator,) = communicators(load(CLUSTER), "all", "AllReduce")
    return communicator


def chosen(
    name: str, size: int, algorithm: str = "auto", protocol: str = "auto", cut: int = 1
) -> LibraryChoice:
    return choose(name, cluster(), size, algorithm=algorithm, protocol=protocol, cut=cut)


@pytest.mark.parametrize(
    ("size", "algorithm", "protocol"),
    [
        (2**13, "double-tree", "LL"),
        (2**20, "double-tree", "LL"),
        (2**23, "double-tree", "Simple"),
        (2**27, "double-tree", "Simple"),
        (2**33, "ring", "Simple"),
    ],
)
def test_rccl_goes_from_trees_to_rings(size: int, algorithm: str, protocol: str) -> None:
    choice = chosen("rccl", size)
    assert (choice.algorithm, choice.protocol) == (algorithm, protocol)


@pytest.mark.parametrize(("size", "protocol"), [(2**12, "LL"), (2**24, "LL128"), (2**30, "Simple")])
def test_a_users_algorithm_has_the_protocol_that_suits_the_size(size: int, protocol: str) -> None:
    choice = chosen("nccl", size, algorithm="ring")
    assert (choice.algorithm, choice.protocol) == ("ring", protocol)


def test_a_step_takes_the_tables_time_without_that_of_networks() -> None:
    """RCCL's tree: 0.9 us of which the scale-up network has 0.7, and 10.5 us between hosts."""
    time, library = chosen("rccl", 2**13).gpu_time, LIBRARIES["rccl"]
    assert time.launch_ns == round((12.0 + library.launch_us) * 1000)
    assert time.copy_ns == 200
    assert time.write_ns == 10_500 - base_rtt_ns(load(CLUSTER), ACK_BYTES) // 2
    assert time.rate_bps == pytest.approx(library.rate * 8e9 * 0.92 * 0.85 / 3.8)


def test_the_emulated_ring_of_rccl_has_steps_that_can_be() -> None:
    """Its table has 320 us, so that small sizes take no ring."""
    assert chosen("rccl", 2**25, "ring", "Simple").gpu_time.write_ns < 26_000


@pytest.mark.parametrize(
    ("size", "algorithm", "octets"),
    [
        (2**23, "double-tree", 2**15),
        (2**25, "double-tree", 2**16),
        (2**28, "double-tree", 2**17),
        (2**21, "double-tree", 2**15),
        (2**25, "ring", 2**14),
        (2**33, "ring", 2**20),
    ],
)
def test_a_step_of_simple_takes_a_slice_of_one_channel(
    size: int, algorithm: str, octets: int
) -> None:
    """RCCL has 64 channels."""
    library = LIBRARIES["rccl"]
    time = chosen("rccl", size, algorithm, "Simple").gpu_time
    inside_us = {"double-tree": 2.3, "ring": 2.1}[algorithm] + octets / (1e3 * library.channel_rate)
    assert time.copy_ns == pytest.approx(inside_us * 1000 - 700, abs=1)


def test_a_thread_of_ll_waits_for_no_slice() -> None:
    assert chosen("rccl", 2**20, "double-tree", "LL").gpu_time.copy_ns == 200


def test_rccls_trees_send_nothing_down_before_all_has_come_up() -> None:
    allreduce, topology = scenario.load("allreduce"), load(CLUSTER)
    waits = {}
    for library in ("rccl", "nccl"):
        given = {"sizes": "4MiB", "algorithm": "tree", "library": library, "protocol": "Simple"}
        (trial,) = allreduce.schedules(allreduce.parameters(given), topology, 1)
        operations = trial.compile()[0].operations
        waits[library] = [one.after for one in operations if isinstance(one, Compute)]
    slices = 4 * 2**20 // 8 // 2**16  # of the channel whose root is rank 0
    assert [len(after) for after in waits["rccl"]] == [slices]
    assert waits["nccl"] == []


def test_a_size_that_is_cut_is_chosen_for_as_the_whole_with_less_latency() -> None:
    whole, part = chosen("rccl", 2**33), chosen("rccl", 2**26, cut=128)
    assert (part.algorithm, part.protocol) == (whole.algorithm, whole.protocol)
    assert part.gpu_time.launch_ns == pytest.approx(whole.gpu_time.launch_ns / 128, abs=1)
    assert part.gpu_time.rate_bps == whole.gpu_time.rate_bps


def test_nvls_has_the_rate_that_nccl_models() -> None:
    """Eight heads of 57.7 GB/s between two servers; the tables have 20.9 us for a step there."""
    choice = chosen("nccl", 2**26, "nvls")
    assert (choice.algorithm, choice.protocol) == ("nvls", "Simple")
    assert choice.gpu_time.rate_bps == pytest.approx(8 * 57.7 * 8e9)
    assert choice.gpu_time.write_ns == 20_900 - base_rtt_ns(load(CLUSTER), ACK_BYTES) // 2


def test_nvls_is_of_nccl_and_simple() -> None:
    with pytest.raises(UserError, match="library=rccl has no algorithm=nvls; take library=nccl"):
        chosen("rccl", 2**26, "nvls")
    with pytest.raises(UserError, match="algorithm=nvls has no protocol LL; take Simple"):
        chosen("nccl", 2**26, "nvls", "LL")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(UserError, match="no protocol LL128; take LL, Simple or auto"):
        chosen("rccl", 2**20, protocol="LL128")


def test_schedules_carry_the_time_of_the_library() -> None:
    allreduce, topology = scenario.load("allreduce"), load(CLUSTER)
    for given, expected in (({}, None), ({"library": "nccl"}, chosen("nccl", 2**16, "ring"))):
        parameters = allreduce.parameters({"sizes": "64KiB", **given})
        (trial,) = allreduce.schedules(parameters, topology, 1)
        taken = {one.gpu_time for one in trial.compile()}
        assert taken == {None if expected is None else expected.gpu_time}
        assert trial.facts.get("protocol") == (None if expected is None else expected.protocol)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cut": "8"}, "cut changes nothing beside library=none"),
        ({"protocol": "LL"}, "protocol changes nothing beside library=none"),
        (
            {"library": "nccl", "algorithm": "auto", "tuning": "a.yaml"},
            "tuning changes nothing beside library=nccl",
        ),
    ],
)
def test_what_a_library_leaves_idle_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        scenario.load("allreduce").parameters(given)
