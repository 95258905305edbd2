"""README's commands on a machine where nothing was installed, as a user meets them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import CHECKOUT

#: The first command installs; the second runs all tests (s).
BUDGET_S = 4 * 3600
#: The script makes this file: there are no bare roots inside of one.
INSIDE = Path("/etc/uetemu-bare-root")


def commands_of_the_readme() -> list[str]:
    """Return the calls of the installer, as they stand there."""
    text = (CHECKOUT / "README.md").read_text()
    return re.findall(r"^    (vagrant/provision\.sh .*?)(?: +#.*)?$", text, re.M)


def test_the_readme_begins_with_a_run_and_then_has_all_tests() -> None:
    assert commands_of_the_readme()[:2] == [
        "vagrant/provision.sh uetemu run allreduce",
        "vagrant/provision.sh pytest -n auto",
    ]


@pytest.mark.nightly
@pytest.mark.root
@pytest.mark.timeout(BUDGET_S)
@pytest.mark.skipif(INSIDE.exists(), reason="this is the bare root")
def test_both_commands_of_the_readme_end_well_on_a_bare_root(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as file:
        done = subprocess.run(
            [str(CHECKOUT / "vagrant" / "bare_root.sh"), *commands_of_the_readme()[:2]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    assert done.returncode == 0, said.read_text()[-20_000:]
