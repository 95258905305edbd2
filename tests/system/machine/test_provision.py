"""The installer as a caller sees it, and the files beside it as their own tools see them.

Nothing is installed here: what needs an installed environment is skipped unless this checkout's
is in place already, as it is when the installer itself started the tests.
"""

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests import CHECKOUT

INSTALLER = CHECKOUT / "vagrant" / "provision.sh"
SCRIPTS = (INSTALLER, INSTALLER.with_name("bare_root.sh"), CHECKOUT / ".ci" / "run")
NOBODY = 65534
CompletedProcess = subprocess.CompletedProcess[str]


def call(
    *arguments: str, cwd: Path = CHECKOUT, env: Mapping[str, str] | None = None
) -> CompletedProcess:
    return run([str(INSTALLER), *arguments], cwd=cwd, env=env)


def run(
    argv: Sequence[str],
    *,
    cwd: Path = CHECKOUT,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> CompletedProcess:
    return subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        user=user,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.fixture(scope="module")
def in_place() -> None:
    """Skips unless a call would install nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the installer does")
    if call("--check").returncode:
        pytest.skip("this checkout's environment is not installed: run vagrant/provision.sh")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_passes_shellcheck(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = run(["shellcheck", str(script)])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_executable_bash(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert run(["bash", "-n", str(script)]).returncode == 0


def test_help_goes_to_stdout() -> None:
    done = call("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: vagrant/provision.sh")
    assert done.stderr == ""


def test_unknown_option_is_refused_in_one_sentence() -> None:
    done = call("--formt")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "--formt" in done.stderr


@pytest.fixture(name="called_by_user")
def call_of_an_ordinary_user() -> Iterator[tuple[Path, Callable[[], CompletedProcess]]]:
    """The folder of the commands of a machine, and a call there by one who is not root.

    The text of the installer is an argument: he may not be able to read this checkout.
    """
    with tempfile.TemporaryDirectory() as made:
        commands = Path(made)
        commands.chmod(0o755)
        path = re.compile(r"^readonly system_path=.*$", re.M)
        text = path.sub(f"readonly system_path={commands}", INSTALLER.read_text())

        def called() -> CompletedProcess:
            words = ["bash", "-c", text, "vagrant/provision.sh", "--with", "mpi", "pytest", "-x"]
            return run(words, cwd=Path("/"), user=NOBODY if os.geteuid() == 0 else None)

        yield commands, called


def test_who_is_not_root_gets_there_by_sudo(
    called_by_user: tuple[Path, Callable[[], CompletedProcess]],
) -> None:
    commands, called = called_by_user
    sudo = commands / "sudo"
    sudo.write_text('#!/bin/sh\necho "$@"\n')
    sudo.chmod(0o755)
    done = called()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "-- bash vagrant/provision.sh --with mpi pytest -x\n"


def test_who_is_not_root_where_there_is_no_sudo_learns_what_is_missing(
    called_by_user: tuple[Path, Callable[[], CompletedProcess]],
) -> None:
    done = called_by_user[1]()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "need root, and there is no sudo here" in done.stderr


def functions(*names: str) -> str:
    """The text of functions of the installer, for a shell of a test's own."""
    text = INSTALLER.read_text()
    return "".join(
        re.search(rf"^{name}\(\) {{\n.*?^}}\n", text, re.M | re.S)[0]  # type: ignore[index]
        for name in names
    )


def test_services_are_forbidden_as_long_as_somebody_installs(tmp_path: Path) -> None:
    """The one that installs may be killed: what it has started goes on, and is heard out."""
    policy, guard, held = tmp_path / "policy", tmp_path / "guard", tmp_path / "held"
    os.mkfifo(held)
    script = functions("forbid_services", "drop_expired_policy") + (
        f"policy={policy} guard={guard} policy_mark='# made here'\n"
        f"forbid_services\ncat {held} &\ndrop_expired_policy\nkill -KILL $$\n"
    )
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.DEVNULL) as installer:
        assert installer.wait(60) == -signal.SIGKILL
        assert run([str(policy), "frr", "start"]).returncode == 101
        with held.open("w"):
            pass  # what the installer had started ends
    guard_is_free = ["flock", "--timeout", "60", str(guard), "true"]
    assert run(guard_is_free).returncode == 0
    assert run([str(policy), "frr", "start"]).returncode == 0
    again = functions("drop_expired_policy") + "drop_expired_policy"
    run(["bash", "-c", f"policy={policy} guard={guard} policy_mark='# made here'\n{again}"])
    assert not policy.exists()


