"""``uetemu hca`` against an RDMA stack that nobody here wrote: Soft-RoCE of Debian's kernel.

Boots that kernel in a virtual machine on this machine's own files and has its ``rdma_rxe``, used
through rdma-core, at the other end of every case of :mod:`tests.system.interop.soft_roce_cases`.
"""

import importlib.util
import os
from typing import Any

import pytest

from tests.harness.lab import stock_kernel
from tests.harness.lab.machine_cases import boot_cases, reported_cases
from tests.harness.lab.stock_kernel import Outcome
from tests.system.interop import soft_roce_cases
from tests.system.interop.soft_roce_cases import CASES

pytestmark = [pytest.mark.root, pytest.mark.slow]

#: A minute is usual on a machine that has nothing else to do; here other tests run beside it.
BUDGET_S = 1200.0


def lacking() -> str | None:
    """Why this cannot be tested here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if reason := stock_kernel.lacking():
        return reason
    if not stock_kernel.has_module("rdma_rxe"):
        return f"the kernel in {stock_kernel.KERNEL} has no rdma_rxe; run vagrant/provision.sh"
    if importlib.util.find_spec("pyverbs") is None:
        return "the Python module pyverbs is missing; vagrant/provision.sh installs it"
    return None


def boot() -> Outcome:
    return boot_cases(
        soft_roce_cases.__name__, compiled=("tests/system/interop",), budget_s=BUDGET_S
    )


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return reported_cases(lacking, boot, CASES)


@pytest.mark.boots(lacking, boot)
@pytest.mark.parametrize("case", CASES)
def test_soft_roce(case: str, results: dict[str, Any]) -> None:
    reported = results[case]
    assert reported["ok"], reported
