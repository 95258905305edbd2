"""Two namespaces with a wire between them that a test can make lossy, and endpoints at its ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import emulator.lab.standalone.uet_endpoint
import uet.tss.record
from emulator.cli.main import cli
from emulator.dataplane.kernel import namespaces
from tests.harness.lab.endpoint_process import Endpoint as Process

#: What a process of its own would spend most of its time on.
_PRELOADED = (
    cli,
    uet.tss.record,
    emulator.lab.standalone.uet_endpoint,
    emulator.lab.standalone.uet_endpoint,
)
ADDRESSES = {4: ("10.99.0.1", "10.99.0.2"), 6: ("fd99::1", "fd99::2")}
_SOL_PACKET, _IGNORE_OUTGOING = 263, 23
#: A frame, its number among the UET frames of that direction, and whether it goes to the target;
#: gives the frames that come out at the other end now.
Policy = Callable[[bytes, int, bool], Sequence[bytes]]


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Wire:
    """Namespaces ``initiator`` and ``target``, and a forwarder between their ``e0``.

    ``counts`` says which frames the policy is for; by default those of UET.
    """

    def __init__(self, counts: Callable[[bytes], bool] | None = None) -> None:
        self._counts = is_uet if counts is None else counts
        tag = f"fept{secrets.token_hex(4)}"
        self.initiator, self.middle, self.target = (f"{tag}{end}" for end in "imt")
        self._policy: Policy | None = None
        self._numbers = [0, 0]
        self._ends: list[socket.socket] = []
        self._stop, self._reported = os.pipe()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    @contextlib.contextmanager
    def up(self) -> Iterator[Wire]:
        made: list[str] = []
        try:
            for name in (self.initiator, self.middle, self.target):
                ip("netns", "add", name)
                made.append(name)
            for name, side in ((self.initiator, 0), (self.target, 1)):
                port = f"p{side}"
                ip("link", "add", "e0", "netns", name, "type", "veth",
                   "peer", "name", port, "netns", self.middle)  # fmt: skip
                ip("-n", self.middle, "link", "set", port, "addrgenmode", "none", "up")
                ip("-n", name, "addr", "add", f"{ADDRESSES[4][side]}/24", "dev", "e0")
                ip("-n", name, "addr", "add", f"{ADDRESSES[6][side]}/64", "dev", "e0", "nodad")
                ip("-n", name, "link", "set", "e0", "up")
            path = namespaces.DIRECTORY / self.middle
            self._ends = namespaces.visitor().inside(path, lambda: [_tap("p0"), _tap("p1")])
            self._thread.start()
            yield self
        finally:
            os.close(self._reported)
            if self._thread.is_alive():
                self._thread.join()
            for end in self._ends:
                end.close()
            os.close(self._stop)
            for name in made:
                ip("netns", "del", name)

    @property
    def policy(self) -> Policy | None:
        """Set what happens to frames of the transport, which are numbered from then on."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self._policy = None
        self._numbers = [0, 0]
        self._policy = policy

    def _forward(self) -> None:
        while True:
            watched = (*(end.fileno() for end in self._ends), self._stop)
            readable, _, _ = select.select(watched, (), ())
            if self._stop in readable:
                return
            for side, end in enumerate(self._ends):
                if end.fileno() not in readable:
                    continue
                frame = end.recv(65536)
                frames: Sequence[bytes] = (frame,)
                policy = self._policy
                if policy is not None and self._counts(frame):
                    frames = policy(frame, self._numbers[side], side == 0)
                    self._numbers[side] += 1
                for out in frames:
                    self._ends[1 - side].send(out)


def is_uet(frame: bytes) -> bool:
    """UDP to UET's port, or native."""
    if frame[12:14] == b"\x08\x00":
        protocol, at = frame[23], 34
    elif frame[12:14] == b"\x86\xdd":
        protocol, at = frame[20], 54
    else:
        return False
    return protocol == 253 or (protocol == 17 and frame[at + 2 : at + 4] == b"\x12\xb9")


def _tap(interface: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    tap.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    tap.bind((interface, 3))
    return tap


class Endpoint(Process):
    """A ``uetemu fep`` process; ``fresh``: started as a user starts it, which takes a while."""

    def __init__(self, *words: str, stdin: str | None = None, fresh: bool = False) -> None:
        super().__init__("fep", *words, stdin=stdin, fresh=fresh)


@contextlib.contextmanager
def target(wire: Wire, *words: str, fresh: bool = False) -> Iterator[Endpoint]:
    """A target that is ready; ended by SIGTERM if it has not ended by itself."""
    endpoint = Endpoint("target", "-n", wire.target, "-i", "e0", *words, fresh=fresh)
    try:
        endpoint.wait_for("start")
        yield endpoint
    finally:
        if endpoint.process.poll() is None:
            endpoint.end(signal.SIGTERM)
        elif not endpoint.process.stdout.closed:  # type: ignore[union-attr]
            endpoint.end()


def initiate(
    wire: Wire, *words: str, version: int = 4, stdin: str | None = None, fresh: bool = False
) -> Endpoint:
    """An initiator that has ended."""
    to = ADDRESSES[version][1]
    route = ("-n", wire.initiator, "-i", "e0", "-p", to)
    endpoint = Endpoint("initiator", *route, *words, stdin=stdin, fresh=fresh)
    endpoint.end()
    return endpoint


def decoded(path: Path, *words: str) -> list[dict[str, Any]]:
    """The frames of a capture, as ``uetemu decode`` has them."""
    done = CliRunner().invoke(cli, ["decode", "--format", "json", *words, str(path)])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def filters(namespace: str) -> str:
    """Return what is left of traffic control on ``e0``."""
    assert shutil.which("tc"), "the tests look with tc"
    shown = [
        subprocess.run(
            ["tc", "-n", namespace, *words], check=True, capture_output=True, text=True
        ).stdout
        for words in (("qdisc", "show", "dev", "e0"), ("filter", "show", "dev", "e0", "ingress"))
    ]
    return "".join(line for line in "".join(shown).splitlines(True) if "noqueue" not in line)


def assert_all_ok(*endpoints: Process) -> None:
    for endpoint in endpoints:
        wrong = [item for item in endpoint.completions() if not item["ok"]]
        assert not wrong, (wrong, endpoint.error)
        assert endpoint.events[-1]["status"] == 0, (endpoint.events[-1], endpoint.error)
        assert endpoint.process.returncode == 0
