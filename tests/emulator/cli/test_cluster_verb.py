"""``uetemu cluster`` without a scenario."""

from click.testing import CliRunner

from emulator.cli.cluster_verb import command


def test_scenarios_are_listed_with_their_parameters() -> None:
    listed = CliRunner().invoke(command, [])
    assert listed.exit_code == 0, listed.exception
    assert "cluster_day: " in listed.output
    assert "  state=16MiB " in listed.output
    assert "  command=128KiB " in listed.output