@pytest.mark.parametrize(
    ("packages", "answered"), [(("frr",), False), (("frr", "wireshark-common"), True)]
)
def test_who_may_capture_stays_as_it_is_where_wireshark_is_installed(
    packages: tuple[str, ...], answered: bool
) -> None:
    script = functions("install_packages") + (
        "dpkg() { :; }\napt_get() { :; }\ndebconf-set-selections() { cat; }\n"
        f"install_packages {' '.join(packages)}\n"
    )
    done = run(["bash", "-c", script])
    assert done.returncode == 0
    assert ("install-setuid" in done.stdout) == answered


@pytest.mark.parametrize("theirs", [None, "-- mine\n"])
def test_root_runs_lua_where_wireshark_leaves_it_open(tmp_path: Path, theirs: str | None) -> None:
    """Wireshark 4.4 has no defaults, and says where it looks for them; its owner's stay."""
    init = tmp_path / "plugins" / "init.lua"
    if theirs:
        init.parent.mkdir()
        init.write_text(theirs)
    script = functions("let_root_run_lua") + (
        f"tshark() {{ printf 'Global Lua Plugins:  \t{init.parent}\\n'; }}\n"
        f"wireshark_defaults={tmp_path}/none let_root_run_lua\n"
    )
    assert run(["bash", "-c", script]).returncode == 0
    assert init.read_text() == (theirs or "run_user_scripts_when_superuser = true\n")


def test_root_runs_lua_already_where_wireshark_has_defaults(tmp_path: Path) -> None:
    script = functions("let_root_run_lua") + "tshark() { exit 1; }\n"
    done = run(["bash", "-c", f"{script}wireshark_defaults={tmp_path} let_root_run_lua"])
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("uetemu run allreduce", ""),
        ("uetemu run incast --topology clos:homing=esi,segments=2", "compiler"),
        ("uetemu run incast --report", "drawings"),
        ("uetemu graph rail_clos -o x.svg", "drawings"),
        ("uetemu up rail_clos --name clusters", ""),
        ("uetemu up cluster:tenants=0 --services all", "cluster"),
        ("uetemu cluster job_bootstrap --report", "cluster drawings"),
        ("mpirun -n 2 uetemu run allreduce", "mpi"),
        ("pytest -x", "tests"),
        ("uetemu torchrun --ranks 4 train.py", "torch"),
        ("python -m tests.bench turns", "tests"),
    ],
)
def test_commands_bring_what_they_need(command: str, more: str) -> None:
    done = run(["bash", "-c", f"{functions('implied')}implied {command}"])
    assert done.stdout.split() == more.split()


@pytest.mark.parametrize("words", [(), ("moon",), ("mpi,",), ("mpi,moon",)])
def test_what_with_does_not_know_is_refused_in_one_sentence(words: tuple[str, ...]) -> None:
    done = call("--with", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "provision: --with takes names out of drawings, compiler, cluster, mpi, torch, tests, "
        "with commas between\n"
    )


@pytest.mark.parametrize(
    ("brought", "status"),
    [(("torch", "sympy"), 0), (("nvidia-cublas", "torch"), 1), (("torch", "triton"), 1)],
)
def test_pytorch_for_gpus_is_refused_before_it_is_fetched(
    tmp_path: Path, brought: tuple[str, ...], status: int
) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": {"name": one}} for one in brought]}))
    (pattern,) = re.findall(r"^readonly for_gpus=.*$", INSTALLER.read_text(), re.M)
    script = functions("say", "fail", "refuse_packages_for_gpus") + (
        f"{pattern}\nvenv={tmp_path} constraints=none\nmkdir {tmp_path}/bin\n"
        f"ln -s {sys.executable} {tmp_path}/bin/python\n"
        f"mktemp() {{ echo {report}; }}\nstep() {{ :; }}\nrefuse_packages_for_gpus\n"
    )
    done = run(["bash", "-c", script])
    assert (done.returncode, done.stdout) == (status, "")
    if status:
        assert done.stderr.count("\n") == 1
        assert "is for GPUs and brings" in done.stderr
    else:
        assert done.stderr == ""


APT = """
apt-get() {
    echo '3 upgraded, 42 newly installed, 0 to remove and 1 not upgraded.'
    echo 'Need to get 59.4 MB/1,200 kB of archives.'
    echo 'After this operation, 1,249 MB of additional disk space will be used.'
    return 1
}
"""


