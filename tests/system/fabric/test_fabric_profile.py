"""``uetemu up FILE``: the fabric of a profile in the kernel, and what options change of it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emulator.cli import run_verb, validate_verb
from emulator.cli.graph import graph_verb
from emulator.cli.labs import up_verb
from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab import Lab
from emulator.errors import Misfit
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


def test_a_profile_for_rocev2_has_the_switches_that_it_is_run_on(
    profile: Path, lab_name: str
) -> None:
    text = PROFILE.replace(
        "  gpus_per_host: 1\n", "  gpus_per_host: 1\n  gpu_io: {interconnect: rocev2}\n"
    )
    profile.write_text(text.replace("  switch: deep\n", ""))
    run = up(profile, lab_name)
    try:
        assert run.exit_code == 0, run.output
        switch = json.loads(run.stdout)["switch"]
        assert switch.startswith("lossless:balance=packet,pfc_priority=3,")
        assert "untrimmed.kmin_bytes=" in switch
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


MISFITS = {
    "  buffer: 16KiB\n  switch: lossless\n": "8: PFC needs xoff",
    "  switch: deep\n  ecn_kmax: 10KiB\n": "9: ecn_kmin is ",
    "  control_plane: ebgp\n  bfd_interval: 10.5ms\n": "9: bfd_interval: interval is 10.5ms",
}
ABOVE = PROFILE.partition("  switch")[0] + "  load_balancing: packet\n"


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_told_alike_by_all_verbs(
    profile: Path, lab_name: str, misfit: str
) -> None:
    profile.write_text(ABOVE + misfit)
    stated = CliRunner().invoke(validate_verb.command, [str(profile)]).stdout.rstrip("\n")
    assert stated.startswith(f"{profile}:{MISFITS[misfit]}")
    assert str(up(profile, lab_name).exception) == stated
    run = ["allreduce", "--topology", str(profile), "--name", lab_name]
    assert str(CliRunner().invoke(run_verb.command, run).exception) == stated
    assert lab_name not in lab_record.recorded()


def test_a_profile_does_not_answer_for_an_option(profile: Path, lab_name: str) -> None:
    profile.write_text(ABOVE + "  buffer: 16KiB\n")
    for verb, words in (
        (up_verb.command, [str(profile)]),
        (run_verb.command, ["allreduce", "--topology", str(profile)]),
    ):
        options = ["--name", lab_name, "--switch", "lossless:xoff=1MiB"]
        error = CliRunner().invoke(verb, [*words, *options]).exception
        assert isinstance(error, Misfit)
        assert str(error).startswith("PFC needs xoff (1 MiB")


def test_a_profile_that_says_nothing_of_switches_has_the_usual_ones(
    profile: Path, lab_name: str
) -> None:
    text = ABOVE.replace("  load_balancing: packet\n", "  mtu: 1500\n")
    profile.write_text(text.replace("hosts: 2", "hosts: 2\n  gpu_io: {nic_rate: 1kbps}"))
    stated = CliRunner().invoke(validate_verb.command, [str(profile)]).stdout.rstrip("\n")
    assert stated.startswith(f"{profile}:3: nic_rate: at dilation 1000 this fabric's links are")
    assert str(up(profile, lab_name).exception) == stated
