"""``uetemu wireshark``: gives the installed Wireshark the UET dissector and its colours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

from emulator.cli.options import Group
from emulator.errors import UserError
from emulator.whole_file import write_whole
from uet.wire.wireshark import dissector
from uet.wire.wireshark.colors import color_rules

SCRIPT = "uetemu.lua"
#: Wireshark's own settings of Lua.
SETTINGS = "init.lua"
#: Name of the colouring rules where they stand alone, for Wireshark's own import.
RULES = "uetemu.colorfilters"
#: What Wireshark calls its file of colouring rules.
COLORFILTERS = "colorfilters"


@click.group("wireshark", cls=Group, short_help="give Wireshark the UET dissector")
def command() -> None:
    """Give the installed Wireshark and tshark a UET dissector, or take it away again.

    A packet whose UDP source port, which in UET is entropy, belongs to another protocol is shown
    as UET only with the preference udp.try_heuristic_first.
    """


@command.command("install", short_help="install the dissector and colouring rules")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Only write {SCRIPT} and {RULES} into this folder; needs no tshark.",
)
@click.option("--force", is_flag=True, help="Replace a file, and colours, that are not ours.")
@click.option("--print", "to_stdout", is_flag=True, help="Print the script and install nothing.")
def install(folder: Path | None, force: bool, to_stdout: bool) -> None:
    """Put the dissector where tshark looks for it, and colouring rules beside the user's own.

    Run it as the user who runs Wireshark.  Rules that the user has, ours included once they were
    changed, stay as they are.  A Wireshark that knows UET by itself is left alone: exit status 0
    and a notice, as there is nothing to mend.
    """
    script = dissector.dissector()
    if to_stdout:
        click.echo(script, nl=False)
        return
    rules = color_rules()
    if folder is not None:
        _write_script(folder / SCRIPT, script, force)
        _write(folder / RULES, "".join(f"{rule}\n" for rule in rules))
        click.echo(f"wrote {folder / SCRIPT} and {folder / RULES}")
        return
    foreign = _other_dissector()
    if foreign:
        click.echo(
            f"nothing installed: this Wireshark dissects UET already ({foreign}),"
            " and two dissectors cannot share the name uet"
        )
        return
    folders = _folders()
    target = folders["Personal Lua Plugins"] / SCRIPT
    _write_script(target, script, force)
    colors = folders["Personal configuration"] / COLORFILTERS
    present = _lines(colors) if colors.exists() else _lines(_global_colors(folders))
    _write(colors, "".join(with_rules(present, rules, force)))
    click.echo(f"wrote {target}, and colouring rules into {colors}")
    if os.geteuid() == 0 and os.environ.get("SUDO_USER"):
        click.echo(
            f"uetemu: this is for root; {os.environ['SUDO_USER']} has to run it without sudo",
            err=True,
        )
    if not _protocols().get("uet", "").endswith("(uetemu)"):
        who = "as root " if os.geteuid() == 0 else ""
        raise UserError(
            f"{target} is in place, but tshark {who}does not load it; see that its init.lua"
            f" enables Lua{_for_root(folders)}"
        )


@command.command("uninstall", short_help="remove them again")
def uninstall() -> None:
    """Remove what install wrote: the script, and the colouring rules by their names."""
    folders = _folders()
    target = folders["Personal Lua Plugins"] / SCRIPT
    colors = folders["Personal configuration"] / COLORFILTERS
    removed = []
    if target.exists():
        if not _is_ours(target):
            raise UserError(f"{target} was not written by uetemu; remove it by hand")
        target.unlink()
        removed.append(str(target))
    if colors.exists():
        present = _lines(colors)
        left = without_rules(present, color_rules())
        if left != present:
            removed.append(f"the colouring rules in {colors}")
            if not left or left == _lines(_global_colors(folders)):
                colors.unlink()
            else:
                _write(colors, "".join(left))
    click.echo(f"removed {' and '.join(removed)}" if removed else "nothing was installed")


def with_rules(present: list[str], rules: list[str], force: bool = False) -> list[str]:
    """Lines of a ``colorfilters`` file with ``rules`` in front, as the first that fits wins.

    Rules of the same name stay as and where they are, unless ``force``.
    """
    if force:
        present = without_rules(present, rules)
    there = {_rule_name(line) for line in present}
    return [f"{rule}\n" for rule in rules if _rule_name(rule) not in there] + present


def without_rules(present: list[str], rules: list[str]) -> list[str]:
    """Lines of a ``colorfilters`` file without those rules that have the name of one of ours."""
    ours = {_rule_name(rule) for rule in rules}
    return [line for line in present if _rule_name(line) not in ours]


def _rule_name(line: str) -> str | None:
    """The name in ``@name@filter@[background][text]``; a disabled rule has ``!`` in front."""
    if not line.startswith(("@", "!@")):
        return None
    return line.split("@")[1]


def _run_tshark(*arguments: str) -> str:
    tshark = shutil.which("tshark")
    if tshark is None:
        raise UserError(
            "tshark is not installed, so nobody says where Wireshark looks for scripts;"
            " install it, or give a folder with --dir"
        )
    done = subprocess.run([tshark, *arguments], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"tshark {' '.join(arguments)} failed ({last}); mend that first")
    return done.stdout


def _for_root(folders: Mapping[str, Path]) -> str:
    """Words about the init.lua that root needs for Lua scripts; Wireshark brings none since 4.4."""
    if os.geteuid():
        return ""
    place = folders.get("Global Lua Plugins")
    where = f" ({place / SETTINGS} since Wireshark 4.4)" if place else ""
    return f", with run_user_scripts_when_superuser = true in that of all users{where}"


def _folders() -> dict[str, Path]:
    """The folders of the installed version, by the names that it gives them."""
    pairs = (
        line.split(":", 1) for line in _run_tshark("-G", "folders").splitlines() if ":" in line
    )
    found = {name: Path(path.strip()) for name, path in pairs}
    for needed in ("Personal Lua Plugins", "Personal configuration"):
        if needed not in found:
            raise UserError(
                f"tshark -G folders names no {needed}, so this tshark is built without Lua;"
                " give a folder with --dir"
            )
    return found


def _protocols() -> dict[str, str]:
    """Filter name -> full name of the protocols that the installed version supports."""
    rows = (line.split("\t") for line in _run_tshark("-G", "protocols").splitlines())
    return {row[2]: row[0] for row in rows if len(row) > 2}


def _other_dissector() -> str | None:
    """Full name of a UET dissector that is not ours."""
    name = _protocols().get("uet")
    return None if name is None or name.endswith("(uetemu)") else name


def _global_colors(folders: dict[str, Path]) -> Path:
    """The rules that Wireshark uses while the user has none of their own."""
    return folders.get("Global configuration", Path("/usr/share/wireshark")) / COLORFILTERS


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        lines = file.readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines


def _is_ours(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip("\n") == dissector.MARK


def _write_script(target: Path, script: str, force: bool) -> None:
    if target.exists() and not force and not _is_ours(target):
        raise UserError(f"{target} was not written by uetemu; move it away or say --force")
    _write(target, script)


def _write(target: Path, text: str) -> None:
    write_whole(target, text, "give a folder that you own with --dir", parents=True)
