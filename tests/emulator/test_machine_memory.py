"""Test what the machine has to give where a control group limits it."""

from pathlib import Path

import pytest

from emulator import machine_memory as of_machine

MIB = 2**20


@pytest.mark.parametrize(
    ("line", "top", "limit", "used"),
    [
        ("0::/pod/run", "", "memory.max", "memory.current"),
        ("4:memory:/pod/run", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_a_group_above_that_of_the_process_limits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, top: str, limit: str, used: str
) -> None:
    groups = tmp_path / "groups"
    pod = groups / top / "pod"
    (pod / "run").mkdir(parents=True)
    (pod / "run" / limit).write_text("max\n")
    (pod / limit).write_text(f"{100 * MIB}\n")
    (pod / used).write_text(f"{70 * MIB}\n")
    (pod / "memory.stat").write_text(f"anon 1\ninactive_file {MIB}\nactive_file {2 * MIB}\n")
    own = tmp_path / "own"
    own.write_text(f"9:cpuset:/\n{line}\n")
    monkeypatch.setattr(of_machine, "_OWN_GROUPS", own)
    monkeypatch.setattr(of_machine, "_GROUPS", groups)
    assert of_machine.machine_memory().available == 33 * MIB
    (pod / used).write_text(f"{110 * MIB}\n")  # it is being reclaimed
    assert of_machine.machine_memory().available == 0
    own.write_text("9:cpuset:/\n0::/\n")
    assert of_machine.machine_memory().available > 100 * MIB
