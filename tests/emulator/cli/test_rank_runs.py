"""Processes of a launcher carry out some verbs together, and end together.

Machines whose ranks would not fit together are refused by name.
"""

import dataclasses
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulator import scenario
from emulator.cli import rank_runs
from emulator.cli.rank_runs import RankMachine, check_alike
from emulator.dataplane.kernel.launcher import RankPlace
from emulator.errors import UserError
from emulator.run.plan.run_plan import RunPlan, RunRequest
from emulator.workers.ranks import guardian
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.memory_channel import MemoryChannel, ranks_of
from topologies import catalogue


def request(**chosen: Any) -> RunRequest:
    loaded = scenario.load("allreduce")
    return RunRequest(scenario=loaded, parameters=loaded.parameters({}), **chosen)


@pytest.mark.parametrize("verb", ["doctor", "clean", "bench", "up", None])
def test_verbs_of_one_process_are_refused(verb: str | None) -> None:
    with pytest.raises(UserError, match=r"is for one process, and a launcher has started 2: only"):
        rank_runs.join(ranks_of(2)[0], verb)


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"workers": 2}, "--workers 2 is given, and the launcher has started 2 ranks"),
    ],
)
def test_requests_for_one_machine_are_refused(chosen: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        rank_runs.part_of(request(**chosen), ranks_of(2)[0])


def test_a_request_without_a_launcher_stays_as_it_is() -> None:
    asked = request(fabric="model")
    assert rank_runs.planned(asked, None).request is asked


def test_each_rank_works_on_a_lab_of_its_own() -> None:
    first, second = ranks_of(2)
    first.share("name of the lab", lambda _: "demo")
    share = rank_runs.part_of(request(lab="another"), second)
    assert (share.lab, share.workers) == ("demo-r1", 2)


def plan(spec: str, control_plane: str = "static", parts: list[list[str]] | None = None) -> RunPlan:
    topology = catalogue.load(spec)
    profile = dataclasses.replace(topology.profile, control_plane=control_plane)
    topology = dataclasses.replace(topology, profile=profile)
    asked = SimpleNamespace(parts=parts, fabric="kernel")
    return cast(RunPlan, SimpleNamespace(topology=topology, request=asked))


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (
            lambda: plan("rail_clos:hosts=2,gpus_per_host=2,spines=1"),
            "has started 3 ranks, and the fabric has parts for 2, each a leaf switch",
        ),
        (lambda: plan("rail_clos", "ebgp"), "control plane ebgp is one machine's"),
    ],
)
def test_fabrics_without_a_part_for_each_rank_are_refused(
    made: Callable[[], RunPlan], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        rank_runs.agree(made(), ranks_of(3)[0])


def test_parts_for_another_number_of_ranks_are_refused() -> None:
    asked = plan("rail_clos", parts=[["rail0"], ["rail1"]])
    with pytest.raises(UserError, match="--parts has 2 lines, and the launcher has started 3"):
        rank_runs.agree(asked, ranks_of(3)[0])


@pytest.mark.parametrize("other", [[{"file": "mine.py", "sha256": "22"}], []])
def test_a_rank_with_another_plug_in_is_refused(other: list[dict[str, str]]) -> None:
    files = [[{"file": "mine.py", "sha256": "11"}], other]
    with pytest.raises(
        UserError, match=r"rank 1 .* has another mine\.py than MPI rank 0 on a, or none"
    ):
        rank_runs.check_files(files, ranks_of(2)[0])
    rank_runs.check_files(files[:1] * 2, ranks_of(2)[0])


class NoGuardian:
    """The watch of a rank that has no guardian: it notes what that would be told."""

    contact = None

    def __init__(self) -> None:
        self.is_over = False

    def over(self) -> None:
        self.is_over = True

    def death(self) -> None:
        """Know of nobody who has died."""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> NoGuardian:
    """The watch of a rank that is this process."""
    made = NoGuardian()
    monkeypatch.setattr(guardian, "guarded", lambda *_: made)
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, watch: NoGuardian) -> MemoryChannel:
    """The channel of the first of two ranks, of which the other never says anything."""
    channel = ranks_of(2)[0].channel
    assert isinstance(channel, MemoryChannel)
    monkeypatch.setattr(
        importlib, "import_module", lambda _: SimpleNamespace(MpiChannel=lambda: channel)
    )
    monkeypatch.setattr(Ranks.part, "__defaults__", (0.01,))
    return channel


def test_the_launcher_is_to_end_those_who_do_not_come_to_their_end(
    alone: MemoryChannel, watch: NoGuardian
) -> None:
    assert rank_runs.carry_out(RankPlace(0, 2), lambda ranks: 3) == 3
    assert alone.aborted == 3
    assert watch.is_over


def test_a_failure_is_told_to_all_and_shown(
    alone: MemoryChannel, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(ranks: Ranks) -> int:
        raise ZeroDivisionError("ours")

    assert rank_runs.carry_out(RankPlace(0, 2), fail) == 1
    assert alone.aborted == 1
    assert b"ZeroDivisionError: ours" in alone.queues[0, 1][0]


def test_without_mpi4py_the_way_to_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watch: NoGuardian
) -> None:
    def missing(name: str) -> None:
        raise ImportError("No module named 'mpi4py'")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert rank_runs.carry_out(RankPlace(1, 2), lambda ranks: 0) == 1
    assert "vagrant/provision.sh --with mpi" in capsys.readouterr().err
    assert watch.is_over


HERE = RankMachine("a", "6.1.0-18-amd64", "0123456789ab")


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            RankMachine("b", HERE.kernel, "ba9876543210"),
            r"^MPI rank 1 on b has another uetemu \(ba9876543210\) than MPI rank 0 on a \(0123456",
        ),
        (
            RankMachine("b", "6.12.0-1-amd64", HERE.sources),
            r"^MPI rank 1 on b has kernel 6\.12\.0-1-amd64, and MPI rank 0 on a has 6\.1\.0-18",
        ),
    ],
)
def test_another_machine_is_refused(other: RankMachine, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check_alike([HERE, other], ranks_of(2)[0])


def test_equal_machines_are_taken() -> None:
    check_alike([HERE, RankMachine("b", HERE.kernel, HERE.sources)], ranks_of(2)[0])
    assert RankMachine.here() == RankMachine.here()
