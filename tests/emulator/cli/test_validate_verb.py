"""What cannot be validated at all."""

from __future__ import annotations

from pathlib import Path

from emulator.cli.validate_verb import checked


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    (line,), _ = checked(str(tmp_path))
    assert (
        line == f"{tmp_path}: it is a folder; name the profiles in it, such as {tmp_path}/pod.yaml"
    )
