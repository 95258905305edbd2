"""``uetemu up FILE``: the fabric of a profile in the kernel, and what options change of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emulator import cleanup, lab_record
from emulator.cli import graph_verb, up_verb
from emulator.fabric import namespaces
from emulator.lab import Lab
from topologies.model import TopologyError

pytestmark = pytest.mark.root

PROFILE = """\
segment:
  hosts: 2
  gpus_per_host: 1
pod:
  spine: {spines: 1}
global:
  switch: deep
  load_balancing: packet
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The verb, meant for a process of its own, changes how this one takes signals."""
    numbers = signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILE)
    return path


def up(path: Path, lab: str, *options: str) -> Result:
    arguments = [str(path), "--name", lab, "--format", "json", *options]
    return CliRunner().invoke(up_verb.command, arguments)


@pytest.mark.parametrize(
    ("options", "switch"),
    [
        ((), "deep:balance=packet"),
        (("--switch", "none"), None),
        (("--switch", "shallow"), "shallow"),
    ],
)
def test_a_profile_is_built_and_its_switch_gives_way_to_the_option(
    profile: Path, lab_name: str, options: tuple[str, ...], switch: str | None
) -> None:
    run = up(profile, lab_name, *options)
    try:
        assert run.exit_code == 0, run.output
        facts = json.loads(run.stdout)
        assert (facts["gpus"], facts["switch"]) == (2, switch)
        assert set(namespaces.of_lab(lab_name)) == {"h0g0", "h1g0", "rail0", "spine0"}
        profile.unlink()  # the lab knows its fabric by itself
        assert graph_verb.find_topology(lab_name) == Lab.attach(lab_name).topology
    finally:
        cleanup.take_down(lab_name)


@pytest.mark.parametrize(
    "wrong",
    ["  pfc: on\n", "  bfd: on\n", "  mtu: 1\n", "  mut: 9000\n", "  control_plane: evpn\n"],
)
def test_a_wrong_profile_never_reaches_the_kernel(profile: Path, lab_name: str, wrong: str) -> None:
    profile.write_text(PROFILE + wrong)
    error = up(profile, lab_name).exception
    assert isinstance(error, TopologyError)
    assert str(error).startswith(f"{profile}:9: ")
    assert lab_name not in lab_record.recorded()
    assert not namespaces.of_lab(lab_name)
