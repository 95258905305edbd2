"""One run on two machines: virtual ones, each with a kernel of its own, that a cable joins.

::

    machine a: mpirun, rank 0 -- NIC -- cable -- NIC -- machine b: sshd, rank 1

Rank 1 is started by ssh, as a user's cluster has it.  The two machines have the host's programs,
and nothing else in common: no memory, no lab, no file that either writes.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.lab import stock_kernel
from tests.harness.lab.stock_kernel import Outcome
from tests.harness.runs.processes import SMALL, begun, ended
from tests.harness.runs.whole_run import assert_same_files
from tests.system.engine.test_run_digests import REPEATED

pytestmark = [pytest.mark.root, pytest.mark.slow]

BUDGET_S = 1200.0  # beside other tests, on a slow machine
GIVEN = (*SMALL, "--sizes", "4KiB")
UETEMU = Path(sys.executable).parent / "uetemu"
SSHD = "/usr/sbin/sshd"
#: Lists the labs of a machine: no word where there are none.
LEFT = "find /run/netns /run/uetemu -mindepth 1 2>/dev/null"

#: Makes this machine the one of name NAME and number END, 0 or 1, whose root is in by the key KEY.
JOIN = """\
set -e
hostname NAME
modprobe virtio_net
for device in /sys/class/net/*; do
    [ "$(cat $device/address)" = 52:54:00:00:00:0END ] && nic=${device##*/}
done
ip address add 10.78.0.1END/24 dev $nic
ip link set $nic up
printf '127.0.0.1 localhost\\n10.78.0.10 a\\n10.78.0.11 b\\n' >/etc/hosts
usermod -p '*' root
mkdir -p /root/.ssh /run/sshd
cp KEY /root/.ssh/id_ed25519
cp KEY.pub /root/.ssh/authorized_keys
printf 'StrictHostKeyChecking accept-new\\nLogLevel ERROR\\n' >/root/.ssh/config
chown -R root:root /root/.ssh
chown root:root /root
chmod -R go= /root/.ssh
chmod go-w /root
"""
FIRST = """\
trap 'ssh b "echo >/run/over"' EXIT
timeout 300 sh -c 'until ssh -o ConnectTimeout=5 b true; do sleep 1; done'
mpirun --allow-run-as-root --host a,b hostname >/run/out/names
mpirun --allow-run-as-root --host a,b UETEMU run allreduce GIVEN --output /run/out/run
LEFT >/run/out/left || true
"""
SECOND = """\
mkfifo /run/over
SSHD -f /dev/null -h KEY -o PermitRootLogin=yes -o UsePAM=no -o SetEnv=PYTHONPATH=CHECKOUT
read end </run/over
LEFT >/run/out/left || true
"""


def lacking() -> str | None:
    """Why this cannot be tested here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for command in ("mpirun", "ssh", SSHD):
        if shutil.which(command) is None:
            return f"the command {command} is missing; vagrant/provision.sh installs it"
    return stock_kernel.lacking()


def boot() -> list[Outcome]:
    """Run both machines, and return what became of a and b."""
    shared = stock_kernel.folder()
    key = shared / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "emulator"], cwd=CHECKOUT, check=True)

    def machine(end: int) -> Outcome:
        script = JOIN + (FIRST, SECOND)[end]
        values = {
            "NAME": "ab"[end],
            "END": str(end),
            "KEY": str(key),
            "UETEMU": str(UETEMU),
            "GIVEN": shlex.join(GIVEN),
            "SSHD": SSHD,
            "CHECKOUT": str(CHECKOUT),
            "LEFT": LEFT,
        }
        for name, value in values.items():
            script = script.replace(name, value)
        return stock_kernel.run(
            f"export PYTHONPATH={CHECKOUT}\n{script}",
            directory=CHECKOUT,
            files=stock_kernel.folder(),
            budget_s=BUDGET_S,
            devices=stock_kernel.cable_end(end, shared),
        )

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(machine, range(2)))


@pytest.mark.nightly
@pytest.mark.timeout(BUDGET_S + 300)
def test_two_kernels_come_to_the_files_of_one_machine(tmp_path: Path) -> None:
    if reason := lacking():
        pytest.skip(reason)
    # alone first: it compiles the switch program, which an emulated processor takes long for
    alone = begun(tmp_path, *GIVEN, "--workers", "1")
    ended(alone)
    machines = stock_kernel.ended(boot)
    for name, machine in zip("ab", machines, strict=True):
        story = machine.console[-2000:] + machine.output[-4000:]
        assert machine.status == 0, f"{name} after {machine.seconds:.0f} s:\n{story}"
        assert (machine.files / "left").read_text() == "", name
    assert sorted((machines[0].files / "names").read_text().split()) == ["a", "b"]
    spread = machines[0].files / "run"
    environment = json.loads((spread / "environment.json").read_text())
    assert environment["workers"] == 2
    assert json.loads((spread / "result.json").read_text())["digest"] == alone.result["digest"]
    assert_same_files(alone.folder, spread, REPEATED)
