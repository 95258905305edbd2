"""The trace scenario: its parameters, its default fabric, and files on the command line."""

from pathlib import Path

import pytest

from emulator import scenario
from emulator.cli.run_options import files_text
from emulator.errors import UserError
from topologies.catalogue import load


def parameters(file: Path, **given: str) -> object:
    return scenario.load("trace").parameters({"files": str(file), **given})


DATA = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    file = tmp_path / "a.csv"
    file.write_text("operation,size,ranks,root,duration\ncompute,,,,8us\nall_reduce,4KiB\n")
    return file


@pytest.mark.parametrize(
    ("ranks", "spec"),
    [
        ("1", "rail_clos:hosts=2,gpus_per_host=1"),
        ("7", "rail_clos:hosts=7,gpus_per_host=1"),
        ("9", "rail_clos:hosts=3,gpus_per_host=4"),
        ("2048", "rail_clos:hosts=512,gpus_per_host=4,subnet_prefix=/20"),
    ],
)
def test_the_fabric_has_a_gpu_for_each_rank(listed: Path, ranks: str, spec: str) -> None:
    trace = scenario.load("trace")
    assert trace.topology(parameters(listed, ranks=ranks)) == spec


def test_idle_ranks_are_told_and_left_out_on_request() -> None:
    trace = scenario.load("trace")
    matrix = DATA / "3_of_8192_nodes.cm"
    with pytest.raises(UserError, match="has 8192 ranks and 3 of them do anything"):
        trace.topology(parameters(matrix))
    with pytest.raises(UserError, match="has 2 GPUs; take a fabric with 8192 or more"):
        trace.schedules(parameters(matrix), load("rail_clos:hosts=2,gpus_per_host=1"), 1)
    with pytest.raises(UserError, match=r"4 GPUs; take --param idle_ranks=drop for the 3"):
        trace.schedules(parameters(matrix), load("rail_clos:hosts=4,gpus_per_host=1"), 1)
    dropped = parameters(matrix, idle_ranks="drop")
    assert trace.topology(dropped) == "rail_clos:hosts=3,gpus_per_host=1"
    (trial,) = trace.schedules(dropped, load("rail_clos:hosts=4,gpus_per_host=1"), 1)
    assert trial.facts["ranks"] == 3


def test_collectives_of_one_rank_are_warned_of() -> None:
    trace = scenario.load("trace")
    layers = parameters(DATA / "groups_of_one_rank.txt", ranks="8")
    (trial,) = trace.schedules(layers, load("rail_clos:hosts=2,gpus_per_host=4"), 1)
    (warning,) = trial.warnings
    assert "24 of 24 collectives are of groups of one rank and move nothing" in warning
    (more,) = trace.schedules(
        parameters(DATA / "groups_of_one_rank.txt", ranks="16"),
        load("rail_clos:hosts=4,gpus_per_host=4"),
        1,
    )
    assert not more.warnings


def test_scales_are_facts_of_the_row(listed: Path) -> None:
    trace = scenario.load("trace")
    given = parameters(listed, ranks="4", compute_scale="1/4", size_scale="0.5")
    (trial,) = trace.schedules(given, load("rail_clos:hosts=4,gpus_per_host=1"), 1)
    assert trial.facts["compute_us"] == 2.0
    assert (trial.facts["compute_scale"], trial.facts["size_scale"]) == (0.25, 0.5)
    assert trial.size_bytes == 2048
    assert [len(one.operations) > 0 for one in trial.compile()] == [True] * 4


def test_no_scale_is_shown_as_nothing(listed: Path) -> None:
    columns = {column.key: column for column in scenario.load("trace").module.COLUMNS}
    assert columns["size_scale"].cell({"size_scale": 1 / 65536}).strip() == "1.53e-05"
    assert columns["compute_scale"].cell({"compute_scale": 0.25}).strip() == "0.25"
    assert columns["size_scale"].cell({"size_scale": 1.0}).strip() == "1"


@pytest.mark.parametrize("factor", ["-1", "1e9", "x", "1/0", "nan", ""])
def test_a_factor_is_a_number_or_a_fraction(listed: Path, factor: str) -> None:
    with pytest.raises(UserError, match=r"compute_scale is .*; write a factor such as 0.5"):
        parameters(listed, compute_scale=factor)


def test_files_are_those_of_a_scenario_that_reads_some() -> None:
    trace, other = scenario.load("trace"), scenario.load("incast")
    assert files_text(trace, ["a.0.et", "a.1.et"], {}) == "a.0.et,a.1.et"
    with pytest.raises(UserError, match=r"scenario incast reads no files, and 'a\.et' is given"):
        files_text(other, ["a.et"], {})
    with pytest.raises(UserError, match="and --param files as well; keep one of them"):
        files_text(trace, ["a.et"], {"files": "b.et"})
    with pytest.raises(UserError, match="has a comma in its name; rename the file"):
        files_text(trace, ["a,b.et"], {})


def test_without_files_one_sentence_says_what_to_write() -> None:
    trace = scenario.load("trace")
    with pytest.raises(UserError, match="no trace is given; write for example uetemu run trace"):
        trace.topology(trace.parameters({}))


@pytest.mark.parametrize(
    ("files", "write", "stated"),
    [
        (2, "out.goal", "write=out.goal is for one trace and 2 are given; run them one by one"),
        (1, "out.txt", r"out\.txt cannot be written: name a file of one of .*goal \(\.goal\)"),
        (1, "absent/out.goal", "there is no folder absent"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_run(
    listed: Path, files: int, write: str, stated: str
) -> None:
    trace = scenario.load("trace")
    given = trace.parameters(
        {"files": ",".join([str(listed)] * files), "ranks": "4", "write": write}
    )
    with pytest.raises(UserError, match=stated):
        trace.schedules(given, load("rail_clos:hosts=4,gpus_per_host=1"), 1)
