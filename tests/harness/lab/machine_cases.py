"""Cases that run under Debian's kernel in one virtual machine, and report in one file."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tests import CHECKOUT
from tests.harness.lab import stock_kernel
from tests.harness.lab.stock_kernel import Outcome


def boot_cases(module: str, *, compiled: Sequence[str], budget_s: float) -> Outcome:
    """Run ``module``, which leaves ``results.json``, in a machine with the checkout's files.

    The folders ``compiled`` are compiled here: an emulated processor takes long for it.
    """
    subprocess.run([sys.executable, "-m", "compileall", "-q", *compiled], cwd=CHECKOUT)
    script = f"{sys.executable} -m {module}"
    return stock_kernel.run(
        script, directory=CHECKOUT, files=stock_kernel.folder(), budget_s=budget_s
    )


def reported_cases(
    lacking: Callable[[], str | None], boot: Callable[[], Outcome], cases: Collection[str]
) -> dict[str, Any]:
    """Return what each of ``cases`` reported in the machine that ``boot`` runs.

    Skips the test with the reason of ``lacking``; fails it with the machine's last words if a case
    is missing.
    """
    if reason := lacking():
        pytest.skip(reason)
    outcome = stock_kernel.ended(boot)
    story = outcome.console[-2000:] + outcome.output[-4000:]
    reported = outcome.files / "results.json"
    assert reported.exists(), f"nothing came after {outcome.seconds:.0f} s:\n{story}"
    results: dict[str, Any] = json.loads(reported.read_text())
    missing = [name for name in cases if name not in results]
    assert not missing, f"not done after {outcome.seconds:.0f} s: {missing}\n{story}"
    return results
