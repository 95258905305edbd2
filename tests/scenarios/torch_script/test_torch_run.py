"""The scenario of a script."""

import pytest

from scenarios.torch_script.torch_run import ScriptParameters, TorchScript


@pytest.mark.parametrize(
    ("ranks", "hosts", "gpus"), [(1, 1, 1), (2, 2, 1), (6, 2, 3), (7, 7, 1), (16, 2, 8), (24, 3, 8)]
)
def test_ranks_without_a_topology_stand_in_hosts_of_equally_many(
    ranks: int, hosts: int, gpus: int
) -> None:
    def drives(*_: object) -> None:
        raise AssertionError("nothing is driven")

    script = TorchScript("train.py", drives, ranks, "auto")  # type: ignore[arg-type]
    assert script.topology(ScriptParameters()) == f"rail_clos:hosts={hosts},gpus_per_host={gpus}"
