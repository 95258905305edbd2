"""``uetemu nvme`` against NVMe/TCP that nobody here wrote: nvmet and nvme-tcp of Debian's kernel.

Boots that kernel in a virtual machine on this machine's own files and has its host or its target
at the other end of every case of :mod:`tests.system.interop.linux_nvme_cases`.
"""

import os
import shutil
from typing import Any

import pytest

from tests.harness.lab import stock_kernel
from tests.harness.lab.machine_cases import boot_cases, reported_cases
from tests.harness.lab.stock_kernel import Outcome
from tests.system.interop import linux_nvme_cases
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
    return boot_cases(
        linux_nvme_cases.__name__, compiled=("tests/system/interop", "emulator"), budget_s=BUDGET_S
    )


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return reported_cases(lacking, boot, CASES)


@pytest.mark.boots(lacking, boot)
@pytest.mark.parametrize("case", CASES)
def test_linux_nvme(case: str, results: dict[str, Any]) -> None:
    reported = results[case]
    assert reported["ok"], reported
