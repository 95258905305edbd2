"""NVLS: the scale-up switch sums and copies, and each port carries less."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.sim.endpoint.operations.schedule import Copy, Reduce, Schedule
from topologies.catalogue import load


def compiled(spec: str, algorithm: str, size: str = "8MiB", **given: str) -> list[Schedule]:
    allreduce = scenario.load("allreduce")
    parameters = allreduce.parameters({"sizes": size, "algorithm": algorithm, **given})
    (trial,) = allreduce.schedules(parameters, load(spec), 1)
    return list(trial.compile())


def test_a_port_carries_less_than_with_a_ring() -> None:
    """Of eight GPUs in one network: all of the data each way, where a ring's port has 7/4."""
    size = 8 * 2**20
    for one in compiled("rail_clos:hosts=1,gpus_per_host=8,spines=0", "nvls"):
        copies = [each for each in one.operations if isinstance(each, Copy)]
        assert {(each.fan_in, each.fan_out) for each in copies} == {(7, 1), (1, 7)}
        assert sum(each.local.length / each.fan_out for each in copies) == pytest.approx(size)


def test_the_sum_is_in_the_order_of_the_members_behind_the_head() -> None:
    spec = "rail_clos:hosts=1,gpus_per_host=4,spines=0"
    head = compiled(spec, "nvls", "256KiB")[2]
    summed = [each for each in head.operations if isinstance(each, Reduce)]
    firsts = [head.operations[each.after[-1]] for each in summed]
    assert [getattr(one, "peer", None) for one in firsts] == [3, 0, 1]


def test_without_a_switch_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"joined in a mesh; take algorithm=ring, or a topology"):
        compiled("rail_clos:hosts=2,gpus_per_host=4,spines=0,scale_up=mesh", "nvls")


@pytest.mark.parametrize("product", ["nvswitch2", "ualink,scale_up_links=4"])
def test_switches_that_do_not_sum_are_refused(product: str) -> None:
    with pytest.raises(UserError, match="those of rail_clos sum nothing; take algorithm=ring"):
        compiled(f"rail_clos:hosts=1,gpus_per_host=4,spines=0,scale_up={product}", "nvls")


def test_networks_of_unequal_size_are_refused() -> None:
    with pytest.raises(UserError, match="equally many GPUs of each scale-up network, and there"):
        compiled("rail_clos:hosts=3,gpus_per_host=4,spines=0", "nvls", ranks="0-3,8")