def test_size_and_time_are_said_before_anything_is_installed() -> None:
    script = (
        f"set -euo pipefail\n{APT}"
        + functions("say", "debian_sizes", "announce")
        + (
            "environment_in_place() { false; }\npython_packages_in_place() { [[ $1 == s3 ]]; }\n"
            "stock_kernel_in_place() { false; }\nmodules_in_place() { false; }\n"
            "compiling_minutes=2\nextras=(tensorboard s3 test)\nmb_a_minute=500\n"
            "declare -A python_fetched=([uetemu]=60 [s3]=9 [test]=30)\n"
            "declare -A python_taken=([uetemu]=250 [test]=90)\n"
            "kernel_fetched=70 kernel_taken=110\nannounce frr clang\n"
        )
    )
    done = run(["bash", "-c", script])
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "provision: to be installed: 42 Debian packages, Python packages, Debian's kernel, "
        "compiled modules (219 MB to fetch, 1709 MB on disk); that takes about 6 min beside "
        "fetching\n"
    )


def test_no_failure_is_silent() -> None:
    script = functions("say", "fail", "unforeseen") + (
        "log=/nowhere/log\nprovision() {\n"
        + re.search(r"    trap 'unforeseen.*ERR\n", INSTALLER.read_text())[0]  # type: ignore[index]
        + "    false\n}\n(provision)\n"
    )
    done = run(["bash", "-c", f"set -Eeuo pipefail\n{script}"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("provision: line ")
    assert "failed with status 1: false; the end of /nowhere/log" in done.stderr
    assert done.stderr.count("\n") == 1


def test_tested_versions_are_within_the_projects_bounds() -> None:
    """The constraints pin every package that setup.cfg asks for."""
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (CHECKOUT / "vagrant" / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    extras = settings["options.extras_require"]
    asked = "\n".join(
        (
            settings["options"]["install_requires"],
            *(extras[x] for x in ("s3", "tensorboard", "test", "torch")),
        )
    )
    names = {re.match(r"[\w.-]+", line)[0] for line in asked.split("\n") if line.strip()}  # type: ignore[index]
    assert {canonicalize_name(name) for name in names} <= pinned


@pytest.mark.root
@pytest.mark.usefixtures("in_place")
class TestInPlace:
    def test_stdout_is_the_commands_alone(self) -> None:
        done = call("printf", "%s", '{"rows": []}')
        assert json.loads(done.stdout) == {"rows": []}
        assert done.stderr == ""

    def test_exit_status_is_the_commands(self) -> None:
        assert call("sh", "-c", "exit 7").returncode == 7

    def test_arguments_arrive_as_they_are(self) -> None:
        done = call("printf", "[%s]", "a b", "", "*", "$HOME")
        assert done.stdout == "[a b][][*][$HOME]"

    def test_command_runs_where_it_was_called(self, tmp_path: Path) -> None:
        assert call("pwd", "-P", cwd=tmp_path).stdout.strip() == str(tmp_path.resolve())

    def test_environments_python_is_first_whatever_the_callers_path(self, tmp_path: Path) -> None:
        shim = tmp_path / "python3"
        shim.write_text("#!/bin/sh\necho a version manager's shim; exit 3\n")
        shim.chmod(0o755)
        for path in (f"{tmp_path}:/usr/bin:/bin", "", "/nonexistent"):
            done = call("python3", "-c", "import uet, mininet; print('ours')", env={"PATH": path})
            assert (done.returncode, done.stdout) == (0, "ours\n"), done.stderr

    def test_uetemu_starts(self, tmp_path: Path) -> None:
        done = call("uetemu", "--version", cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.startswith("uetemu, version")

    def test_pytest_finds_the_checkout_from_elsewhere(self, tmp_path: Path) -> None:
        done = call(
            "pytest", "--collect-only", "-q", "tests/system/machine/test_provision.py", cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout
        assert "test_help_goes_to_stdout" in done.stdout

    def test_pytest_stays_with_tests_of_the_callers_own(self, tmp_path: Path) -> None:
        (tmp_path / "test_mine.py").write_text("def test_one():\n    assert True\n")
        done = call("pytest", "-q", "test_mine.py::test_one", cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout

    def test_check_says_so(self) -> None:
        done = call("--check")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_vagrant_accepts_the_vagrantfile(tmp_path: Path) -> None:
    if shutil.which("vagrant") is None:
        pytest.skip("needs vagrant")
    folder = tmp_path / "vagrant"
    folder.mkdir()
    shutil.copy(CHECKOUT / "vagrant" / "Vagrantfile", folder)
    home = {"HOME": str(tmp_path), "VAGRANT_HOME": str(tmp_path / "home"), "LC_ALL": "C.UTF-8"}
    done = run(
        # without a hypervisor, vagrant can judge all but the provider's own settings
        ["vagrant", "validate", "--ignore-provider"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **home},
    )
    assert done.returncode == 0, done.stderr
    assert "validated successfully" in done.stdout
