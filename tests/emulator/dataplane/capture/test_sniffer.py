"""A sniffer is a process of its own that needs no program beside it to end with its parent."""

import os
import shutil
from pathlib import Path

import pytest

from emulator.dataplane.capture.sniffer import Sniffer
from emulator.errors import UserError


def test_a_sniffer_starts_where_there_is_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "sh").symlink_to(shell)
    monkeypatch.setenv("PATH", str(tmp_path))
    waits = "trap 'exit 3' INT; echo $$ listening >&2; while :; do :; done"
    sniffer = Sniffer(["sh", "-c", waits], ready="listening")
    sniffer.wait_ready()
    assert sniffer.log == f"{sniffer.pid} listening\n"
    assert os.getsid(sniffer.pid) == sniffer.pid
    sniffer.interrupt()
    assert sniffer.wait() == 3
    sniffer.close()


def test_a_sniffer_that_is_not_there_is_a_complaint() -> None:
    sniffer = Sniffer(["no-such-sniffer"], ready="listening")
    with pytest.raises(UserError, match="could not start: no-such-sniffer says: No such file"):
        sniffer.wait_ready()
    assert sniffer.wait() == 1
    sniffer.close()
