"""Start, query and end the agent for the pauses of a lab (``pfc_agent``).

It listens on ``/run/uetemu/<lab>/pfc``, a datagram socket, and answers a request when it is done:

``publish``
    bring all counters up to date
``restart``
    measure the longest pause, and the latest, anew
``storm NODE:PORT on|off``
    let this port request pauses without a reason, or no longer
``end``
    let all data go, and end
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path
from typing import IO

from emulator.dataplane import lab_record
from emulator.errors import UserError

ANSWER_S = 20.0


def place(lab: str) -> Path:
    return lab_record.directory_of(lab) / "pfc"


def log_of(lab: str) -> Path:
    """Return the log of an agent that failed; it is removed with the lab."""
    return lab_record.directory_of(lab) / "pfc.log"


def listen(lab: str) -> socket.socket:
    """The agent's socket; takes the place of one that a dead agent left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    place(lab).unlink(missing_ok=True)
    made.bind(str(place(lab)))
    return made


def start(lab: str, *, persistent: bool) -> IO[bytes] | None:
    """Start the agent of ``lab``; returns when pauses work.

    It ends with the lab.  If the lab is not ``persistent`` it also ends when the returned pipe is
    closed, that is, with this process.  Raises UserError if it cannot be.
    """
    process = lab_record.start_process(
        lab,
        "emulator.dataplane.switch.pfc_agent",
        log_of(lab),
        stdin=subprocess.DEVNULL if persistent else subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    stated = process.stdout.readline().decode().strip()
    process.stdout.close()
    if stated != "ready":
        process.kill()
        process.wait()
        stated = stated or log_of(lab).read_text(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"priority flow control does not start: {stated or 'its process died'}")
    return process.stdin


def ask(lab: str, request: str) -> bool:
    """Have the agent do ``request``; False if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind("")  # the kernel gives us a name, which the answer goes to
        ours.settimeout(ANSWER_S)
        try:
            ours.sendto(request.encode(), str(place(lab)))
            ours.recv(64)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except TimeoutError:
            raise UserError(
                f"the process for priority flow control of lab {lab} does not answer: "
                f"take the lab down and bring it up again"
            ) from None
    return True


def end(lab: str) -> None:
    """Have the agent end, if there is one, and wait for it."""
    if ask(lab, "end"):
        for process in lab_record.processes(lab):
            if _is_agent(process.pid):
                _await(process.pid)


def _is_agent(pid: int) -> bool:
    try:
        return b"pfc_agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _await(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(ANSWER_S * 1000)
    finally:
        os.close(handle)
