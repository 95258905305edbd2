"""The words of ``--compute``."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.torch_backend.computing import Computing


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fast", "--compute is 'fast'; write flops, none, fixed:TIME"),
        ("none:1us", "--compute is 'none:1us'"),
        ("fixed:soon", "--compute fixed:soon: "),
        ("csv:nowhere.csv", "--compute nowhere.csv cannot be read: No such file"),
    ],
)
def test_what_is_none_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        Computing.parse(text, 100.0)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("rank,time\n0,1\n", "has no column compute_us"),
        ("rank,compute_us\n0,later\n", "line 2 has no rank and time"),
        ("rank,compute_us\n0,-1\n", "line 2 has no rank and time"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "times.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        Computing.parse(f"csv:{path}", 100.0)


def test_lines_of_a_rank_are_the_times_before_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("rank,compute_us\n0,1.5\n1,7\n0,2\n")
    clock = Computing.parse(f"csv:{path}", 100.0).clock(0)
    times = []
    for _ in range(3):
        clock.before_call()
        times.append(clock.computed_ns())
    assert times == [1500, 3500, 3500]
