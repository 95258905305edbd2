"""Test that trying finds what a machine offers, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.cli import doctor_verb
from emulator.cli.main import cli
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.doctor import probes as trials
from emulator.dataplane.doctor.capabilities import (
    FEATURES,
    SUBSTITUTES,
    Capabilities,
    CapabilityKind,
    probe,
)
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.errors import UserError
from tests import CHECKOUT

NOBODY = 65534


def uetemu(
    *arguments: str, sources: Path = CHECKOUT, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(sources)!r}); "
    program += "from emulator.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        user=user,
        timeout=120,
    )


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def without(found: Capabilities, *names: str) -> Capabilities:
    return Capabilities(
        {
            name: capabilities.capability(FEATURES[name], name not in names, one.detail)
            for name, one in found.items()
        }
    )


def everything() -> Capabilities:
    """A machine that lacks nothing."""
    return Capabilities(
        {
            name: capabilities.capability(feature, True, "works")
            for name, feature in FEATURES.items()
        }
    )


def test_every_kernel_feature_has_its_trial() -> None:
    in_kernel = {
        name for name, feature in FEATURES.items() if feature.kind is CapabilityKind.KERNEL
    }
    assert in_kernel == set(trials.TRIALS)


def test_every_needed_feature_that_is_absent_is_lacking() -> None:
    whole = everything()
    assert whole.lacking() == ()
    for name, feature in FEATURES.items():
        lacking = [one.name for one in without(whole, name).lacking()]
        assert lacking == ([name] if feature.needed and name not in SUBSTITUTES else [])


def test_substitute_has_to_be_there_itself() -> None:
    lacking = without(everything(), "clsact", "nftables").lacking()
    assert [one.name for one in lacking] == ["clsact"]


def test_substitute_is_told_only_where_it_is_needed() -> None:
    feature = FEATURES["netem"]
    assert capabilities.capability(feature, True, "").stands_in is None
    assert capabilities.capability(feature, False, "").stands_in == feature.stands_in


def test_require_names_the_missing_thing_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as refusal:
        capabilities.require("dumpcap", purpose="capture")
    assert "dumpcap" in str(refusal.value)
    assert "wireshark-common" in str(refusal.value)


def test_trials_without_rights_are_refusals_and_no_errors(readable_sources: Path) -> None:
    program = (
        f"import sys, json; sys.path.insert(0, {str(readable_sources)!r})\n"
        "from emulator.dataplane.doctor import probes as trials\n"
        "print(json.dumps(trials.refusals(trials.TRIALS)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd="/",
        user=NOBODY if os.geteuid() == 0 else None,
        capture_output=True,
        text=True,
    )
    answers = json.loads(done.stdout)
    assert all(answers.values()), answers


@pytest.mark.root
class TestAsRoot:
    def test_this_machine_can_build_fabrics(self) -> None:
        assert [one.name for one in probe().lacking()] == []

    def test_nothing_is_left_behind(self) -> None:
        def remains() -> tuple[Iterable[str], str, Iterable[str]]:
            trials_in_run = [name for name in os.listdir("/run") if "trial" in name]
            return sorted(interfaces()), os.readlink("/proc/self/ns/net"), trials_in_run

        before = remains()
        probe()
        assert remains() == before

    def test_single_questions_agree_with_the_whole(self) -> None:
        found = probe()
        for name in trials.TRIALS:
            assert capabilities.has(name) == found[name].present, name

    def test_refusal_is_in_the_kernels_words(self) -> None:
        def nonsense(bench: trials.Bench) -> None:
            bench.link("no-such-kind")

        trials_now = dict(trials.TRIALS) | {"nonsense": nonsense}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials, "TRIALS", trials_now)
            answer = trials.refusals(["nonsense", "veth"])
        assert answer["nonsense"]
        assert answer["veth"] is None

    def test_trial_of_netem_agrees_with_tc(self) -> None:
        """Another way gives the same answer: iproute2 in a namespace of its own."""
        by_tc = subprocess.run(
            [
                "unshare",
                "--net",
                "tc",
                "qdisc",
                "add",
                "dev",
                "lo",
                "root",
                "netem",
                "delay",
                "1ms",
            ],
            capture_output=True,
        )
        assert capabilities.has("netem") == (by_tc.returncode == 0)

    def test_doctor_prints_one_json_object(self) -> None:
        done = uetemu("doctor", "--format", "json")
        report = json.loads(done.stdout)
        assert set(report["capabilities"]) == set(FEATURES)
        assert report["ready"] == (done.returncode == 0)
        assert (report["problem"] is None) == report["ready"]

    def test_a_chroot_offers_what_its_machine_does(self, tmp_path: Path) -> None:
        """Its root is a directory like any other, and no mount point."""
        outside = json.loads(uetemu("doctor", "--format", "json").stdout)["capabilities"]
        script = f"""
            mount --make-rslave /
            for each in /*; do
                if [ -L "$each" ]; then cp -d "$each" {tmp_path}
                elif [ -d "$each" ]; then
                    mkdir {tmp_path}"$each" && mount --rbind "$each" {tmp_path}"$each"
                fi
            done
            exec chroot {tmp_path} "$@"
        """
        program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); "
        program += "from emulator.cli.main import main; main()"
        done = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-ec", script, "sh"),
                *(sys.executable, "-c", program, "doctor", "--format", "json"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        inside = json.loads(done.stdout)["capabilities"]
        kernel = [name for name in trials.TRIALS if name in outside]
        assert {name: inside[name] for name in kernel} == {name: outside[name] for name in kernel}

    def test_doctor_without_root_says_what_is_missing(self, readable_sources: Path) -> None:
        done = uetemu("doctor", sources=readable_sources, user=NOBODY)
        assert done.returncode == 1
        assert "root is missing" in done.stderr
        assert done.stderr.count("\n") == 1


def test_doctors_table_has_a_line_for_each() -> None:
    drawn = doctor_verb.drawn(without(everything(), "netem"))
    lines = {line.split()[0]: line for line in drawn.splitlines() if line.strip()}
    assert set(FEATURES) <= set(lines)
    assert "delay line" in lines["netem"]


def test_doctor_is_a_verb() -> None:
    assert cli.get_command(None, "doctor") is not None  # type: ignore[arg-type]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="eBPF needs root")
def test_trial_of_the_switch_program_pins_nothing_that_others_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever cleans up after labs meanwhile would take it away."""
    seen: list[list[str]] = []
    load = asic_program.load
    elsewhere = ThreadPoolExecutor(1)  # the trial's own thread has mounts of its own
    elsewhere.submit(os.getpid).result()

    def loaded(lab: str, size: Size) -> asic_program.SwitchProgram:
        program = load(lab, size)
        assert lab in asic_program.labs()
        seen.append([lab, *elsewhere.submit(asic_program.labs).result()])
        return program

    monkeypatch.setattr(asic_program, "load", loaded)
    assert trials.refusals(["switch-asic"]) == {"switch-asic": None}
    ((lab, *others),) = seen
    assert lab not in others
