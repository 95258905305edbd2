"""What cannot be validated at all."""

from pathlib import Path

from click.testing import CliRunner

from emulator.cli.validate_verb import checked, command


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    (line,), _ = checked(str(tmp_path))
    assert (
        line == f"{tmp_path}: it is a folder; name the profiles in it, such as {tmp_path}/pod.yaml"
    )


def test_a_delay_above_its_bound_is_a_warning_and_no_problem() -> None:
    ran = CliRunner().invoke(command, ["rail_clos", "--delay-bound", "3us", "--quiet"])
    assert ran.exit_code == 0
    assert ran.stdout.startswith("rail_clos: warning: the longest one-way delay of the scale-out")
    assert not CliRunner().invoke(command, ["rail_clos", "--quiet"]).stdout
    slow = CliRunner().invoke(command, ["rail_clos", "--quiet", "--scale-up-bound", "500ns"])
    assert "the scale-up network is 700 ns, 200 ns above the bound of 500 ns" in slow.stdout
