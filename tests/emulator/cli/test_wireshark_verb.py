"""``uetemu wireshark`` as a user calls it, with a home folder of its own."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulator.cli.main import main
from emulator.cli.wireshark_verb import with_rules, without_rules
from tests.harness.wire.golden import CAPTURE
from uet.wire.wireshark import dissector
from uet.wire.wireshark.colors import color_rules

GLOBAL_RULES = Path("/usr/share/wireshark/colorfilters")
THEIRS = "# mine\n@Mine@tcp.port == 80@[1,2,3][4,5,6]\n!@Off@udp@[1,2,3][4,5,6]\n"

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


@dataclass
class Result:
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("WIRESHARK_CONFIG_DIR", "WIRESHARK_PLUGIN_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def uetemu(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``uetemu wireshark`` with these arguments."""

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["uetemu", "wireshark", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


def installed(home: Path) -> tuple[Path, Path]:
    """Script and colouring rules where tshark 4 looks for them."""
    return (
        home / ".local/lib/wireshark/plugins/uetemu.lua",
        home / ".config/wireshark/colorfilters",
    )


def tshark(*arguments: str | Path) -> str:
    return subprocess.run(
        ["tshark", "-n", *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


def fake_tshark(folder: Path, monkeypatch: pytest.MonkeyPatch, protocols: str) -> None:
    """A tshark that knows its folders, and these protocols."""
    folder.mkdir()
    script = folder / "tshark"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = folders ]; then\n'
        f"  echo 'Personal configuration: {folder}/config'\n"
        f"  echo 'Personal Lua Plugins: {folder}/plugins'\n"
        "else\n"
        f"  printf '{protocols}'\n"
        "fi\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def assert_one_sentence(result: Result, *words: str) -> None:
    assert result.status == 1
    assert result.err.startswith("uetemu: ")
    assert len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err


@needs_tshark
def test_after_install_tshark_dissects_and_colours(uetemu: Run, home: Path) -> None:
    script, colors = installed(home)
    before = tshark("-r", CAPTURE, "-Y", "frame.number == 24")
    assert "RUD_REQ" not in before
    result = uetemu("install")
    assert result.status == 0
    assert str(script) in result.out
    assert str(colors) in result.out
    assert "RUD_REQ SEND AR PSN 287454020" in tshark("-r", CAPTURE, "-Y", "frame.number == 24")
    named = tshark("-r", CAPTURE, "-T", "fields", "-e", "frame.coloring_rule.name", "--color")
    assert {"UET data", "UET ACK", "UET NACK", "UET control", "UET trimmed"} <= set(
        named.splitlines()
    )
    once = (script.read_bytes(), colors.read_bytes())
    assert uetemu("install").status == 0
    assert (script.read_bytes(), colors.read_bytes()) == once


@needs_tshark
def test_uninstall_leaves_nothing(uetemu: Run, home: Path) -> None:
    assert uetemu("install").status == 0
    _, colors = installed(home)
    # Without the shipped rules behind ours, Wireshark would have no others any more.
    assert colors.read_text().endswith(GLOBAL_RULES.read_text())
    assert uetemu("uninstall").status == 0
    assert not any(path.exists() for path in installed(home))
    assert uetemu("uninstall").out == "nothing was installed\n"


@needs_tshark
def test_the_users_rules_stay(uetemu: Run, home: Path) -> None:
    _, colors = installed(home)
    colors.parent.mkdir(parents=True)
    colors.write_text(THEIRS)
    assert uetemu("install").status == 0
    assert colors.read_text().endswith(THEIRS)
    assert len(colors.read_text().splitlines()) == len(color_rules()) + 3
    assert uetemu("uninstall").status == 0
    assert colors.read_text() == THEIRS


def test_a_rule_that_the_user_changed_stays_unless_forced() -> None:
    rules = color_rules()
    changed = ["@Mine@tcp@[1,1,1][0,0,0]\n", "!@UET data@uet@[1,1,1][0,0,0]\n"]
    merged = with_rules(changed, rules)
    assert merged[-2:] == changed
    assert len(merged) == len(rules) + 1
    assert with_rules(merged, rules) == merged
    assert with_rules(merged, rules, force=True) == [f"{rule}\n" for rule in rules] + changed[:1]
    assert without_rules(merged, rules) == changed[:1]


@needs_tshark
def test_a_wireshark_with_another_uet_dissector_is_left_alone(uetemu: Run, home: Path) -> None:
    script, colors = installed(home)
    script.parent.mkdir(parents=True)
    (script.parent / "other.lua").write_text('Proto("uet", "Another one")\n')
    result = uetemu("install")
    assert result.status == 0
    assert "nothing installed" in result.out
    assert "Another one" in result.out
    assert not script.exists()
    assert not colors.exists()


def test_a_builtin_dissector_is_left_alone(
    uetemu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    fake_tshark(folder, monkeypatch, r"Ultra Ethernet Transport\tUET\tuet\tT\tT\tT\n")
    result = uetemu("install")
    assert result.status == 0
    assert "already (Ultra Ethernet Transport)" in result.out
    assert not (folder / "plugins").exists()


def test_a_tshark_that_loads_no_scripts_is_told_of(
    uetemu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tshark(tmp_path / "bin", monkeypatch, r"Frame\tFrame\tframe\tT\tT\tT\n")
    assert_one_sentence(uetemu("install"), "does not load it")


def test_without_tshark_a_folder_must_be_given(
    uetemu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_one_sentence(uetemu("install"), "tshark is not installed", "--dir")
    assert_one_sentence(uetemu("uninstall"), "tshark is not installed")
    folder = tmp_path / "some" / "folder"
    assert uetemu("install", "--dir", folder).status == 0
    assert (folder / "uetemu.lua").read_text() == dissector.dissector()
    assert (folder / "uetemu.colorfilters").read_text().splitlines() == color_rules()
    assert uetemu("install", "--print").out == dissector.dissector()


def test_a_file_of_the_users_own_is_not_overwritten(uetemu: Run, tmp_path: Path) -> None:
    script = tmp_path / "uetemu.lua"
    script.write_text("-- mine\n")
    assert_one_sentence(uetemu("install", "--dir", tmp_path), "--force")
    assert script.read_text() == "-- mine\n"
    assert uetemu("install", "--dir", tmp_path, "--force").status == 0
    assert script.read_text() == dissector.dissector()
    assert uetemu("install", "--dir", tmp_path).status == 0


def test_a_folder_that_cannot_be_made(uetemu: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_one_sentence(uetemu("install", "--dir", tmp_path / "file" / "below"), "cannot write")


def test_without_a_subcommand_the_help_comes(uetemu: Run) -> None:
    result = uetemu()
    assert result.status == 2
    assert "install" in result.err
