"""Opens a page in Debian's Chromium without a screen, and reads what its scripts made of it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
#: What a page may take to load (s), and the time that its scripts see pass (ms).
LIMIT_S, VIRTUAL_MS = 240, 20_000


def opened(page: Path, profile: Path, *options: str) -> str:
    """Return the document after its scripts have run, without their texts.

    Nothing outside of the file can be reached.
    """
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        f"--user-data-dir={profile}", f"--virtual-time-budget={VIRTUAL_MS}",
        "--host-resolver-rules=MAP * ~NOTFOUND", *options,
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", done.stdout, flags=re.DOTALL)
