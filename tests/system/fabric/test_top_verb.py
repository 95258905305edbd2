"""``uetemu top`` on running labs: through a pipe, and at a terminal, which it leaves as it was."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.virtual_state import NOW, SWITCH_WORDS
from emulator.lab.live.sampler import LabSampler
from tests import CHECKOUT
from tests.harness.lab.traffic import blast, kill
from tests.harness.runs.processes import completed as uetemu
from tests.system.conftest import LabFactory
from tests.system.fabric.test_lab import COMMAND
from topologies.addressing import gpu_address

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200"
DILATION, SIZE, ECT = 20_000, 4000, 2
LAST = "rail0:down2"  # to h2g0
BUDGET_S = 60.0
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
ALTERNATE, NORMAL, HIDE, REVEAL = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"


@pytest.fixture
def busy(lab: LabFactory) -> Iterator[Callable[[str | None], Lab]]:
    """A lab in which two GPUs send to h2g0 as fast as they can: over its rail, and from beyond."""
    senders: list[subprocess.Popen[bytes]] = []

    def build(switch: str | None) -> Lab:
        choice = None if switch is None else parse(switch)
        made = lab(SPEC, dilation=DILATION, switch=choice)
        to = str(gpu_address(made.topology.node("h2g0")).ip)
        senders.extend(
            blast(made, node, to, size=SIZE, tos=ECT) for node in ("h0g0", "h1g0", "h1g1")
        )
        return made

    yield build
    kill(*senders)


def seen(lab: Lab, *options: str) -> dict[str, Any]:
    done = uetemu("top", lab.name, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_time_of_a_virtual_clock_is_that_of_its_switches(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=1, switch=parse("shallow"), clock="virtual")
    assert made.asic is not None
    assert made.asic.virtual is not None
    words = made.asic.virtual.switches
    sampler = LabSampler(made)
    words[NOW] = 5_000
    before = sampler.sample()
    words[SWITCH_WORDS + NOW] = 12_500
    picture = sampler.between(before, sampler.sample())
    assert (picture.interval_us, picture.up_us) == (7.5, 12.5)


# --- through a pipe ----------------------------------------------------------------------------


def test_an_incast_is_seen_where_it_is(busy: Callable[[str | None], Lab]) -> None:
    lab = busy("shallow:balance=packet")
    deadline = time.monotonic() + BUDGET_S
    while True:  # until all that was sent first is there
        found = seen(lab, "--sort", "trims")
        link = found["links"][0]
        if link["trimmed"] and link["utilisation_percent"] > 80:
            break
        assert time.monotonic() < deadline, link
    assert (link["port"], link["to"], link["tier"]) == (LAST, "h2g0:eth0", "rail to gpu")
    assert link["rate_gbps"] == pytest.approx(4 * link["utilisation_percent"], rel=1e-3)
    assert 0 < link["queue_bytes"] <= link["peak_queue_bytes"] <= link["queue_limit_bytes"]
    assert link["total_trimmed"] >= link["trimmed"]
    assert link["marked"] > 0
    assert link["dropped"] == 0
    links = {each["port"]: each for each in found["links"]}
    assert len(links) == 2 * len(lab.topology.links)
    assert links["h0g0:eth0"]["utilisation_percent"] > 50  # a NIC: by the kernel's counters
    assert links["h0g0:eth0"]["marked"] is None
    # the other way there are only the ICMP errors of a GPU that does not listen
    assert links["rail0:down1"]["utilisation_percent"] < 5
    tiers = {tier["tier"]: tier for tier in found["tiers"]}
    assert list(tiers) == ["gpu to rail", "rail to spine", "spine to rail", "rail to gpu"]
    assert tiers["rail to gpu"]["trimmed"] == link["trimmed"]
    assert tiers["rail to gpu"]["max_mean_ratio"] == pytest.approx(6, rel=0.1)  # of six
    rails = {rail["rail"]: rail["tiers"] for rail in found["rails"]}
    assert rails[1]["rail to gpu"]["max_utilisation_percent"] < 5
    assert rails[1]["rail to spine"]["mean_utilisation_percent"] > 0


def test_without_asic_the_kernel_tells(busy: Callable[[str | None], Lab]) -> None:
    lab = busy(None)
    deadline = time.monotonic() + BUDGET_S
    while True:
        found = seen(lab, "--sort", "drops", "--rows", "1")
        (link,) = found["links"]
        if link["dropped"] and link["utilisation_percent"] > 80:
            break
        assert time.monotonic() < deadline, link
    assert found["switch"] is None
    assert link["port"] == LAST
    assert link["queue_bytes"] > 0
    assert link["marked"] is link["total_trimmed"] is link["peak_queue_bytes"] is None


def test_a_pipe_gets_one_plain_picture(lab: LabFactory) -> None:
    made = lab(SPEC, dilation=DILATION, switch=parse("shallow"))
    done = uetemu("top", made.name, "--interval", "60ms", "--rows", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{made.name}  {SPEC}  switch shallow:balance=flow  dilation 20000")
    assert lines[-1] == f"3 of {2 * len(made.topology.links)} link directions by utilisation"
    assert lines[-5].split()[:4] == ["link", "to", "Gb/s", "%"]
    assert lines[-5].endswith("marks  total  trims  total  drops  total")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--interval", "1ms"], "take at least 50 ms of the wall clock"),
        (["--interval", "fast"], "is not a time"),
        (["--sort", "size"], "'size' is not one of"),
        (["--rows", "0"], "0 is not in the range"),
    ],
)
def test_bad_options_are_told_first(options: list[str], sentence: str) -> None:
    done = uetemu("top", "nobody-has-this", *options)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_lab() -> None:
    done = uetemu("top", "nobody-has-this", "--once")
    assert done.returncode == 1
    assert done.stderr.startswith("uetemu: there is no lab 'nobody-has-this'")


# --- at a terminal -----------------------------------------------------------------------------


class Terminal:
    """``uetemu top`` at a terminal of its own of 110 x 30."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 110, 0, 0))
        self._theirs = theirs
        self._before = termios.tcgetattr(theirs)
        self.written = b""
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [*COMMAND, "top", *argv],
            cwd=CHECKOUT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=inherited | {"TERM": "xterm-256color"} | environment,
        )

    def read(self, until: Callable[[bytes], bool], what: str) -> None:
        """Return what is written from here on, until it is such."""
        start, deadline = len(self.written), time.monotonic() + BUDGET_S
        while not until(CODES.sub(b"", self.written[start:])):
            assert time.monotonic() < deadline, f"not seen: {what}\n{self.written!r}"
            self._pump(0.1)

    def apply_fault(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        """The exit status; the terminal has been left as it was found."""
        deadline = time.monotonic() + BUDGET_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self._pump(0.1)
        while self._pump(0):
            pass
        assert termios.tcgetattr(self._theirs) == self._before
        assert self.written.count(ALTERNATE) == self.written.count(NORMAL)
        assert self.written.count(HIDE) == self.written.count(REVEAL)
        assert self.written.rfind(NORMAL) >= self.written.rfind(ALTERNATE)
        return self.process.returncode

    def _pump(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if ready:
            self.written += os.read(self._ours, 65536)
        return bool(ready)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*argv: str, **environment: str) -> Terminal:
        opened.append(Terminal(*argv, **environment))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def drawn(text: bytes) -> bool:
    return b"link directions by utilisation" in text


def test_it_draws_again_and_again_and_ends_quietly(
    busy: Callable[[str | None], Lab], terminal: Callable[..., Terminal]
) -> None:
    lab = busy("shallow")
    top = terminal(lab.name, "--interval", "100ms")
    top.read(lambda text: text.count(b"link directions by") >= 3, "three pictures")
    assert b"\x1b[31m" in top.written  # what is full is red
    top.apply_fault(b"s")
    top.read(lambda text: b"link directions by queue" in text, "sorted by queue")
    top.apply_fault(b"\x1a")  # Ctrl-Z would leave the terminal to the shell in this state
    top.read(lambda text: text.count(b"link directions by") >= 2, "still drawing")
    top.apply_fault(b"q")
    assert top.end() == 0
    assert top.written.endswith(REVEAL + NORMAL)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_signals_end_it_with_the_terminal_in_order(
    lab: LabFactory, terminal: Callable[..., Terminal], number: signal.Signals, status: int
) -> None:
    made = lab(SPEC, dilation=DILATION, switch=parse("shallow"))
    top = terminal(made.name)
    top.read(drawn, "a picture")
    if number is signal.SIGINT:
        top.apply_fault(b"\x03")
    else:
        top.process.send_signal(number)
    assert top.end() == status
    assert top.written.endswith(REVEAL + NORMAL)


@pytest.mark.parametrize("switch", [parse("shallow"), None])
def test_a_lab_that_goes_ends_the_view_with_a_sentence(
    lab: LabFactory, terminal: Callable[..., Terminal], switch: Any
) -> None:
    made = lab(SPEC, dilation=DILATION, switch=switch)
    top = terminal(made.name, "--interval", "50ms")
    top.read(drawn, "a picture")
    down = threading.Thread(target=made.close)
    down.start()
    assert top.end() == 0
    down.join()
    left = top.written.rpartition(NORMAL)[2]
    assert left == f"uetemu: lab {made.name} has been taken down\r\n".encode()


def test_once_leaves_its_picture_on_the_terminal(
    lab: LabFactory, terminal: Callable[..., Terminal]
) -> None:
    made = lab(SPEC, dilation=DILATION, switch=parse("shallow"))
    top = terminal(made.name, "--once", "--rows", "4", NO_COLOR="1")
    assert top.end() == 0
    assert drawn(top.written)
    assert ALTERNATE not in top.written
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", top.written)
    assert all(len(line) <= 110 for line in CODES.sub(b"", top.written).decode().splitlines())


def test_a_terminal_that_can_nothing_gets_one_picture(
    lab: LabFactory, terminal: Callable[..., Terminal]
) -> None:
    made = lab(SPEC, dilation=DILATION, switch=parse("shallow"))
    top = terminal(made.name, TERM="dumb")
    assert top.end() == 0
    assert drawn(top.written)
    assert b"\x1b[?" not in top.written
