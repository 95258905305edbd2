"""``uetemu nvme`` against NVMe/TCP that nobody here wrote: nvmet and nvme-tcp of Debian's kernel.

Boots that kernel in a virtual machine on this machine's own files and has its host or its target
at the other end of every case of :mod:`tests.system.interop.linux_nvme_cases`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests import CHECKOUT
from tests.harness.lab import stock_kernel
from tests.harness.lab.stock_kernel import Outcome
from tests.system.interop.linux_nvme_cases import CASES

pytestmark = [pytest.mark.root, pytest.mark.slow]

#: Two minutes are usual on a machine that has nothing else to do; here other tests run beside it.
BUDGET_S = 600.0


def lacking() -> str | None:
    """Why this cannot be tested here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if reason := stock_kernel.lacking():
        return reason
    for module in ("nvme-tcp", "nvmet-tcp"):
        if not stock_kernel.has_module(module):
            return f"the kernel in {stock_kernel.KERNEL} has no {module}; run vagrant/provision.sh"
    if shutil.which("nvme") is None:
        return "the command nvme is missing; vagrant/provision.sh installs it"
    return None


def boot() -> Outcome:
    # compiled here: an emulated processor takes long for it
    places = ["tests/system/interop", "emulator"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *places], cwd=CHECKOUT)
    script = f"{sys.executable} -m tests.system.interop.linux_nvme_cases"
    return stock_kernel.run(
        script, directory=CHECKOUT, files=stock_kernel.folder(), budget_s=BUDGET_S
    )


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    if reason := lacking():
        pytest.skip(reason)
    outcome = stock_kernel.ended(boot)
    story = outcome.console[-2000:] + outcome.output[-4000:]
    reported = outcome.files / "results.json"
    assert reported.exists(), f"nothing came after {outcome.seconds:.0f} s:\n{story}"
    results: dict[str, Any] = json.loads(reported.read_text())
    missing = [name for name in CASES if name not in results]
    assert not missing, f"not done after {outcome.seconds:.0f} s: {missing}\n{story}"
    return results


@pytest.mark.boots(lacking, boot)
@pytest.mark.parametrize("case", CASES)
def test_linux_nvme(case: str, results: dict[str, Any]) -> None:
    reported = results[case]
    assert reported["ok"], reported
